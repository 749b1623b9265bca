"""`run_eval.sh` on a real engine, and programs of an adversary in the real sandbox: none passes, and none gets out."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from evaluation.code_box import CodeBox
from evaluation.coding import Coding
from evaluation.shell import Shell

from lab.tiny_models.cache import model_path
from tests.helpers.sandboxes import REASON, installed, running
from tests.helpers.scripted_model import oracle, talk_of

REPOSITORY = Path(__file__).resolve().parents[2]
sandboxed = pytest.mark.skipif(not installed(REPOSITORY), reason=REASON)
SHORT_SECONDS, PATIENT_S = 2.0, 120.0
"""Time limit of programs that never end, and of those that end by themselves on a machine that is busy."""
ENDLESS = "timed_out"


@pytest.fixture
async def coding() -> AsyncIterator[Coding]:
    suite = Coding(CodeBox(seconds=PATIENT_S))
    await suite.open()
    yield suite
    await suite.close()


@sandboxed
async def test_programs_of_an_adversary_pass_nothing_and_stay_inside(coding: Coding, tmp_path: Path) -> None:
    case = coding.cases(0, 1)[0]
    name, mark = case.problem.name, f"mark{secrets.token_hex(8)}"
    secret = tmp_path / "secret"
    secret.write_text("17")
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        define = f"def {name}(numbers):\n    return"
        programs = {
            "prints": (f"print('passed', flush=True)\n{define} 'passed'", "wrong_result"),
            "edits its tests": (
                f"import json, os, sys\n{define} 1\nfor place, _, names in os.walk('/work'):\n    for each in names:\n"
                "        open(os.path.join(place, each), 'w').write('[[1]]')\n"
                "json.dump = lambda found, file: file.write('[' + ','.join(['[true]'] * 10) + ']')",
                "wrong_result",
            ),
            "is equal to everything": (
                f"class All(dict):\n    def __eq__(self, other):\n        return True\n{define} All()",
                "wrong_result",
            ),
            "never ends": (f"while True:\n    pass\n{define} 1", ENDLESS),
            "forks": (
                f"import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(3600)\n{define} 1",
                "raised",
            ),
            "leaves a process": (
                f"import subprocess\nsubprocess.Popen(['/usr/bin/python3', '-c', 'import time; time.sleep(3600)', {mark!r}], "
                f"start_new_session=True)\n{define} 1",
                "wrong_result",
            ),
            "eats memory": (f"kept = [bytes(2**24) for _ in range(400)]\n{define} 1", None),
            "fills the disk": (f"open('/work/x', 'wb').write(bytes(2**28))\n{define} 1", None),
            "reads a file": (f"{define} int(open({str(secret)!r}).read())", "raised"),
            "reads the repository": (f"{define} open({str(REPOSITORY / 'LICENSE')!r}).read()", "raised"),
            "opens a socket": (
                f"import socket\n{define} socket.create_connection(('127.0.0.1', {port}), 2)",
                "raised",
            ),
            "writes without end": (f"while True:\n    print('x' * 10000)\n{define} 1", ENDLESS),
            "deep results": (
                "import os\nopen('/work/results.json', 'w').write('[' * 100000)\nos._exit(0)",
                "no_result",
            ),
            "large results": (f"{define} 'x' * 2**20", "no_result"),
        }
        for what, (program, reason) in programs.items():
            coding.box.seconds = SHORT_SECONDS if reason == ENDLESS else PATIENT_S
            grade = await coding.play(case, talk_of(lambda messages, program=program: f"```python\n{program}\n```"))
            assert not grade.passed, what
            assert grade.reason == reason or reason is None, (what, grade)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert running(mark) == []
    assert (REPOSITORY / "LICENSE").read_text().strip()


@sandboxed
async def test_a_right_program_passes_and_a_shell_task_is_solved(coding: Coding) -> None:
    case = coding.cases(0, 1)[0]
    assert (await coding.play(case, talk_of(oracle(case)))).passed
    shell = Shell(CodeBox())
    await shell.open()
    try:
        task = shell.cases(0, 1)[0]
        assert (await shell.play(task, talk_of(oracle(task)))).passed
        assert (await shell.play(task, talk_of(lambda messages: "Done."))).reason == "no_call"
    finally:
        await shell.close()


def test_the_command_serves_a_checkpoint_and_reports_on_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ["--model-path", str(model_path()), "--device", "cpu", "--eval-tasks", "conversation,tool-use,retention"]
    words += ["--num-problems", "3", "--max-tokens", "64", "--temperature", "0", "--output-dir", str(folder)]
    command = ["bash", str(REPOSITORY / "openclaw-test" / "run_eval.sh"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"report   {folder / 'report.md'}" in ended.stdout
    found = json.loads((folder / "report.json").read_text())
    assert {name: each["tries"] for name, each in found["model"]["suites"].items()} == {
        "conversation": 3,
        "tool-use": 3,
        "retention": 3,
    }
    # The tiny model is made for such sums: "What is 9 + 13?"
    assert found["model"]["suites"]["retention"]["passed"] >= 1
    again = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-3000:]
    assert len((folder / "results.jsonl").read_text().splitlines()) == 9
    assert "starting a server" not in again.stderr
