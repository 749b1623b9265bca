"""The verdict of an episode, from a snapshot of the agent's working directory.

Guarantees: the agent's processes are dead before the verifier starts. The verifier runs in a fresh sandbox that has its tests read-only, and what it
left running is ended before its reward is read. Programs of the agent's that have to be tried run in a sandbox of their own, which holds no answers,
and only what they wrote goes on. Where tests run or import what the agent wrote, they run as decoys too (`Control`), and whoever
passes these scores 0. A verifier that breaks on the task as the agent found it is an ``infra_error``; one that breaks on what the agent left is the
agent's own doing.

Decoys: Control runs: a verifier's tests are run a second time as decoys (`agentrl.tasks.decoys`), in another fresh sandbox.

Guarantee: which of the two runs comes first is drawn by chance, and nothing in a sandbox tells them apart but the expected values. What passes the
first pair is run as another, so whoever cheats at random is seldom lucky. Only test files that the verifier's program certainly runs become decoys: those
whose names stand in it, or all if it calls pytest or unittest.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TypeVar

from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import Verdict
from agentrl.sandbox.interface import HOME, ExecResult, Mount, Sandbox
from agentrl.tasks.decoys import cases_of, decoy_of
from agentrl.tasks.harbor import File, Files, HarborTask
from agentrl.tasks.shell.generate import TRIAL
from agentrl.tasks.shell.snapshot import UnusableError, put, take

PAIRS = 2
PAIR_SECONDS = 120.0
Real = TypeVar("Real")
Other = TypeVar("Other")
RUNNERS = re.compile(rb"\b(pytest|unittest)\b")
TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
TESTS = "/tests"
"""Where a verifier's files are mounted."""
VERIFIER = "/tmp/verifier"
WRITTEN = f"{VERIFIER}/tests"
"""Where they are written if the provider's sandboxes have no mounts."""
REWARD = f"{VERIFIER}/reward.txt"
OWN_HOME = f"{VERIFIER}/home"
"""HOME of a verifier, so that no start file of the agent's runs in it."""
MAX_DETAIL, MOST_LOG = 500, 4 << 20
TRIAL_S = 60.0
DECEIVED = Verdict(status="task_failed", score=0.0, detail="the tests pass with wrong expected values, too")
Start = Callable[[Sequence[Mount]], Awaitable[Sandbox]]
"""Starts a sandbox with mounts."""


@dataclass(frozen=True)
class Ran:
    """How a verifier's program ended, and the content of its reward file; empty without one."""

    result: ExecResult
    reward: bytes = b""


@dataclass(frozen=True)
class Decoys:
    """A verifier's files with decoys in place of tests, and the keys of the tests that fail in them (`key_of`)."""

    tests: Files
    failing: frozenset[str]


@dataclass(frozen=True)
class Control:
    """What became of the decoys."""

    ran: Ran
    failing: frozenset[str]


def decoys_of(tests: Files, script: str, *, prints: bool = False) -> Decoys | None:
    """Return the decoys of a verifier's tests; None if there are none.

    Args:
        tests: its files, by path.
        script: the path of its program.
        prints: whether what the tests print decides, so that a program which prints results itself gets a decoy, too.
    """
    changed, failing = dict(tests), set[str]()
    for path in _certainly_run(tests, script):
        prints_itself = prints and _names(tests[script], path)
        if (text := _text(tests[path])) is not None and (found := decoy_of(text, script=prints_itself)):
            changed[path] = replace(tests[path], data=found.text.encode())
            failing |= {_key(path, name) for name in found.failing}
    return Decoys(MappingProxyType(changed), frozenset(failing)) if changed != dict(tests) else None


def keys_in(tests: Files) -> Mapping[str, bool]:
    """Return the keys of all tests of a verifier's files, and whether each may have several cases."""
    found: dict[str, bool] = {}
    for path, file in tests.items():
        if path.endswith(".py") and (text := _text(file)) is not None:
            found |= {_key(path, name): several for name, several in cases_of(text).items()}
    return found


def key_of(name: str) -> str:
    """Return the key of a test's id: ``test_a.py::test_b`` for ``../tests/test_a.py::test_b[1]``."""
    path, _, rest = name.partition("[")[0].partition("::")
    return _key(path, rest)


