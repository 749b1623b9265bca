"""``python -m agentrl.tasks.swe``: list, check, export, import and compare instances.

Guarantees: errors are one line, with exit status 2. Nothing is fetched from a network, and an export writes new folders only. A check runs the solution
in sandboxes of its own, never in that of an agent.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from agentrl.exceptions import InfraError
from agentrl.sandbox.providers import NAMES
from agentrl.tasks.harbor import write_task
from agentrl.tasks.names import SPLITS
from agentrl.tasks.shell.generate import task_toml
from agentrl.tasks.swe.check import checked
from agentrl.tasks.swe.contamination import overlaps
from agentrl.tasks.swe.folders import folder_of
from agentrl.tasks.swe.importers import IMPORTERS, imported
from agentrl.tasks.swe.rows import write_instances, write_prompts
from agentrl.tasks.swe.source import REFUSED, WHY_REFUSED, InstanceSource, read_rows
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

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
    told = "; ".join(f"{variable.name}: {variable.help}" for variable in InstanceSource.variables())
    parser = CommandLine(prog=PROG, description="List and check instances.", epilog=f"Variables: {told}.")
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
