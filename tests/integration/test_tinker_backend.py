"""A run at a service: our own server over HTTP, a student who complains, and a kill of either side in between."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from groundwork.network import find_available_port
from lab.testkit.waiting import wait_until
from lab.tiny_models.cache import SHIPPED
from openclaw.ledger.store import Ledger
from tests.helpers.tinker_server import REPOSITORY, TinkerServer, running

pytest.importorskip("tinker", reason="install the tinker extra")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

KEY = "tml-never-to-be-written-down"
UPDATES = 8
STEP_SECONDS = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    flags = ("--lora-rank", "16", "--max-tokens-per-gpu", "2100")
    with running(SHIPPED, tmp_path_factory.mktemp("service"), "tiny", *flags) as started:
        yield started


class Demo:
    """``lab/demo.py --device tinker``, which a test may look at while it runs."""

    def __init__(self, server: TinkerServer, folder: Path) -> None:
        self.folder, self.port = folder, find_available_port()
        self._environment = {
            **os.environ,
            **{"TINKER_BASE_URL": server.url, "TINKER_API_KEY": KEY, "SAVE_INTERVAL": "2", "HF_HUB_OFFLINE": "1"},
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in ("", "slime", "openclaw-test")),
        }
        self._parts = 0

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"demo-{self._parts}.log")

    def start(self, *words: str) -> None:
        self._parts += 1
        command = [
            sys.executable,
            "lab/demo.py",
            "--method",
            "combine",
            "--device",
            "tinker",
            "--updates",
            str(UPDATES),
        ]
        command += ["--run-dir", str(self.folder), "--port", str(self.port), "--heldout", "64", *words]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def steps(self) -> int:
        """Return how many steps the ledger knows."""
        if not (file := self.folder / "checkpoints" / "ledger.sqlite").is_file():
            return 0
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as ledger:
            try:
                return ledger.execute("SELECT COUNT(*) FROM steps").fetchone()[0]
            except sqlite3.OperationalError:
                return 0

    def wait_for_steps(self, number: int) -> None:
        wait_until(
            lambda: self._at(number), lambda: f"{self.steps()} steps:\n{self.log.read_text()[-3000:]}", STEP_SECONDS
        )

    def _at(self, number: int) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return self.steps() >= number

    def driver(self) -> psutil.Process:
        """Return the process that trains."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(each for each in children if any("train_async.py" in word for word in each.cmdline()))

    def everything(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]


def test_it_learns_although_either_side_is_killed(server: TinkerServer, tmp_path: Path) -> None:
    demo = Demo(server, tmp_path / "run")
    demo.start()
    demo.wait_for_steps(2)
    server.kill()
    server.start()
    demo.wait_for_steps(4)
    family = demo.everything()
    assert not any(KEY in word for each in family for word in each.cmdline())
    os.kill(demo.driver().pid, signal.SIGKILL)
    demo.process.wait(timeout=180)
    _, left = psutil.wait_procs(family, timeout=60)
    assert not left, f"the kill left {left}"

    demo.start("--resume")
    assert demo.process.wait(timeout=900) == 0, demo.log.read_text()[-4000:]
    report: dict[str, Any] = json.loads((demo.folder / "report.json").read_text())
    assert report["rule_rate_after"] > report["rule_rate_before"] + 0.3
    assert report["right_number_rate_after"] > 0.9
    assert report["refused_requests"] == 0

    with closing(Ledger(demo.folder / "checkpoints" / "ledger.sqlite")) as ledger:
        sizes = ledger.samples.batch_sizes()
        refused = sum(1 for record in ledger.decisions.all() if record.kind == "refused")
    assert sizes == [16] * (UPDATES - refused), "each step trained a whole batch, once"

    for file in filter(Path.is_file, tmp_path.rglob("*")):
        assert KEY.encode() not in file.read_bytes(), f"the key is in {file}"
    metrics = [json.loads(line) for line in (demo.folder / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["tinker/train_tokens"] for line in metrics if "tinker/train_tokens" in line]
    assert tokens == sorted(tokens), "the meter goes on after a resume"
    assert tokens[0] > 0