async def in_each_pair(judged: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Return the lowest verdict of several pairs of a run and its control, or the first that gives nothing.

    An agent that cheats in a run with probability p is rewarded with p (1 - p), to the power of `PAIRS`: at most 1 of 16. A
    pair of more than `PAIR_SECONDS` is the only one, so that right work never exceeds the time in which wrong work is judged.

    Args:
        judged: runs a pair, and returns its verdict.
    """
    verdicts: list[Verdict] = []
    until = time.monotonic() + PAIR_SECONDS
    while len(verdicts) < PAIRS and (not verdicts or time.monotonic() < until):
        verdict = await judged()
        if not verdict.score:
            return verdict
        verdicts.append(verdict)
    return min(verdicts, key=lambda verdict: verdict.score or 0.0)


async def in_any_order(
    real: Callable[[], Awaitable[Real]], control: Callable[[], Awaitable[Other]]
) -> tuple[Real, Other]:
    """Run both, one after the other, and return what they return."""
    if secrets.randbelow(2):
        first = await control()
        return await real(), first
    return await real(), await control()


def _certainly_run(tests: Files, script: str) -> list[str]:
    """Return the paths of the test files that a verifier's program runs, as far as its text says so."""
    paths = [path for path in tests if path.endswith(".py")]
    if named := [path for path in paths if _names(tests[script], path)]:
        return named
    if RUNNERS.search(tests[script].data) is None:
        return []
    return [path for path in paths if TEST_FILE.fullmatch(PurePosixPath(path).name)]


def _names(script: File, path: str) -> bool:
    """Return whether a program has the name of a file in its text."""
    return (
        re.search(rb"(?<![\w.-])" + re.escape(PurePosixPath(path).name.encode()) + rb"(?![\w.-])", script.data)
        is not None
    )


def _key(path: str, name: str) -> str:
    return f"{PurePosixPath(path).name}::{name}"


def _text(file: File) -> str | None:
    try:
        return file.data.decode()
    except UnicodeDecodeError:
        return None


async def verify(task: HarborTask, agents: Sandbox, start: Start) -> Verdict:
    """Judge what an agent did, and stop its sandbox.

    Args:
        task: that it had.
        agents: its sandbox.
        start: starts another sandbox with the same limits.

    Raises:
        InfraError: a sandbox failed.
    """
    try:
        snapshot = await take(agents)
        await agents.stop()
        if TRIAL in task.tests:
            snapshot = await _tried(task, snapshot, start)
        return await run_verifier(task, partial(_left, snapshot, start), partial(_untouched, task.environment, start))
    except UnusableError as error:
        return Verdict(status="task_failed", score=0.0, detail=str(error))


async def run_verifier(task: HarborTask, left: Start, untouched: Start) -> Verdict:
    """Run a task's verifier, and return its verdict.

    Args:
        task: whose it is.
        left: starts a sandbox that has what is to be judged.
        untouched: starts one that has what the agent found.

    Raises:
        InfraError: a sandbox failed.
        UnusableError: what is to be judged cannot be put into a sandbox.
    """
    draw = partial(decoys_of, task.tests, task.script, prints=task.judge is not None)

    async def pair() -> Verdict:
        decoys = draw()
        assert decoys is not None
        real, control = partial(_run, task, task.tests, left), partial(_run, task, decoys.tests, left)
        ran, again = await in_any_order(real, control)
        if task.judge is None and verdict_of(ran).score and _says_nothing(again):
            # Either the verifier has no other way to say no, or somebody took its reward away.
            fair = await _run(task, task.tests, untouched)
            if not _says_nothing(fair):
                return DECEIVED
        return await asyncio.to_thread(_judged, task, ran, Control(again, decoys.failing))

    if draw() is None:
        verdict = await asyncio.to_thread(_judged, task, await _run(task, task.tests, left), None)
    else:
        verdict = await in_each_pair(pair)
    if verdict.status != "infra_error" or task.judge is not None:
        return verdict
    fair = verdict_of(await _run(task, task.tests, untouched)).status != "infra_error"
    return Verdict(status="task_failed", score=0.0, detail=verdict.detail) if fair else verdict


def _judged(task: HarborTask, ran: Ran, control: Control | None) -> Verdict:
    """Return the verdict on a run and its control."""
    if task.judge is not None:
        return task.judge(task.tests, ran, control)
    verdict = verdict_of(ran)
    if verdict.score and control is not None and (verdict_of(control.ran).score or 0.0) >= verdict.score:
        return DECEIVED
    return verdict


def _says_nothing(ran: Ran) -> bool:
    """Return whether a verifier ended well, but left no reward."""
    return ran.result.exit_code == 0 and verdict_of(ran).score is None


def verdict_of(ran: Ran) -> Verdict:
    """Return the verdict of a verifier that ended, and of its reward file."""
    result, reward = ran.result, ran.reward
    detail = result.output.decode(errors="replace").strip()[-MAX_DETAIL:]
    try:
        score = float(reward)
    except ValueError:
        score = math.nan
    if result.timed_out:
        problem = "the verifier did not end in time"
    elif result.exit_code != 0:
        problem = f"the verifier ended with status {result.exit_code}"
    elif not 0 <= score <= 1:
        problem = f"the verifier's reward is {reward.decode(errors='replace').strip() or 'missing'}, not from 0 to 1"
    else:
        return Verdict(status="ok" if score > 0 else "task_failed", score=score, detail=detail)
    return Verdict(status="infra_error", detail=f"{problem}: {detail}")


async def _run(task: HarborTask, tests: Files, start: Start) -> Ran:
    """Run a verifier's program in a fresh sandbox."""
    shown = Path(await asyncio.to_thread(_laid_out, tests))
    try:
        sandbox, where = await _with_tests(tests, shown / "tests", start)
        try:
            await sandbox.write_file(f"{OWN_HOME}/.keep", b"")
            result = await sandbox.execute(
                ["bash", "-p", f"{where}/{task.script}"],
                timeout_s=task.settings.verifier.timeout_sec,
                env={**task.settings.verifier.env, **_variables(where)},
                cwd="/tmp" if task.judge is None else HOME,
                most_output=MOST_LOG,
            )
            await sandbox.end_commands()
            try:
                return Ran(result, await sandbox.read_file(REWARD, most_bytes=100))
            except InvalidError:
                return Ran(result)
        finally:
            await sandbox.stop()
    finally:
        await asyncio.to_thread(shutil.rmtree, shown, ignore_errors=True)


def _variables(where: str) -> dict[str, str]:
    return {
        **{"TASK_HOME": HOME, "REWARD_FILE": REWARD, "TRIED": "1", "TEST_DIR": where, "HOME": OWN_HOME},
        **{"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    }


async def _with_tests(tests: Files, shown: Path, start: Start) -> tuple[Sandbox, str]:
    """Start a sandbox that has a verifier's files, and say where."""
    try:
        return await start([Mount(shown, TESTS)]), TESTS
    except InvalidError as error:
        if error.code != "no_mounts":
            raise
    sandbox = await start([])
    try:
        await write_files(sandbox, tests, WRITTEN)
    except BaseException:
        await sandbox.stop()
        raise
    return sandbox, WRITTEN


def _laid_out(tests: Files) -> str:
    """Write files to a folder of the host, from which they are mounted; whoever runs in a sandbox may read them."""
    shown = tempfile.mkdtemp(prefix="agentrl-tests-")
    for path, file in tests.items():
        place = Path(shown, "tests", path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.data)
        place.chmod(file.mode | 0o444)
    for folder in (item for item in Path(shown).rglob("*") if item.is_dir()):
        folder.chmod(0o755)
    return shown


async def _tried(task: HarborTask, snapshot: bytes, start: Start) -> bytes:
    """Return what is there after the trial of the agent's program."""
    inputs = {path: file for path, file in task.tests.items() if path.startswith("trial/")}
    sandbox = await _left(snapshot, start, [])
    try:
        await sandbox.execute(["rm", "-rf", "trial"], timeout_s=TRIAL_S)
        await write_files(sandbox, inputs, HOME)
        await sandbox.execute(["bash", "-p", "-c", task.tests[TRIAL].data.decode()], timeout_s=TRIAL_S)
        return await take(sandbox)
    finally:
        await sandbox.stop()


async def _left(snapshot: bytes, start: Start, mounts: Sequence[Mount]) -> Sandbox:
    """Start a sandbox with what the agent left."""
    return await _filled(await start(mounts), partial(put, snapshot=snapshot, of_agent=True))


async def _untouched(environment: Files, start: Start, mounts: Sequence[Mount]) -> Sandbox:
    """Start a sandbox with what the agent found."""
    return await _filled(await start(mounts), partial(write_files, files=environment, folder=HOME))


async def _filled(sandbox: Sandbox, fill: Callable[[Sandbox], Awaitable[None]]) -> Sandbox:
    try:
        await fill(sandbox)
    except BaseException:
        await sandbox.stop()
        raise
    return sandbox


async def write_files(sandbox: Sandbox, files: Files, folder: str) -> None:
    """Write files of a task.

    Raises:
        InfraError: one does not fit, or the sandbox is gone.
    """
    for path, file in files.items():
        try:
            await sandbox.write_file(f"{folder}/{path}", file.data, mode=file.mode)
        except InvalidError as error:
            raise InfraError(f"the verifier's {path} was not written: {error}", code="verifier_failed") from error
