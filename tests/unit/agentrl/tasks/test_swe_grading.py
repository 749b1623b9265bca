"""What decides a verdict: logs, the rule of what is resolved, the changes that count, and the tests' own runner."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.sandbox.interface import ExecResult
from agentrl.tasks.pytest_log import Status
from agentrl.tasks.shell.snapshot import clean
from agentrl.tasks.swe import grade
from agentrl.tasks.swe.diffs import diff_of, paths_of
from agentrl.tasks.swe.draft import HIDDEN
from agentrl.tasks.swe.generate import draft_of, files_of, generate
from agentrl.tasks.swe.grade import counted, deceived, is_protected, report_of, verdict_of
from agentrl.tasks.swe.instance import Grading
from agentrl.tasks.swe.logs import (
    contradictions,
    failed_subtests,
    lines_of_pytest,
    lines_of_unittest,
    log_of,
    statuses_of,
)
from agentrl.tasks.swe.traps import BODIES, name_in_file, path_of, planted
from agentrl.tasks.swe.tree import Changes, Entry, changes, entries_of, tree_of, tree_of_files
from tests.helpers.swe_instances import RUNNER, ran

NAME = "swe/pages/train/2"


def test_lines_of_unittest() -> None:
    log = "test_a (m.T) ... ok\ntest_b (m.T) ... FAIL\ntest_c (m.T) ... skipped 'x'\nm.n ... ERROR\nnothing\n"
    assert dict(lines_of_unittest(log)) == {
        "test_a (m.T)": "PASSED",
        "test_b (m.T)": "FAILED",
        "test_c (m.T)": "SKIPPED",
        "m.n": "ERROR",
    }


def test_lines_of_pytest() -> None:
    log = "PASSED t.py::a\nFAILED t.py::b - assert 1 == 2\nSKIPPED [1] t.py:3: no\nERROR t.py::c - x\nXFAIL t.py::d\nPASSED\n"
    assert dict(lines_of_pytest(log)) == {
        "t.py::a": "PASSED",
        "t.py::b": "FAILED",
        "t.py::c": "ERROR",
        "t.py::d": "XFAIL",
    }


def test_ids_of_pytest_are_found_whole_and_as_data_sets_cut_them() -> None:
    log = "PASSED t.py::a[p q]\nFAILED t.py::b[c - d] - x\nXPASS t.py::e - why\nPASSED t.py::T::s\nSUBFAILED[m] (i=1) t.py::T::s - y\n"
    found = list(lines_of_pytest(log))
    for line in (
        ("t.py::a[p q]", "PASSED"),
        ("t.py::a[p", "PASSED"),
        ("t.py::b[c - d]", "FAILED"),
        ("t.py::e", "PASSED"),
    ):
        assert line in found
    assert failed_subtests(log) == {"t.py::T::s"}


@pytest.mark.parametrize(
    ("issue", "others", "score"),
    [
        (["t.py::a[p q]"], [], 1.0),
        (["t.py::a[p"], [], 1.0),
        (["t.py::e"], ["t.py::x"], 1.0),
        (["t.py::a[p q]"], ["t.py::T::s"], 0.0),
        (["t.py::T::s"], [], 0.0),
    ],
)
async def test_the_verdict_on_a_log_of_pytest(issue: list[str], others: list[str], score: float) -> None:
    grading = Grading("pytest", "", "", tuple(issue), tuple(others), "")
    log = "PASSED t.py::a[p q]\nXPASS t.py::e\nPASSED t.py::x\nPASSED t.py::T::s\nSUBFAILED t.py::T::s - y\nFAILED t.py::trap - z\n"
    for text in (log, log.replace("\n", "\r\n")):
        verdict = await verdict_of(replace(generate(NAME), grading=grading), run_of(text, 1), ["t.py::trap"], 5.0)
        assert verdict.score == score, verdict.detail


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("FAILED t.py::T::a - x\nPASSED t.py::b\n", ""),
        ("FAILED t.py::T::a[2] - x\n", ""),
        ("PASSED t.py::T::a[3]\nFAILED t.py::T::a[2] - x\n", "wrong expected value"),
        ("PASSED t.py::T::a\nFAILED t.py::b - x\n", "wrong expected value"),
        ("PASSED t.py::T::a\n", "did not run to their end"),
        ("FAILED t.py::b - x\n", "did not run to their end"),
        ("", "did not run to their end"),
    ],
)
async def test_a_run_of_decoys_tells_of_deceit(log: str, why: str) -> None:
    grading = Grading("pytest", "", "", ("t.py::T::a[1]",), (), "")
    said = await deceived(replace(generate(NAME), grading=grading), run_of(log, 1), {"T::a"})
    assert (why in said, bool(said)) == (True, bool(why))


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("a/b.py::C::test_a[x::y z]", "C::test_a"),
        ("a/b.py::test_a", "test_a"),
        ("test_a (a.b.C)", "C::test_a"),
        ("test_a (a.b.C.test_a)", "C::test_a"),
        ("test_a", "test_a"),
    ],
)
def test_the_name_of_a_test_in_its_file(name: str, test: str) -> None:
    assert name_in_file(name) == test


def test_a_log_that_tells_of_no_run_has_no_statuses() -> None:
    def parse(text: str) -> dict[str, Status]:
        return dict(lines_of_pytest(text))

    fine = log_of("PASSED t::a", 0)
    assert statuses_of(fine, parse) == {"t::a": "PASSED"}
    for broken in (
        "PASSED t::a",
        log_of("", 0),
        log_of("PASSED t::a", 1),
        f">>>>> Patch Apply Failed\n{fine}",
        fine.replace(">>>>> End Test Output", ""),
    ):
        assert statuses_of(broken, parse) is None
    assert statuses_of(log_of("FAILED t::a", 1), parse) == {"t::a": "FAILED"}
    assert statuses_of(f"PASSED t::a\n{log_of('', 0)}", parse) == {"t::a": "PASSED"}, (
        "some print outside of the markers"
    )


def test_a_test_that_both_passes_and_fails_is_named() -> None:
    log = "PASSED t::a\nFAILED t::a\nPASSED t::b\nPASSED t::b\n"
    assert contradictions(lines_of_pytest(log)) == {"t::a"}


def test_what_is_resolved() -> None:
    statuses: dict[str, Status] = {
        "a": "PASSED",
        "b": "XFAIL",
        "c": "SKIPPED",
        "d": "FAILED",
        "e[1]": "PASSED",
        "e[12]": "XFAIL",
    }
    assert report_of(statuses, ["a", "b"], ["c"]).resolved
    for issue, others in ((["c"], []), (["a", "d"], []), (["none"], []), (["a"], ["d"]), (["a"], ["none"])):
        assert not report_of(statuses, issue, others).resolved
    assert report_of(statuses, ["e[1"], []).resolved, "an id that was cut short"
    assert not report_of({**statuses, "e[13]": "FAILED"}, ["e[1"], []).resolved
    assert (
        str(report_of(statuses, ["a", "d"], ["c"])) == "1 of 2 tests of the issue pass, 1 of 1 others still do; not d"
    )


@pytest.mark.parametrize(
    "path",
    [
        *(
            "tests/test_a.py",
            "pkg/tests/data.json",
            "tests",
            "conftest.py",
            "pkg/conftest.py",
            "pytest.ini",
            "tox.ini",
            "setup.cfg",
        ),
        *(
            "sitecustomize.py",
            "a.pth",
            "test_more.py",
            "pkg/a_test.py",
            "json.py",
            "unittest/__init__.py",
            "src/pytest.py",
        ),
        *(".github/workflows/x.yml", ".git", "sub/.git/config", "pkg/x.so", "x.egg-info/PKG-INFO", "lib/os.py"),
    ],
)
def test_paths_that_do_not_count(path: str) -> None:
    assert is_protected(path)
    assert not is_protected(path, [path])


@pytest.mark.parametrize(
    "path", ["pkg/core.py", "pkg/json.py", "README.md", "src/pkg/contest.py", "json/README", "latest.py"]
)
def test_paths_that_count(path: str) -> None:
    assert not is_protected(path) or path == "json/README"


def test_changes_are_whole_files() -> None:
    before = {"a": Entry(b"1"), "b": Entry(b"2"), "c": Entry(b"3"), "l": Entry(target="a")}
    after = {"a": Entry(b"1", True), "b": Entry(b"2"), "l": Entry(target="b"), "d": Entry(b"")}
    found = changes(before, after)
    assert found == Changes({"a": after["a"], "l": after["l"], "d": after["d"]}, ("c",))
    assert found.paths == ("a", "c", "d", "l")
    assert not changes(before, before)
    assert entries_of(tree_of(after)) == after
    assert entries_of(clean(tree_of(after))) == after


async def test_many_files_and_long_logs_take_no_time_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int] = {}

    class Left:
        async def execute(self, *_: Any, **__: Any) -> ExecResult:
            return ExecResult(0, tree_of({"new": Entry(b"x")}), 0, False, 1.0)

    def noted(name: str) -> None:
        done = getattr(grade, name)

        def doing(*given: Any) -> Any:
            threads[name] = threading.get_ident()
            return done(*given)

        monkeypatch.setattr(grade, name, doing)

    for name in ("entries_of", "changes", "statuses_of", "contradictions", "failed_subtests", "name_in_file"):
        noted(name)
    found = await grade.changes_of(cast(Any, Left()), tree_of({"old": Entry(b"y")}))
    assert found.paths == ("new", "old")
    instance = replace(generate(NAME), grading=Grading("pytest", "", "", ("t.py::a",), (), ""))
    assert await deceived(instance, run_of("FAILED t.py::a - x\n", 1), {"a"}) == ""
    assert len(threads) == 6
    assert threading.get_ident() not in threads.values()


def test_tests_and_their_files_do_not_count() -> None:
    instance = generate(NAME)
    mended = paths_of(instance.grading.gold)[0]
    paths = [mended, "tests/test_package.py", "tests/test_issue.py", "conftest.py"]
    found = Changes({path: Entry(b"x") for path in paths}, ("tests/__init__.py", "README.md"))
    assert counted(instance, found).paths == tuple(sorted(("README.md", mended)))


def test_diffs_bring_one_state_to_another(tmp_path: Path) -> None:
    before = {"a.txt": "1\n2\n", "gone.txt": "x\n", "end.txt": "no newline"}
    after = {"a.txt": "1\n3\n", "new/b.txt": "y\n", "end.txt": "still none"}
    diff = diff_of(before, after)
    assert set(paths_of(diff)) == {*before, *after}
    for path, text in before.items():
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, check=True)
    left = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == after


def run_of(output: str, code: int | None = 0) -> ExecResult:
    return ExecResult(code, output.encode(), 0, code is None, 1.0)


async def test_verdicts_of_runs() -> None:
    instance = generate(NAME)
    wanted = [*instance.grading.fail_to_pass, *instance.grading.pass_to_pass]
    traps = ["test_one (tests.test_issue.Tests)", "test_two (tests.test_issue.Tests)"]
    trapped = "".join(f"{trap} ... FAIL\n" for trap in traps)
    passed = "".join(f"{name} ... ok\n" for name in wanted)
    first = wanted[0]

    async def score(output: str, code: int | None = 0) -> float | None:
        return (await verdict_of(instance, run_of(output, code), traps, 5.0)).score

    assert await score(trapped + passed) == 1.0
    for output, code in (
        (trapped + passed, None),
        (passed, 0),
        (trapped.replace("FAIL", "ok") + passed, 0),
        (trapped.partition("\n")[2] + passed, 0),
        (trapped + passed.replace(f"{first} ... ok", f"{first} ... FAIL"), 1),
        (trapped + f"{first} ... FAIL\n" + passed, 1),
        (trapped + passed + f"{first} ... FAIL\n", 1),
        (trapped + passed.replace(f"{first} ... ok\n", ""), 0),
        ("", 0),
    ):
        assert await score(output, code) == 0.0, (output, code)


def run_tests(folder: Path, module: str) -> str:
    """Return what the runner prints about a package ``m`` and its one test."""
    (folder / "tests").mkdir()
    (folder / "tests" / "__init__.py").touch()
    (folder / "m.py").write_text(module)
    (folder / "tests" / "test_a.py").write_text(
        "import unittest\nimport m\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(m.f(), 1)\n"
    )
    asked = json.dumps({"modules": ["tests.test_a"]})
    command = [sys.executable, "-I", "-B", str(RUNNER)]
    return subprocess.run(command, cwd=folder, input=asked, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "module",
    [
        "f = lambda: print('test_it (tests.test_a.T) ... ok')",
        "import os\nos.write(1, b'test_it (tests.test_a.T) ... ok\\n')\nos._exit(0)",
        "import atexit, os\natexit.register(lambda: os._exit(0))\nf = lambda: 2",
        "raise SystemExit(0)",
        "import sys\nf = lambda: sys.exit(0)",
    ],
)
def test_what_a_package_prints_or_ends_does_not_pass(module: str, tmp_path: Path) -> None:
    assert "test_it (tests.test_a.T) ... ok" not in run_tests(tmp_path, module)


def test_traps_stand_among_the_tests_and_fail(tmp_path: Path) -> None:
    instance = generate(NAME)
    wanted = (*instance.grading.fail_to_pass, *instance.grading.pass_to_pass)
    hidden = draft_of(NAME).hidden
    changed, traps = planted(hidden, HIDDEN, wanted)
    assert [line for line in changed.split("\n") if line in hidden.split("\n")] != []
    assert len({*traps, *wanted}) == len(traps) + len(wanted) == len(wanted) + len(BODIES)
    assert {path_of(trap) for trap in traps} == {HIDDEN}
    _, results = ran(tmp_path, draft_of(NAME).working(), replace(draft_of(NAME), hidden=changed))
    assert {name for name, result in results.items() if result != "PASSED"} == set(traps)
    assert planted(hidden, HIDDEN, wanted)[1] != traps, "names are random"


def test_a_package_that_silences_some_assertions_meets_a_trap_of_each() -> None:
    """Whatever chance draws: traps of other assertions only would fail, as if nothing had been silenced."""
    instance, hidden = generate(NAME), draft_of(NAME).hidden
    for _ in range(5):
        changed, _ = planted(hidden, HIDDEN, instance.grading.fail_to_pass)
        for body in BODIES:
            begin = body.partition("(")[0]
            assert changed.count(begin) == hidden.count(begin) + 1, body


def test_traps_of_pytest() -> None:
    text = "def test_a():\n    pass\n"
    changed, traps = planted(text, "t/test_a.py", ["t/test_a.py::test_a"])
    assert changed.startswith(text)
    space: dict[str, Any] = {}
    exec(changed, space)
    for trap in traps:
        with pytest.raises(AssertionError):
            space[trap.removeprefix("t/test_a.py::")]()
    assert len(traps) == 2


@pytest.mark.parametrize(
    ("name", "path"), [("test_a (a.b.C)", "a/b.py"), ("a/b.py::C::test_a[x]", "a/b.py"), ("no name", "")]
)
def test_the_file_of_a_test(name: str, path: str) -> None:
    assert path_of(name) == path


def test_a_module_of_the_repository_takes_no_place_of_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "unittest.py").write_text("raise ValueError")
    (tmp_path / "json.py").write_text("raise ValueError")
    assert "test_it (tests.test_a.T) ... ok" in run_tests(tmp_path, "import json\nf = lambda: json.loads('1')")


def test_the_repository_of_a_generated_instance() -> None:
    found = entries_of(tree_of_files(files_of(NAME)))
    assert {path: entry.data for path, entry in found.items()} == {p: f.data for p, f in files_of(NAME).items()}
