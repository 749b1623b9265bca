"""What pytest's summary says, and what a terminal-bench task scores by it."""

from __future__ import annotations

import time

import pytest

from agentrl.sandbox.interface import ExecResult
from agentrl.tasks.harbor import File
from agentrl.tasks.pytest_log import results
from agentrl.tasks.shell.verify import Control, Ran
from agentrl.tasks.terminal.tbench import judge, share

HEADER = "=== short test summary info ===\n"


@pytest.mark.parametrize(
    ("line", "name", "status"),
    [
        ("PASSED t.py::a", "t.py::a", "PASSED"),
        ("PASSED t.py::a[p q]", "t.py::a[p q]", "PASSED"),
        ("PASSED t.py::a[b - c]", "t.py::a[b - c]", "PASSED"),
        ("PASSED t.py::a\r", "t.py::a", "PASSED"),
        ("\x1b[32mPASSED\x1b[0m t.py::a", "t.py::a", "PASSED"),
        ("FAILED t.py::a - assert 1 - 1 == 2", "t.py::a", "FAILED"),
        ("FAILED t.py::a[b - c] - assert x[0] - 1", "t.py::a[b - c]", "FAILED"),
        ("FAILED t.py::a[b - c]", "t.py::a[b - c]", "FAILED"),
        ("FAILED t.py::a - [XPASS(strict)] why - so", "t.py::a", "FAILED"),
        ("ERROR t.py::a - ValueError", "t.py::a", "ERROR"),
        ("ERROR t.py - ImportError", "t.py", "ERROR"),
        ("XFAIL t.py::a - why - so", "t.py::a", "XFAIL"),
        ("XPASS t.py::a - why - so", "t.py::a", "PASSED"),
        ("SKIPPED t.py::a - no", "t.py::a", "SKIPPED"),
        ("SUBFAILED t.py::T::a - assert 0", "t.py::T::a", "FAILED"),
        ("SUBFAILED[m - n] (i=1) t.py::T::a[b - c] - assert 0", "t.py::T::a[b - c]", "FAILED"),
        ("SUBFAILED(i=1, j='x y') t.py::T::a - assert 0", "t.py::T::a", "FAILED"),
        ("SUBFAIL t.py::T::a - assert 0", "t.py::T::a", "FAILED"),
    ],
)
def test_a_line_of_the_summary(line: str, name: str, status: str) -> None:
    assert list(results(f"other\n{line}\n1 passed")) == [(name, status)]


@pytest.mark.parametrize(
    "line",
    [
        "SKIPPED [1] t.py:3: no",
        "SUBSKIPPED [1] t.py:7: x",
        "SUBPASSED t.py::a",
        "PASSED",
        "t.py::a PASSED",
        " PASSED a",
    ],
)
def test_a_line_of_something_else(line: str) -> None:
    assert list(results(line)) == []


@pytest.mark.parametrize(
    "line",
    [
        f"SUBFAILED[{'](' * 9000}{') ' * 9000}x",
        f"SUBFAILED[{']' * 40_000} x",
        f"FAILED [{' - ' * 200_000}",
        f"FAILED {'[ - ' * 200_000}",
        f"PASSED {'x ' * 200_000}\r",
    ],
    ids=lambda line: line[:14],
)
def test_a_line_that_a_program_made_long_takes_no_long_time(line: str) -> None:
    begun = time.process_time()
    assert len(list(results(line))) == 1
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    ("lines", "status", "wanted"),
    [
        ("PASSED T::sub / SUBFAILED T::sub - x / PASSED a / FAILED b", 1, 1 / 3),
        ("SUBFAILED T::sub - x / PASSED T::sub / PASSED a / FAILED b", 1, 1 / 3),
        ("PASSED t[a - b] / PASSED ok / FAILED t[a - c] - x", 1, 2 / 3),
        ("PASSED t[a - b] / PASSED t[a - c] / PASSED t[a - d] / FAILED t[a - e]", 1, 3 / 4),
        ("PASSED a / ERROR a - teardown / PASSED b", 1, 1 / 2),
        ("XPASS a - why / XFAIL b - why", 0, 1 / 2),
        ("PASSED a / SKIPPED [1] t.py:1: no", 0, 1.0),
        ("PASSED a", 1, 0.0),
        ("", 0, 0.0),
    ],
)
def test_the_share_that_passed(lines: str, status: int, wanted: float) -> None:
    log = HEADER + lines.replace(" / ", "\n") + "\n"
    assert share(log, status) == wanted
    assert share(log.replace("\n", "\r\n"), status) == wanted


