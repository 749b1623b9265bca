"""``python -m agentrl.tasks.swe``: list, check, export, import and compare instances.

Guarantees: errors are one line, with exit status 2. Nothing is fetched from a network, and an export writes new folders only. A
check runs the solution in sandboxes of its own, never in that of an agent.

A check, before anyone trains on an instance, wants that the solution scores 1 and that without any change the tests of the issue
fail. What the solution changed is judged exactly as an agent's changes are.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.exceptions import AgentError, InfraError
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.interface import HOME, Mount, Provider, Sandbox, SandboxSpec
from agentrl.sandbox.providers import NAMES, SandboxSettings, provider
from agentrl.tasks.harbor import SOLUTION, write_task
from agentrl.tasks.names import SPLITS
from agentrl.tasks.shell.generate import task_toml
from agentrl.tasks.shell.snapshot import put
from agentrl.tasks.shell.verify import Start, write_files
from agentrl.tasks.swe.contamination import overlaps
from agentrl.tasks.swe.environment import image_spec
from agentrl.tasks.swe.folders import folder_of
from agentrl.tasks.swe.grade import apply, changes_of, grade
from agentrl.tasks.swe.importers import IMPORTERS, imported
from agentrl.tasks.swe.instance import Instance
from agentrl.tasks.swe.repository import visible_tree, whole_tree
from agentrl.tasks.swe.rows import write_instances, write_prompts
from agentrl.tasks.swe.source import REFUSED, WHY_REFUSED, InstanceSource, read_rows
from agentrl.tasks.swe.tree import Changes
from groundwork.command_line import CommandLine
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


PROG = "python -m agentrl.tasks.swe"


def data_set(name: str) -> str:
    """Return the name of a data set.

    Raises:
        argparse.ArgumentTypeError: it cannot be imported.
    """
    if name == REFUSED:
        raise ArgumentTypeError(WHY_REFUSED)
    return name


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    variables = "; ".join(f"{variable.name}: {variable.help}" for variable in InstanceSource.variables())
    parser = CommandLine(prog=PROG, description="List and check instances.", epilog=f"Variables: {variables}.")
    commands = parser.add_subparsers(dest="command", required=True)
    ids = commands.add_parser("ids", help="print the ids of the instances, one a line")
    ids.add_argument("--split", choices=SPLITS, help="of one split only")
    prompts = commands.add_parser("prompts", help="write the rows of --prompt-data")
    prompts.add_argument("file", type=Path, metavar="FILE", help="to write")
    prompts.add_argument("--split", choices=SPLITS, default="train", help="of one split (%(default)s)")
    export = commands.add_parser("export", help="write generated instances as task folders")
    export.add_argument("folder", type=Path, metavar="FOLDER", help="where the task folders are made")
    export.add_argument("names", nargs="+", metavar="ID", help="such as swe/pages/train/1")
    bring = commands.add_parser("import", help="read the rows of a published data set from this machine")
    bring.add_argument("benchmark", type=data_set, choices=sorted(IMPORTERS), help="which data set")
    bring.add_argument("rows", type=Path, metavar="ROWS", help="its file (jsonl, json, parquet) or folder")
    bring.add_argument("folder", type=Path, metavar="FOLDER", help="where BENCHMARK.jsonl goes: SWE_BENCH_PATH")
    bring.add_argument(
        "--without",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="leave out what is in this file of an evaluation",
    )
    compare = commands.add_parser("contamination", help="say which rows for training are in an evaluation")
    compare.add_argument("train", type=Path, metavar="TRAIN", help="rows that import wrote")
    compare.add_argument("test", type=Path, nargs="+", metavar="TEST", help="rows of evaluations")
    check = commands.add_parser("check", help="grade the solution and an empty change of instances: 1 and 0")
    check.add_argument("names", nargs="*", metavar="ID", help="instances; default: all")
    check.add_argument("--parallel", type=int, default=2, metavar="N", help="instances at a time (%(default)s)")
    check.add_argument("--sandbox", choices=NAMES, default="bubblewrap", help="provider (%(default)s)")
    check.add_argument("--sandbox-image", metavar="NAME", help="image where an instance names none")
    return parser


def bring(benchmark: str, rows: Path, folder: Path, without: Sequence[Path]) -> int:
    """Import a data set; return how the command ends.

    Raises:
        ConfigError: its rows, or those of an evaluation, cannot be read, or nothing is left.
    """
    result, left_out = imported(benchmark, rows)
    common = {
        overlap.train: str(overlap)
        for overlap in overlaps(result, [row for file in without for row in read_rows(file)])
    }
    for why in [*left_out, *common.values()]:
        print(f"left out: {why}", file=sys.stderr)
    kept = [item for item in result if item.id not in common]
    if not kept:
        raise ConfigError(f"{rows} has no row that can be graded here")
    print(f"{folder / benchmark}.jsonl: {write_instances(kept, folder / f'{benchmark}.jsonl')} instances")
    if read := sum(item.grading.needs_swebench for item in kept):
        print(f"{read} of them need swebench to read their logs: bash scripts/setup_swebench.sh")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the status is 1 if an instance is not as it should be, or is in an evaluation."""
    options = build_parser().parse_args(argv)
    try:
        source = InstanceSource.from_env()
        if options.command == "ids":
            print(*source.ids(options.split), sep="\n")
            return 0
        if options.command == "prompts":
            print(f"{options.file}: {write_prompts(source, source.ids(options.split), options.file)} instances")
            return 0
        if options.command == "export":
            for name in options.names:
                task = folder_of(name)
                write_task(task, task_toml(name.split("/")[1]), options.folder / task.name)
                print(options.folder / task.name)
            return 0
        if options.command == "import":
            return bring(options.benchmark, options.rows, options.folder, options.without)
        if options.command == "contamination":
            result = overlaps(read_rows(options.train), [row for file in options.test for row in read_rows(file)])
            print(*result, f"{len(result)} instances for training are in the evaluation", sep="\n")
            return int(bool(result))
        return asyncio.run(
            checked(source, options.names or source.ids(), options.parallel, options.sandbox, options.sandbox_image)
        )
    except (ConfigError, InfraError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
