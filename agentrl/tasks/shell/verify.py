"""The verdict of an episode, from a snapshot of the agent's working directory.

Guarantees: the agent's processes are dead before the verifier starts. The verifier runs in a fresh sandbox; programs of the
agent's that have to be tried run in one of their own, which holds no answers, and only what they wrote goes on. A verifier
that breaks is an ``infra_error``, never a reward.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import Verdict
from agentrl.sandbox.interface import HOME, ExecResult, Sandbox
from agentrl.tasks.harbor import TEST, Files, HarborTask
from agentrl.tasks.shell.generate import TRIAL
from agentrl.tasks.shell.snapshot import UnusableError, put, take

VERIFIER = "/tmp/verifier"
REWARD = f"{VERIFIER}/reward.txt"
MOST_DETAIL = 500
TRIAL_S = 60.0
Start = Callable[[], Awaitable[Sandbox]]


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
        async with _fresh(start, snapshot) as sandbox:
            return await run_verifier(task, sandbox)
    except UnusableError as error:
        return Verdict(status="task_failed", score=0.0, detail=str(error))


async def run_verifier(task: HarborTask, sandbox: Sandbox) -> Verdict:
    """Run a task's verifier in a sandbox that has what is to be judged, and return its verdict.

    Raises:
        InfraError: the sandbox failed.
    """
    await write_files(sandbox, task.tests, f"{VERIFIER}/tests")
    result = await sandbox.execute(
        ["bash", "-p", f"{VERIFIER}/tests/{TEST}"],
        timeout_s=task.settings.verifier.timeout_sec,
        env={**task.settings.verifier.env, "TASK_HOME": HOME, "REWARD_FILE": REWARD, "TRIED": "1"},
        cwd="/tmp",
    )
    try:
        reward = await sandbox.read_file(REWARD, most_bytes=100)
    except InvalidError:
        reward = b""
    return verdict_of(result, reward)


def verdict_of(result: ExecResult, reward: bytes) -> Verdict:
    """Return the verdict of a verifier that ended, and of its reward file; empty if there is none."""
    detail = result.output.decode(errors="replace").strip()[-MOST_DETAIL:]
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


async def _tried(task: HarborTask, snapshot: bytes, start: Start) -> bytes:
    """Return what is there after the trial of the agent's program."""
    inputs = {path: file for path, file in task.tests.items() if path.startswith("trial/")}
    async with _fresh(start, snapshot) as sandbox:
        await sandbox.execute(["rm", "-rf", "trial"], timeout_s=TRIAL_S)
        await write_files(sandbox, inputs, HOME)
        await sandbox.execute(["bash", "-p", "-c", task.tests[TRIAL].data.decode()], timeout_s=TRIAL_S)
        return await take(sandbox)


@asynccontextmanager
async def _fresh(start: Start, snapshot: bytes) -> AsyncIterator[Sandbox]:
    sandbox = await start()
    try:
        await put(sandbox, snapshot, agents=True)
        yield sandbox
    finally:
        await sandbox.stop()


async def write_files(sandbox: Sandbox, files: Files, folder: str) -> None:
    """Write a verifier's files.

    Raises:
        InfraError: one does not fit, or the sandbox is gone.
    """
    for path, file in files.items():
        try:
            await sandbox.write_file(f"{folder}/{path}", file.data, mode=file.mode)
        except InvalidError as error:
            raise InfraError(f"the verifier's {path} was not written: {error}", code="verifier_failed") from error
