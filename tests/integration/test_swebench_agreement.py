"""Our grader and swebench's agree on everything that swebench's own tests grade, and its parsers read the logs of other frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.exceptions import InfraError
from agentrl.sandbox.interface import ExecResult
from agentrl.tasks.swe.external import INSTALLED, PROGRAM, parse_with_swebench, results_with_swebench
from agentrl.tasks.swe.generate import draft_of, generate
from agentrl.tasks.swe.grade import GOOD, report_of, status_of, verdict_of
from agentrl.tasks.swe.importers import PARSERS, PLAIN
from agentrl.tasks.swe.instance import PYTEST_PARSERS, Instance
from agentrl.tasks.swe.logs import END, lines_of_pytest, lines_of_unittest, log_of, statuses_of
from tests.helpers.swe_instances import of_each_mistake, ran

REPOSITORY = Path(__file__).resolve().parents[2]
SETUP = REPOSITORY / "scripts" / "setup_swebench.sh"
pytestmark = pytest.mark.skipif(
    subprocess.run([SETUP, "--check"], check=False).returncode != 0,
    reason="needs swebench: bash scripts/setup_swebench.sh",
)
FILES = ("test_grading*.py", "test_log_parsers*.py", "test_infra_failure.py")
LOGS = {"parse_log_pytest": 10, "parse_log_marked": 2, "parse_log_chart_js": 2}
PARSED = {
    **{"parse_log_pytest": 15, "parse_log_pytest_v2": 6, "parse_log_pytest_options": 1, "parse_log_matplotlib": 1},
    **{"parse_log_seaborn": 2, "parse_log_jest": 4, "parse_log_marked": 4, "parse_log_chart_js": 4},
    **{"parse_log_maven": 3, "parse_log_gradle_custom": 3},
}
CASES = {"test_passed": 17, "test_failed": 12, "test_maintained": 5}
"""How many calls the tests of the locked release make."""


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


async def test_logs(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert Counter(call["parser"] for call in fixtures["log"]) == LOGS
    for call in fixtures["log"]:
        if call["parser"] == "parse_log_pytest":
            ours = statuses_of(call["log"], lambda text: dict(lines_of_pytest(text)))
        else:
            found = await parse_with_swebench(call["parser"], call["log"])
            ours = statuses_of(call["log"], lambda _, found=found: found)
        assert (ours or {}) == (call["statuses"] if call["found"] else {}), call


async def test_what_parsers_find(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert Counter(call["parser"] for call in fixtures["parser"]) == PARSED
    for call in fixtures["parser"]:
        parser, log = call["parser"], call["log"]
        if parser == "parse_log_pytest":
            ours = dict(lines_of_pytest(log))
        elif parser in PYTEST_PARSERS:
            ours = dict((await results_with_swebench(parser, log))(log))
        else:
            # A log here is what stands between the markers; one of them shows the shell's own line with such a marker.
            ours = await parse_with_swebench(parser, log_of(log.replace(END, "the end"), None))
        assert ours == call["statuses"], call


def test_what_is_resolved(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert fixtures["tests"]
    for call in fixtures["tests"]:
        assert call["type"] == "pass_and_fail"
        ours = report_of(call["statuses"], call["wanted"]["FAIL_TO_PASS"], call["wanted"]["PASS_TO_PASS"])
        theirs = call["report"]
        assert [list(ours.mended), list(ours.unmended)] == [theirs["FAIL_TO_PASS"][k] for k in ("success", "failure")]
        assert [list(ours.kept), list(ours.broken)] == [theirs["PASS_TO_PASS"][k] for k in ("success", "failure")]


def test_single_tests(fixtures: dict[str, list[dict[str, Any]]]) -> None:
    assert {name: len(fixtures[name]) for name in CASES} == CASES
    good = {"test_passed": GOOD, "test_maintained": (*GOOD, "SKIPPED")}
    for name, statuses in good.items():
        for call in fixtures[name]:
            assert (status_of(call["case"], call["statuses"]) in statuses) == call["result"], call
    for call in fixtures["test_failed"]:
        assert (status_of(call["case"], call["statuses"]) not in GOOD) == call["result"], call


def test_our_names_of_its_parsers() -> None:
    program = PROGRAM.split("name, way =")[0] + (
        "from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY as repos\n"
        "same = [n for n, p in PARSER_REGISTRY.items() if p is PARSER_REGISTRY['parse_log_pytest']]\n"
        "other = {r: next(n for n, q in PARSER_REGISTRY.items() if q is p) for r, p in repos.items()}\n"
        "print(json.dumps([same, sorted(PARSER_REGISTRY), other]))"
    )
    command = [sys.executable, "-I", "-B", "-c", program, "-", "-", str(INSTALLED / "lib")]
    same, every, of_repos = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert sorted(same) == sorted(PLAIN)
    assert {*PYTEST_PARSERS} <= {*every}
    assert {repo for repo, parser in of_repos.items() if parser != "parse_log_pytest"} == {*PARSERS}


def of_parser(parser: str, *wanted: str) -> Instance:
    made = generate("swe/pages/train/2")
    grading = replace(made.grading, framework=parser, fail_to_pass=wanted, pass_to_pass=())
    return replace(made, grading=grading)


async def scored(parser: str, output: str, *wanted: str, traps: tuple[str, ...] = ("t.py::test_trap",)) -> float | None:
    result = ExecResult(1, output.encode(), cut_bytes=0, timed_out=False, seconds=0.1)
    return (await verdict_of(of_parser(parser, *wanted), result, traps, 10.0)).score


@pytest.mark.parametrize(
    ("parser", "printed", "wanted"),
    [
        ("parse_log_requests", "t.py::test_a[/x/y/z.txt]", "t.py::test_a[/z.txt]"),
        ("parse_log_matplotlib", "t.py::test_a[MouseButton.LEFT]", "t.py::test_a[1]"),
        ("parse_log_sphinx", "t.py::test_a[one two]", "t.py::test_a[one two]"),
        ("parse_log_astropy", "\x1b[1mt.py::test_a\x1b[0m", "t.py::test_a"),
        ("parse_log_seaborn", "t.py::test_a", "t.py::test_a"),
    ],
)
async def test_the_ids_of_a_named_parser_decide(parser: str, printed: str, wanted: str) -> None:
    trap = "FAILED t.py::test_trap - assert 1 == 2\n"
    assert await scored(parser, f"PASSED {printed}\n{trap}", wanted) == 1.0
    assert await scored(parser, f"FAILED {printed} - assert 0\n{trap}", wanted) == 0.0
    forged = f"FAILED {printed} - assert 0\n{trap}PASSED {printed}\n"
    assert await scored(parser, forged, wanted) == 0.0, "a line that contradicts another one proves nothing"
    assert await scored(parser, f"PASSED {printed}\nFAILED t.py::test_b - no\n", wanted) == 0.0, (
        "without its traps a run is none"
    )


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
