"""Checks instances before anyone trains on them: the solution scores 1, and without any change the tests of the issue fail.

Guarantee: the solution is applied in a sandbox of its own, and what it changed is judged exactly as an agent's changes are.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.exceptions import AgentError, InfraError
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.interface import HOME, Mount, Provider, Sandbox, SandboxSpec
from agentrl.sandbox.providers import SandboxSettings, provider
from agentrl.tasks.harbor import SOLUTION
from agentrl.tasks.shell.snapshot import put
from agentrl.tasks.shell.verify import Start, write_files
from agentrl.tasks.swe.environment import image_spec
from agentrl.tasks.swe.grade import apply, changes_of, grade
from agentrl.tasks.swe.instance import Instance
from agentrl.tasks.swe.repository import visible_tree, whole_tree
from agentrl.tasks.swe.source import InstanceSource
from agentrl.tasks.swe.tree import Changes
from groundwork.exceptions import ConfigError

FOLDER = "/tmp/solution"
"""Where a task folder's solution lies."""


async def problem_of(source: InstanceSource, instance: Instance, provider: Provider, processes: Processes) -> str:
    """Return what is wrong with an instance; empty if nothing is.

    Raises:
        AgentError: a sandbox failed, or the instance cannot be set up.
    """
    in_image = provider.name != "bubblewrap" and instance.image is not None
    image = instance.image if in_image else None
    bare = SandboxSpec(limits=source.limits(instance.id), env=instance.variables, image=image)
    started: list[Sandbox] = []

    def starting(spec: SandboxSpec) -> Start:
        async def start(mounts: Sequence[Mount]) -> Sandbox:
            started.append(await provider.start(replace(spec, mounts=[*spec.mounts, *mounts]), processes))
            return started[-1]

        return start

    start = starting(image_spec(bare) if in_image else bare)
    try:
        whole = await whole_tree(instance, source.folder, starting(bare), in_image=in_image)
        visible = await asyncio.to_thread(visible_tree, instance, whole)
        sandbox = await start([])
        await put(sandbox, visible)
        await solve(sandbox, instance)
        solved = await grade(instance, whole, await changes_of(sandbox, visible), start, source.test_s)
        if solved.verdict.score != 1.0:
            return f"the solution scores 0: {solved.verdict.detail}"
        empty = await grade(instance, whole, Changes({}, ()), start, source.test_s, always=True)
        return "" if empty.verdict.score == 0.0 else "the tests of the issue pass without a solution"
    finally:
        for item in started:
            await item.stop()


async def solve(sandbox: Sandbox, instance: Instance) -> None:
    """Apply the solution in a sandbox with the repository.

    Raises:
        InfraError: there is none, or it fails.
    """
    if instance.task is None:
        return await apply(sandbox, instance.grading.gold, "the solution")
    if not instance.task.solution:
        raise InfraError(f"{instance.id} has no solution/{SOLUTION} to check it with", code="bad_instance")
    await write_files(sandbox, instance.task.solution, FOLDER)
    seconds, env = instance.task.settings.agent.timeout_sec, {"TASK_HOME": HOME}
    result = await sandbox.execute(["bash", f"{FOLDER}/{SOLUTION}"], timeout_s=seconds, env=env)
    if result.exit_code != 0:
        said = result.output.decode(errors="replace").strip()[-200:]
        raise InfraError(f"the solution of {instance.id} fails: {said}", code="bad_instance")


async def checked(source: InstanceSource, names: Sequence[str], parallel: int, sandbox: str, image: str | None) -> int:
    """Check instances, print a line for each that is wrong, and return how a command ends: 0, or 1 if one is wrong.

    Raises:
        ConfigError: there is no such instance, the provider's settings are wrong, or ``parallel`` is below 1.
        InfraError: there is no sandbox on this machine.
    """
    if parallel < 1:
        raise ConfigError(f"--parallel {parallel} would check nothing; use a number from 1")
    instances = [source.load(name) for name in names]
    made = provider(SandboxSettings(sandbox, image))
    await made.check()
    places, wrong = asyncio.Semaphore(parallel), 0
    with tempfile.TemporaryDirectory(prefix="swe-check-") as folder:
        ledger = ProcessLedger(Path(folder) / "processes.sqlite")
        processes = Processes(ledger)

        async def one(instance: Instance) -> tuple[str, str]:
            async with places:
                try:
                    return instance.id, await problem_of(source, instance, made, processes)
                except (AgentError, ConfigError) as error:
                    return instance.id, str(error)

        try:
            for number, coming in enumerate(asyncio.as_completed([one(item) for item in instances]), 1):
                name, problem = await coming
                if problem:
                    wrong += 1
                    print(f"{name}: {problem}", flush=True)
                if sys.stderr.isatty():
                    print(f"\r{number} of {len(instances)} checked", end="", file=sys.stderr, flush=True)
        finally:
            await processes.end()
            ledger.close()
    print(f"{len(instances) - wrong} of {len(instances)} instances are as they should be")
    return int(wrong > 0)
