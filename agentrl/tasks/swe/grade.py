"""The verdict on a repository that an agent worked on.

1. What the agent left is packed as data, and its sandbox is stopped with all its processes.
2. A fresh sandbox gets the repository as it was, and the tests. Of the agent's changes it gets those that `is_protected`
   lets through and that the tests do not bring themselves.
3. The tests run there, and among them traps (`agentrl.tasks.swe.traps`), each of which has to fail.
4. In another fresh sandbox the tests of the issue run as decoys (`agentrl.tasks.decoys`), which have to fail as well.

Guarantees: no program of the agent's runs where the tests are but the package under test. The solution is in no sandbox. A change that is
empty, too large or unreadable scores 0 without a run. A repository or a test patch that does not fit is an ``infra_error``, never a reward.

Of a change only what `is_protected` does not name goes on. Dropped are tests and what configures them, start files of Python, modules that would take the place of the standard library's or the test
tools', and settings of CI. A path that the known solution changes counts, whatever its name. Pure.

Resolved, as SWE-bench says (`report_of`). A test that has to pass now (``FAIL_TO_PASS``) passed, or failed as it is expected to. Of one that passed before (``PASS_TO_PASS``), skipping is no
harm. A missing test has failed. Ids that data sets cut within their brackets stand for all tests that begin so, if these agree. Pure.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import Verdict
from agentrl.sandbox.interface import HOME, ExecResult, Mount, Sandbox
from agentrl.tasks.decoys import decoy_of
from agentrl.tasks.pytest_log import BAD, Status
from agentrl.tasks.shell.snapshot import UnusableError, put, take
from agentrl.tasks.shell.verify import Start, in_any_order, in_each_pair, run_verifier
from agentrl.tasks.swe.diffs import paths_of
from agentrl.tasks.swe.external import parse_with_swebench, results_with_swebench
from agentrl.tasks.swe.instance import Grading, Instance
from agentrl.tasks.swe.logs import LINES, Lines, Statuses, contradictions, failed_subtests, log_of, statuses_of
from agentrl.tasks.swe.traps import name_in_file, path_of, planted
from agentrl.tasks.swe.tree import MAX_TREE, UNTAKEN, Changes, changes, entries_of, tree_of

TEST_FOLDERS = ("test", "tests", "testing", ".github", ".circleci", ".git")
TEST_FILES = (
    *(
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "noxfile.py",
        "setup.cfg",
        "pyproject.toml",
        "runtests.py",
    ),
    *("sitecustomize.py", "usercustomize.py", ".coveragerc", ".gitattributes", ".gitmodules"),
)
TEST_TOOLS = frozenset(("pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "hypothesis", "coverage", "xdist"))
ENDINGS = (".pth", ".pyc", ".so", ".egg-link")
GOOD = ("PASSED", "XFAIL")
GIT_S, MOST_LOG = 60.0, 4 << 20
MAX_CHANGED = 4 << 20
"""Most bytes of an agent's changes."""
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*")
FORGED: Status = "ERROR"
"""Of a test that the log calls both passed and failed."""
FAILED: Status = "FAILED"
QUIET = {"HOME": "/tmp", "PYTHONNOUSERSITE": "1"}
"""So that no start file of the agent's runs with the tests."""
_IDENTITY = {
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "start"), ("EMAIL", "start@localhost"), ("DATE", "2020-01-01T00:00:00Z"))
    },
    **{"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_DEFAULT_HASH": "sha1"},
}


def is_protected(path: str, solution: Collection[str] = ()) -> bool:
    """Return whether a change of a path is dropped.

    Args:
        path: below the repository.
        solution: paths that the known solution changes.
    """
    if path in solution:
        return False
    name = PurePosixPath(path)
    return (
        any(part in TEST_FOLDERS for part in name.parts)
        or name.name in TEST_FILES
        or name.name.startswith("test_")
        or name.stem.endswith(("_test", "_tests"))
        or name.suffix in ENDINGS
        or any(part.endswith((".dist-info", ".egg-info")) for part in name.parts[:-1])
        or _shadows(name)
    )


def _shadows(path: PurePosixPath) -> bool:
    """Return whether a path is a top-level module that has the name of one that the tests need."""
    for root in ("src", "lib"):
        if path.is_relative_to(root) and len(path.parts) > 1:
            path = path.relative_to(root)
            break
    top = next(iter(path.parts)) if len(path.parts) > 1 else path.stem if path.suffix == ".py" else ""
    return top in sys.stdlib_module_names or top in TEST_TOOLS


