"""The CPU demo as a user starts it: it learns, reports, keeps serving, and leaves nothing, however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from asking import server_client
from student import Student, Tally

from groundwork.checkpoint_names import LATEST
from groundwork.network import find_available_port
from lab.testkit.processes import GONE_SECONDS

pytestmark = pytest.mark.timeout(1500)

INTERRUPTED = 130
FIELDS = {
    "method",
    "seed",
    "updates",
    "sessions",
    "samples_trained",
    "samples_dropped",
    "heldout_problems",
    "rule_rate_before",
    "rule_rate_after",
    "right_number_rate_before",
    "right_number_rate_after",
    "gsm8k_rule_rate_before",
    "gsm8k_rule_rate_after",
    "degenerate_rate_after",
    "judge_accuracy_heldout",
    "refused_requests",
    "requests_total",
    "weight_version",
    "feedback_to_live_seconds_median",
    "tokens_per_second",
    "seconds_total",
}


def processes_of(run_dir: Path) -> list[int]:
    """Return the processes that know the run's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(run_dir).encode() in text and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def engines_of(run_dir: Path) -> list[int]:
    """Return those of `processes_of` that are SGLang servers."""
    return [pid for pid in processes_of(run_dir) if b"sglang_utils.server" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(
    condition: Callable[[], bool], seconds: float, what: str, demo: subprocess.Popen[str] | None = None
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        assert demo is None or demo.poll() is None, f"the demo ended with {demo.returncode} before: {what}"
        time.sleep(0.2)


def serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def live_version(port: int) -> int:
    """Return the weight version of a reply that is not trained."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 2}
    headers = {"X-Turn-Type": "side"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    version = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False).headers["x-weight-version"]
    return 0 if version == "default" else int(version)


def talk(port: int, sessions: int) -> None:
    """Hold conversations as the student; none is refused."""

    async def hold() -> Tally:
        async with server_client(f"http://127.0.0.1:{port}/v1", 120) as client:
            student = Student(client, "tiny", seed=5, name=f"person-{uuid.uuid4().hex[:6]}")
            await student.talk(4, asyncio.Event(), sessions)
            return student.tally

    tally = asyncio.run(hold())
    assert (tally.sessions, tally.refused) == (sessions, 0), tally.errors


@pytest.fixture
def demo(repository: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        paths = [repository, repository / "slime", repository / "openclaw-test"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, str(repository / "lab" / "demo.py"), "--run-dir", str(tmp_path / "run")]
        with (tmp_path / "demo.log").open("w") as log:
            process = subprocess.Popen(
                [*command, *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT, text=True
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    print((tmp_path / "demo.log").read_text())


def test_two_updates_then_serving_until_interrupted(demo: Callable, tmp_path: Path) -> None:
    port, report_path, gsm8k = find_available_port(), tmp_path / "report.json", tmp_path / "gsm8k.jsonl"
    gsm8k.write_text("\n".join(json.dumps({"question": f"What is {n} + 2?", "answer": str(n + 2)}) for n in range(8)))
    process = demo(
        *("--updates", "2", "--heldout", "32", "--port", str(port), "--gsm8k", str(gsm8k)),
        *("--report", str(report_path), "--keep-serving"),
    )
    wait_for(report_path.exists, 1200, "the report", process)
    report = json.loads(report_path.read_text())
    assert set(report) >= FIELDS
    assert report["updates"] >= 2, "a run that keeps serving may take a step more before the last measurement"
    assert report["samples_trained"] == 16 * report["updates"]
    assert int(report["weight_version"]) >= 2
    assert report["refused_requests"] == 0
    assert report["rule_rate_before"] < 0.6
    assert report["feedback_to_live_seconds_median"] > 0
    assert (tmp_path / "run" / "learning.png").stat().st_size > 1000

    body = {"model": "tiny", "messages": [{"role": "user", "content": "Tom has 3 pears and gets 4 more. How many?"}]}
    reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert reply.json()["choices"][0]["message"]["content"]

    before = live_version(port)
    talk(port, sessions=20)
    wait_for(lambda: live_version(port) > before, 300, "an update from what a person said after the report", process)
    wait_for(lambda: "it has learned from you" in (tmp_path / "demo.log").read_text(), 30, "the line about it", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    wait_for(lambda: not processes_of(tmp_path / "run"), GONE_SECONDS, "every process is gone")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_person_talks_it_learns_and_goes_on_after_ctrl_c(demo: Callable, tmp_path: Path) -> None:
    port, log, run_dir = find_available_port(), tmp_path / "demo.log", tmp_path / "run"
    process = demo("--live", "--port", str(port))
    wait_for(lambda: serves(port), 1200, "a server", process)
    assert live_version(port) == 0
    talk(port, sessions=5)
    wait_for(lambda: live_version(port) >= 1, 300, "an update", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(180) == INTERRUPTED
    wait_for(lambda: not processes_of(run_dir), GONE_SECONDS, "every process is gone")
    lines = log.read_text().splitlines()
    for begins in (f"serves   http://127.0.0.1:{port}/v1; talk to it", "talk     ", "inspect  ", "step 0 "):
        assert any(line.startswith(begins) for line in lines), begins
    steps = int((run_dir / "checkpoints" / LATEST).read_text())
    assert steps >= 1
    (again,) = [line for line in lines if line.startswith("continue ")]
    words = shlex.split(again)
    assert words[-1] == "--resume"
    assert {"--live", str(port), str(run_dir)} <= set(words)

    process = demo("--live", "--port", str(port), "--resume")
    wait_for(lambda: serves(port), 300, "a server again", process)
    assert live_version(port) >= steps, "the learned weights serve again"
    assert f"resumes  {run_dir}/checkpoints: {steps} steps are done" in log.read_text().splitlines()
    assert engines_of(run_dir)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    wait_for(lambda: not processes_of(run_dir), GONE_SECONDS, "a killed demo takes its run along")


def test_a_taken_port_is_refused_at_once(demo: Callable, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = demo("--port", str(taken.getsockname()[1]))
        assert process.wait(1200) == 1
    assert "choose another with --port" in (tmp_path / "demo.log").read_text()