TESTS = {
    "test_a.py": File(b"def test_a(): assert f(1) == 2\ndef test_b(): pass\n@x\ndef test_c(): assert f(2) == 4\n"),
    "run-tests.sh": File(b"pytest"),
}
FAILING = frozenset({"test_a.py::test_a", "test_a.py::test_c"})
ALL = ("a", "b", "c[1]", "c[2]")


def ran(passed: tuple[str, ...], failed: tuple[str, ...] = (), *, code: int | None = None) -> Ran:
    lines = [f"PASSED ../tests/test_a.py::test_{each}" for each in passed]
    lines += [f"FAILED ../tests/test_a.py::test_{each} - x" for each in failed]
    code = int(bool(failed)) if code is None else code
    return Ran(ExecResult(code, (HEADER + "\n".join(lines) + "\n").encode(), 0, False, 1.0))


@pytest.mark.parametrize(
    ("real", "control", "score"),
    [
        (ran(ALL), ran(("b",), ("a", "c[1]", "c[3]")), 1.0),
        (ran(ALL), ran((), ("a",)), 1.0),  # a run that stops at the first failure
        (ran(("b", "a"), ("c[1]", "c[2]")), ran(("b",), ("a", "c[1]", "c[2]")), 0.5),
        (ran(("b",), ("a",)), ran(("b",), ("a",)), 0.5),
        (ran(ALL), ran(ALL), 0.0),
        (ran(ALL), ran(("b", "c[5]"), ("a", "c[1]")), 0.0),  # one of the cases
        (ran(ALL), ran(("b",)), 0.0),  # failures are left out
        (ran(ALL), Ran(ExecResult(None, b"", 0, True, 9.0)), 0.0),
        (ran((*ALL, *map(str, range(996)))), ran(("b",), ("a", "c[1]")), 0.004),  # tests that are in no file
        (
            ran(("b", *(f"b[{n}]" for n in range(99))), ("a",)),
            ran(("b",), ("a",)),
            1 / 101,
        ),  # cases of a test that has one
        (ran(("x", "y"), ("z",)), ran(("x", "y"), ("z",)), 0.0),  # none of the tests
    ],
)
def test_the_control_of_a_run(real: Ran, control: Ran, score: float) -> None:
    verdict = judge(TESTS, real, Control(control, FAILING))
    assert (verdict.score, verdict.status) == (pytest.approx(score), "ok" if score else "task_failed")


def test_a_program_that_prints_is_controlled_by_its_score() -> None:
    tests, right = {"t.py": File(b""), "run-tests.sh": File(b"python3 t.py")}, ran(("a", "b"))
    assert judge(tests, right, Control(ran(("b",), ("a",)), frozenset())).score == 1.0
    assert judge(tests, right, Control(Ran(ExecResult(1, b"Traceback", 0, False, 1.0)), frozenset())).score == 1.0
    assert judge(tests, right, Control(right, frozenset())).score == 0.0
    assert judge(tests, right, None).score == 1.0


def test_tests_that_do_not_end_are_the_agents_failure() -> None:
    verdict = judge(TESTS, Ran(ExecResult(None, b"", 0, True, 9.0)), None)
    assert (verdict.status, verdict.score) == ("task_failed", 0.0)
