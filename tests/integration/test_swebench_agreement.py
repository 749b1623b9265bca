"""Our grader and swebench's agree on everything that swebench's own tests grade, and its parsers read the logs of other frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from agentrl.exceptions import InfraError
from agentrl.tasks.swe.external import INSTALLED, parse_with_swebench
from agentrl.tasks.swe.generate import draft_of
from agentrl.tasks.swe.logs import lines_of_pytest, lines_of_unittest, log_of, statuses_of
from agentrl.tasks.swe.resolved import GOOD, report_of, status_of
from tests.helpers.swe_instances import of_each_mistake, ran

REPOSITORY = Path(__file__).resolve().parents[2]
SETUP = REPOSITORY / "scripts" / "setup_swebench.sh"
pytestmark = pytest.mark.skipif(
    subprocess.run([SETUP, "--check"], check=False).returncode != 0,
    reason="needs swebench: bash scripts/setup_swebench.sh",
)
FILES = ("test_grading*.py", "test_log_parsers*.py", "test_infra_failure.py")


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Run swebench's own tests of its graders and parsers, and return what they graded, by kind."""
    folder = tmp_path_factory.mktemp("swebench")
    files = [str(path) for pattern in FILES for path in sorted((INSTALLED / "tests").glob(pattern))]
    assert len(files) > 8
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.helpers.swebench_recorder", "-p", "no:cacheprovider"]
    variables = {
        "SWEBENCH_AT": str(INSTALLED / "lib"),
        "SWEBENCH_OUT": str(folder / "calls.jsonl"),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'slime'}",
    }
    done = subprocess.run(
        [*command, "--rootdir", str(INSTALLED), "-c", os.devnull, *files],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in (folder / "calls.jsonl").read_text().splitlines():
        call = json.loads(line)
        found[call["kind"]].append(call)
    return found


def test_logs(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert len(fixtures["log"]) >= 10
    for call in fixtures["log"]:
        if call["parser"] == "parse_log_pytest":
            ours = statuses_of(call["log"], lambda text: dict(lines_of_pytest(text)))
            assert (ours or {}) == (call["statuses"] if call["found"] else {}), call


def test_lines(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert len(fixtures["parse_log_pytest"]) >= 10
    for call in fixtures["parse_log_pytest"]:
        assert dict(lines_of_pytest(call["log"])) == call["statuses"], call


def test_what_is_resolved(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert fixtures["tests"]
    for call in fixtures["tests"]:
        assert call["type"] == "pass_and_fail"
        ours = report_of(call["statuses"], call["wanted"]["FAIL_TO_PASS"], call["wanted"]["PASS_TO_PASS"])
        theirs = call["report"]
        assert [list(ours.mended), list(ours.unmended)] == [theirs["FAIL_TO_PASS"][k] for k in ("success", "failure")]
        assert [list(ours.kept), list(ours.broken)] == [theirs["PASS_TO_PASS"][k] for k in ("success", "failure")]


def test_single_tests(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert len(fixtures["test_passed"]) > 10
    for call in fixtures["test_passed"]:
        assert (status_of(call["case"], call["statuses"]) in GOOD) == call["result"], call
    for call in fixtures["test_maintained"]:
        assert (status_of(call["case"], call["statuses"]) in (*GOOD, "SKIPPED")) == call["result"], call


async def test_the_log_of_our_runner_means_the_same_to_both(tmp_path: Path) -> None:
    for number, name in enumerate(of_each_mistake()[:3]):
        draft = draft_of(name)
        _, ours = ran(tmp_path / str(number), draft.broken(), draft)
        words = {"PASSED": "ok", "FAILED": "FAIL", "ERROR": "ERROR"}
        log = log_of("\n".join(f"{test} ... {words[status]}" for test, status in ours.items()), 1)
        assert await parse_with_swebench("parse_log_django", log) == ours == dict(lines_of_unittest(log))


async def test_a_parser_that_is_not_there_is_no_verdict() -> None:
    with pytest.raises(InfraError, match="parse_log_none of swebench failed"):
        await parse_with_swebench("parse_log_none", log_of("", 0))
