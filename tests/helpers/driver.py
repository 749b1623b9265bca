"""A run of ``train_async.py`` or ``train.py`` as a process, as integration tests watch it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import psutil

from lab.testkit.processes import PROBE, assert_all_gone, title_of

WAIT_SECONDS = 300
PROMPTS = 40
COMMON = (
    *("--device", "cpu", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"),
    *("--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--input-key", "prompt"),
    *("--rollout-max-response-len", "24", "--custom-rm-path", "lab.testkit.rewards.prefer_even_ids"),
    *("--use-dynamic-batch-size", "--max-tokens-per-gpu", "512", "--lr", "1e-3"),
    *("--rollout-health-check-interval", "1"),
)


class Driver:
    """A run with its output in a file; flags come after `COMMON`, so they win."""

    def __init__(
        self,
        repository: Path,
        run_dir: Path,
        model: Path,
        *flags: str,
        script: str = "train_async.py",
        through: Sequence[str] = (),
    ) -> None:
        """``through``: words before the program that submit it to something else."""
        prompts = run_dir / "prompts.jsonl"
        run_dir.mkdir(parents=True, exist_ok=True)
        prompts.write_text("\n".join(json.dumps({"prompt": f"def f{number}(x):"}) for number in range(PROMPTS)))
        self.output = run_dir / f"driver-{len(list(run_dir.glob('driver-*')))}.log"
        own = [
            "--hf-checkpoint",
            model,
            "--run-dir",
            run_dir,
            "--prompt-data",
            prompts,
            "--save",
            run_dir / "checkpoints",
        ]
        command = [*through, sys.executable, repository / "slime" / script, *COMMON, *own, *flags]
        environment = {**os.environ, "PYTHONPATH": f"{repository / 'slime'}{os.pathsep}{repository}"}
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=repository, env=environment, stdout=log, stderr=log
            )

    def text(self) -> str:
        """What it has printed, Ray's lines of other processes included."""
        return self.output.read_text(errors="replace")

    def steps(self) -> list[str]:
        """Its lines about steps."""
        return [line for line in self.text().splitlines() if line.startswith("step ")]

    def wait_for(self, words: str) -> None:
        """Wait until it has printed ``words``; fails when it ends before."""
        self.wait_until(lambda: words in self.text(), f"{words!r}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition`` holds; fails when the run ends before."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return
            time.sleep(0.1)
        assert condition(), f"waiting for {what}; the driver's output:\n{self.text()}"

    def wait_end(self) -> int:
        """Wait for its end and return its exit status."""
        try:
            return self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end; the driver's output:\n{self.text()}") from None

    def run_to_end(self) -> None:
        """Wait until it ends well; fails if something that it started outlives it."""
        self.wait_for("policy engine: ")
        family = self.family()
        assert self.wait_end() == 0, self.text()
        assert_all_gone(family)

    def assert_on_policy(self, rollouts: int) -> None:
        """Fail unless it took a step per rollout, each sampled by the weights of the step before it."""
        steps = [line.split() for line in self.steps()]
        assert [(line[1], line[-1]) for line in steps] == [(str(step), str(step + 1)) for step in range(rollouts)]
        assert all(line[line.index("stale") + 1] == "0.0" for line in steps)

    def engine_url(self) -> str:
        """Where the policy engine serves."""
        line = next(line for line in self.text().splitlines() if line.startswith("policy engine: "))
        return line.removeprefix("policy engine: ")

    def family(self) -> list[psutil.Process]:
        """All processes that it has started and that live."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def member(self, words: str) -> psutil.Process:
        """The process of its family with ``words`` in its command line; what that one has forked has them too."""
        found = [process for process in self.family() if words in title_of(process)]
        assert found, f"no process {words!r}; the driver's output:\n{self.text()}"
        return min(found, key=psutil.Process.create_time)


def live_version(url: str) -> str | None:
    """The weight version that an engine serves; None while it does not answer."""
    try:
        return PROBE.get(f"{url}/model_info").json()["weight_version"]
    except httpx.TransportError:
        return None