@dataclass(frozen=True)
class Report:
    """The tests that are as they should be, and the others.

    Attributes:
        mended: of ``FAIL_TO_PASS``, those that pass.
        unmended: the others.
        kept: of ``PASS_TO_PASS``, those that are not worse.
        broken: the others.
    """

    mended: tuple[str, ...]
    unmended: tuple[str, ...]
    kept: tuple[str, ...]
    broken: tuple[str, ...]

    @property
    def resolved(self) -> bool:
        """Whether nothing is missing and nothing broken."""
        return not self.unmended and not self.broken

    def __str__(self) -> str:
        """Say in words what is missing, with a few names."""
        wanted, others = len(self.mended) + len(self.unmended), len(self.kept) + len(self.broken)
        text = f"{len(self.mended)} of {wanted} tests of the issue pass, {len(self.kept)} of {others} others still do"
        names = [*self.unmended, *self.broken][:3]
        return f"{text}; not {', '.join(names)}" if names else text


def report_of(statuses: Statuses, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Report:
    """Return what became of the tests."""

    def sorted_out(names: Sequence[str], good: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        fine = [name for name in names if status_of(name, statuses) in good]
        return tuple(fine), tuple(name for name in names if name not in fine)

    mended, unmended = sorted_out(fail_to_pass, GOOD)
    kept, broken = sorted_out(pass_to_pass, (*GOOD, "SKIPPED"))
    return Report(mended, unmended, kept, broken)


def status_of(name: str, statuses: Statuses) -> str | None:
    """Return the status of a test, None if it did not run."""
    if name in statuses or name.count("[") <= name.count("]"):
        return statuses.get(name)
    found = [status for statuse, status in statuses.items() if statuse.startswith(name)]
    return found[0] if found and len({status in GOOD for status in found}) == 1 else None


@dataclass(frozen=True)
class Graded:
    """A verdict, and the diff of the changes that were judged; empty if there are none."""

    verdict: Verdict
    patch: str = ""


async def changes_of(sandbox: Sandbox, tree: bytes) -> Changes:
    """Return what an agent changed in its working directory.

    Raises:
        UnusableError: it left too much.
        InfraError: the sandbox is gone.
    """
    left = await take(sandbox, most_bytes=MAX_TREE, without=UNTAKEN)
    found = await asyncio.to_thread(lambda: changes(entries_of(tree), entries_of(left)))
    if sum(len(entry.data) for entry in found.written.values()) > MAX_CHANGED:
        raise UnusableError(f"the changes have more than {MAX_CHANGED} bytes")
    return found


def counted(instance: Instance, found: Changes) -> Changes:
    """Return the changes that count."""
    solution, tests = paths_of(instance.grading.gold), paths_of(instance.grading.test_patch)
    return found.only({path for path in found.paths if path not in tests and not is_protected(path, solution)})


async def grade(
    instance: Instance, tree: bytes, found: Changes, start: Start, seconds: float, *, always: bool = False
) -> Graded:
    """Judge changes.

    Args:
        instance: that was worked on.
        tree: the repository as it was.
        found: what the agent changed.
        start: starts a sandbox.
        seconds: most time of the tests.
        always: whether the tests run even if nothing that counts has changed.

    Raises:
        InfraError: a sandbox failed, or the test patch does not fit the repository.
    """
    fine = await asyncio.to_thread(counted, instance, found)
    if not fine and not always:
        why = "only tests, or files that decide how they run, have changed" if found else "nothing has changed"
        return Graded(Verdict(status="task_failed", score=0.0, detail=why))
    patches: list[str] = []

    async def ready(changes: Changes, mounts: Sequence[Mount] = (), *, decoys: bool = False) -> _Ready:
        """Start a sandbox with the repository, its tests and some changes."""
        sandbox = await start(mounts)
        try:
            await put(sandbox, tree)
            # Before the changes, which therefore cannot make this fail.
            if instance.grading.test_patch:
                await apply(sandbox, instance.grading.test_patch, "the test patch")
            failing = await _set_decoys(sandbox, instance) if decoys else frozenset[str]()
            traps = await _set_traps(sandbox, instance)
            patches.append(await _changed(sandbox, changes))
        except BaseException:
            await sandbox.stop()
            raise
        return _Ready(sandbox, traps, failing)

    async def holding(changes: Changes, mounts: Sequence[Mount]) -> Sandbox:
        return (await ready(changes, mounts)).sandbox

    async def real() -> Verdict:
        begun = await ready(fine)
        try:
            result = await _run(begun.sandbox, instance, seconds)
        finally:
            await begun.sandbox.stop()
        return await verdict_of(instance, result, begun.traps, seconds)

    async def control() -> str:
        begun = await ready(fine, decoys=True)
        try:
            if not begun.failing:
                return ""
            result = await _run(begun.sandbox, instance, seconds)
        finally:
            await begun.sandbox.stop()
        return await deceived(instance, result, begun.failing)

    async def pair() -> Verdict:
        verdict, why = await in_any_order(real, control)
        return Verdict(status="task_failed", score=0.0, detail=why) if verdict.score and why else verdict

    try:
        if instance.task is not None:
            verdict = await run_verifier(instance.task, partial(holding, fine), partial(holding, Changes({}, ())))
        else:
            verdict = await (pair() if instance.grading.runs else in_each_pair(pair))
    except UnusableError as error:
        return Graded(Verdict(status="task_failed", score=0.0, detail=str(error)))
    return Graded(verdict, patches[0])


@dataclass(frozen=True)
class _Ready:
    """A sandbox in which the tests can run, the traps among them, and those that have to fail because they are decoys."""

    sandbox: Sandbox
    traps: Sequence[str]
    failing: frozenset[str]


async def verdict_of(instance: Instance, result: ExecResult, traps: Sequence[str], seconds: float) -> Verdict:
    """Return the verdict of a run of the tests."""
    grading = instance.grading
    if result.timed_out:
        return Verdict(status="task_failed", score=0.0, detail=f"the tests did not end within {seconds:g} s")
    statuses = await _statuses(grading, result)
    if statuses is None:
        return Verdict(status="task_failed", score=0.0, detail="the log of the tests tells of no run")
    if grading.runs and (not traps or not all(statuses.get(trap) in BAD for trap in traps)):
        return Verdict(status="task_failed", score=0.0, detail="the tests did not run to their end as they are")
    report = report_of(statuses, grading.fail_to_pass, grading.pass_to_pass)
    return Verdict(
        status="ok" if report.resolved else "task_failed", score=float(report.resolved), detail=str(report)[:500]
    )


async def deceived(instance: Instance, result: ExecResult, failing: Collection[str]) -> str:
    """Return why a run of the decoys shows that the tests were deceived; empty if it does not.

    Args:
        instance: whose tests ran.
        result: of the run.
        failing: the tests that fail with every solution, such as ``Class::test_a``.
    """
    statuses = await _statuses(instance.grading, result) or {}
    trapped = await asyncio.to_thread(
        lambda: {name: status for name, status in statuses.items() if name_in_file(name) in failing}
    )
    if "PASSED" in trapped.values():
        return "a test of the issue passes with a wrong expected value, too"
    return "" if any(status in BAD for status in trapped.values()) else "the tests did not run to their end as they are"


async def _statuses(grading: Grading, result: ExecResult) -> Statuses | None:
    """Return what the log of a run says of each test; None if it tells of no run."""
    log = log_of(result.output.decode(errors="replace").replace("\r\n", "\n"), result.exit_code)
    lines = LINES.get(grading.framework) if grading.runs else None
    if lines is None and grading.runs:
        lines = await results_with_swebench(grading.framework, log)
    parsed = {} if lines is not None else await parse_with_swebench(grading.framework, log)
    return await asyncio.to_thread(_read, grading, log, lines, parsed)


def _read(grading: Grading, log: str, lines: Lines | None, parsed: Statuses) -> Statuses | None:
    """Return what a log says of each test, by its lines, or else by what another parser found; None if it tells of no run."""
    found = statuses_of(log, lambda text: parsed if lines is None else dict(lines(text)))
    if found is None:
        return None
    wanted = {*grading.fail_to_pass, *grading.pass_to_pass}
    forged = contradictions(lines(log)) & wanted if lines is not None else set[str]()
    return {
        **found,
        **dict.fromkeys(failed_subtests(log).intersection(found), FAILED),
        **dict.fromkeys(forged, FORGED),
    }


async def apply(sandbox: Sandbox, diff: str, what: str, *, reverse: bool = False) -> None:
    """Apply a diff of the operator's in the working directory.

    Raises:
        InfraError: it does not fit.
    """
    argv = [*GIT, "apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), "-"]
    result = await sandbox.execute(argv, timeout_s=GIT_S, stdin=diff.encode())
    if result.exit_code != 0:
        said = result.output.decode(errors="replace").strip()[-200:]
        raise InfraError(f"{what} does not fit the repository: {said}", code="bad_instance")


async def begin_git(sandbox: Sandbox) -> None:
    """Make the working directory a git repository with one commit, which is all the history that there is.

    Raises:
        InfraError: git is missing.
    """
    line = "git init -q . && git add -A -f . && git commit -q --no-gpg-sign -m start"
    result = await sandbox.execute(["bash", "-p", "-c", line], timeout_s=GIT_S, env=_IDENTITY)
    if result.exit_code != 0:
        raise InfraError(f"git failed: {result.output.decode(errors='replace')[-200:]}", code="no_git")


async def _changed(sandbox: Sandbox, fine: Changes) -> str:
    """Carry changes out in a fresh sandbox; return them as a diff.

    Raises:
        UnusableError: they cannot be.
        InfraError: the sandbox failed.
    """
    if not fine:
        return ""
    await begin_git(sandbox)
    # Nothing below a link that is new, and no folder in the way of a file.
    gone = [*fine.removed, *fine.written]
    await sandbox.execute(
        ["xargs", "-0", "rm", "-rf", "--"], timeout_s=GIT_S, stdin="\0".join(gone).encode(errors="surrogateescape")
    )
    await put(sandbox, await asyncio.to_thread(tree_of, fine.written), of_agent=True)
    line = "git add -A -f . && git diff --cached --binary --no-ext-diff --no-textconv --no-color"
    result = await sandbox.execute(
        ["bash", "-p", "-c", line], timeout_s=GIT_S, env=_IDENTITY, most_output=2 * MAX_CHANGED
    )
    await sandbox.execute(["rm", "-rf", ".git"], timeout_s=GIT_S)
    return result.output.decode(errors="replace") if result.exit_code == 0 and not result.cut_bytes else ""


async def _set_traps(sandbox: Sandbox, instance: Instance) -> list[str]:
    """Plant traps in the files of the tests of the issue; return their ids. The command of another framework gets none.

    Raises:
        InfraError: such a file is not there, or is not Python.
    """
    grading = instance.grading
    if not grading.runs:
        return []
    traps: list[str] = []
    for path in dict.fromkeys(filter(None, map(path_of, grading.fail_to_pass))):
        try:
            text = (await sandbox.read_file(f"{HOME}/{path}")).decode()
            changed, ids = planted(text, path, (*grading.fail_to_pass, *grading.pass_to_pass))
        except (InvalidError, ValueError, SyntaxError) as error:
            raise InfraError(
                f"{path}, which has tests of the issue, cannot be read: {error}", code="bad_instance"
            ) from error
        await sandbox.write_file(f"{HOME}/{path}", changed.encode())
        traps += ids
    return traps


async def _set_decoys(sandbox: Sandbox, instance: Instance) -> frozenset[str]:
    """Turn the tests of the issue into decoys; return those that fail with every solution.

    Raises:
        InfraError: a sandbox failed.
    """
    grading = instance.grading
    wanted = {name_in_file(name) for name in grading.fail_to_pass}
    paths = [*filter(None, map(path_of, grading.fail_to_pass)), *paths_of(grading.test_patch)]
    failing: set[str] = set()
    for path in dict.fromkeys(path for path in paths if path.endswith(".py")):
        try:
            text = (await sandbox.read_file(f"{HOME}/{path}")).decode()
        except (InvalidError, ValueError):
            continue
        if decoy := decoy_of(text, {name.rpartition("::")[2] for name in wanted}):
            await sandbox.write_file(f"{HOME}/{path}", decoy.text.encode())
            failing |= decoy.failing
    return frozenset(failing & wanted)


async def _run(sandbox: Sandbox, instance: Instance, seconds: float) -> ExecResult:
    """Run the tests."""
    grading = instance.grading
    files = list(dict.fromkeys(filter(None, map(path_of, (*grading.fail_to_pass, *grading.pass_to_pass)))))
    if grading.runs == "unittest":
        asked = json.dumps({"modules": [path.removesuffix(".py").replace("/", ".") for path in files]})
        argv = ["python3", "-I", "-B", "-c", _runner()]
        return await sandbox.execute(argv, timeout_s=seconds, stdin=asked.encode(), env=QUIET, most_output=MOST_LOG)
    if grading.runs == "pytest":
        options = ["-rA", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts=", "--color=no", "-q"]
        argv = ["python3", "-B", "-m", "pytest", *options, *files]
        return await sandbox.execute(argv, timeout_s=seconds, env=QUIET, most_output=MOST_LOG)
    argv = ["bash", "-p", "-c", grading.command]
    return await sandbox.execute(argv, timeout_s=seconds, env=QUIET, most_output=MOST_LOG)


@cache
def _runner() -> str:
    return (Path(__file__).parent / "runner.py").read_text()
