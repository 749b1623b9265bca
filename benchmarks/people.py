r"""Does an adapter per owner keep many people apart, and does it hold with many of them? Real runs of the tiny model on a CPU.

`python -m benchmarks.people PART --json FILE`, where PART is one of

    owners     eight owners with opposite wishes on one server: liked first replies by weights alone against each one's own
               updates, and what the updates of others change. With --adapters shared it is the control: one adapter for all
    replay     the batches of a run of `owners`, of each owner alone, trained once more: the SHA-256 of the adapters' files
    crowd      thirty owners talk at once: refusals, whose adapter answered each reply, and the memory of the processes
    simulate   hundreds of owners on one box, from measured costs and with the run's own decision who is next

A part of `owners` takes about ``--minutes``; the same command goes on with the run in ``--run-dir`` until it says that all is
done. `--quick` checks that a part runs. Exit status 1 when a run fails or a guarantee is broken, 3 when something is left to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fault_parts.checks import write_json
from benchmarks.machine import REPOSITORY, describe_machine
from benchmarks.people_parts import crowd, opposite
from benchmarks.people_parts.live import PER_OWNER, SHARED
from benchmarks.people_parts.replay import batches_of, replayed
from benchmarks.people_parts.simulation import Costs, Traffic, simulated
from benchmarks.personalization import interrupted_by
from groundwork.command_line import output_file
from lab.personal.run import FAILURES

UNFINISHED = 3
COSTS = REPOSITORY / "benchmarks" / "baselines" / "people" / "costs_4b.json"
STARTED = time.monotonic()


def tell(text: str) -> None:
    """Print a line of progress with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.0f} s  {text}", flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.people", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", required=True, type=output_file, help="file for the figures")
    common.add_argument("--quick", action="store_true", help="small sizes: checks that it runs")

    owners = parts.add_parser("owners", parents=[common], help="opposite wishes on one server")
    every = ",".join(opposite.OWNERS)
    owners.add_argument("--users", default=every, help="comma-separated (default: %(default)s)")
    owners.add_argument("--method", default="hybrid", help="default: %(default)s")
    owners.add_argument("--adapters", choices=(PER_OWNER, SHARED), default=PER_OWNER, help="default: %(default)s")
    owners.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    owners.add_argument("--most", type=int, default=None, help="updates in all, for the control (default: no bound)")
    owners.add_argument("--run-dir", type=Path, default=None, help="of the run (default: runs/people-ADAPTERS-METHOD)")
    owners.add_argument("--minutes", type=float, default=9.0, help="no part begins later (default: %(default)s)")

    again = parts.add_parser("replay", parents=[common], help="an owner's batches alone, once more")
    again.add_argument("--run-dir", type=Path, required=True, help="of the owners' run, which must have ended")
    again.add_argument("--users", default=None, help="comma-separated (default: all with an update)")
    again.add_argument("--work", type=Path, default=None, help="folder of the replays (default: RUN-replay)")

    many = parts.add_parser("crowd", parents=[common], help="thirty owners at once")
    many.add_argument("--run-dir", type=Path, default=None, help="of the run, new (default: runs/people-crowd-METHOD)")
    many.add_argument("--only-check", action="store_true", help="check the replies of a run that FILE is of")
    many.add_argument("--method", default="rl", help="default: %(default)s")
    many.add_argument("--owners", type=int, default=crowd.Sizes.owners, help="default: %(default)s")
    many.add_argument("--minutes", type=float, default=crowd.Sizes.minutes, help="default: %(default)s")
    many.add_argument("--pause", type=float, default=crowd.Sizes.pause, help="seconds (default: %(default)s)")
    many.add_argument("--seed", type=int, default=0, help="default: %(default)s")

    box = parts.add_parser("simulate", parents=[common], help="hundreds of owners on one box")
    box.add_argument("--costs", type=Path, default=COSTS, help="JSON of measured costs (default: %(default)s)")
    box.add_argument("--owners", type=int, default=Traffic.owners, help="default: %(default)s")
    box.add_argument("--hours", type=float, default=Traffic.hours, help="default: %(default)s")
    box.add_argument(
        "--sessions", type=float, default=Traffic.sessions, help="of an owner in 24 h (default: %(default)s)"
    )
    box.add_argument(
        "--floods", type=float, default=20.0, help="times that one owner talks more (default: %(default)s)"
    )
    box.add_argument("--heavy", type=float, default=5.0, help="times as many conversations (default: %(default)s)")
    box.add_argument("--people-in-memory", type=int, default=32, help="as the launcher's (default: %(default)s)")
    box.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    return parser


def owners(options: argparse.Namespace) -> int:
    """Go on with the owners' run."""
    sizes = opposite.QUICK if options.quick else opposite.Sizes()
    names = options.users.split(",")[: 2 if options.quick else None]
    run_dir = options.run_dir or REPOSITORY / "runs" / f"people-{options.adapters}-{options.method}"
    finished, record = asyncio.run(
        opposite.measured(
            run_dir.absolute(),
            names,
            sizes,
            tell,
            method=options.method,
            adapters=options.adapters,
            seed=options.seed,
            most=options.most,
            seconds=60 * options.minutes,
        )
    )
    verdict = opposite.verdict(record)
    write_json(options.json, {"machine": describe_machine(), "finished": finished, "verdict": verdict, **record})
    print(json.dumps(verdict, indent=1))
    if not finished:
        tell("something is left: the same command goes on")
        return UNFINISHED
    return int(record["refused"] > 0)


def simulate(options: argparse.Namespace) -> int:
    """Simulate a box with usual and with heavy traffic: everybody alike, and with one owner who floods it."""
    costs = Costs.read(options.costs)
    hours, people = (0.5, 20) if options.quick else (options.hours, options.owners)
    usual = Traffic(owners=people, hours=hours, sessions=options.sessions, seed=options.seed)
    heavy = replace(usual, sessions=options.heavy * usual.sessions)
    found = {}
    for amount, traffic in (("usual", usual), (f"{options.heavy:g} times as much", heavy)):
        for how, floods in (
            ("everybody alike", 0.0),
            (f"one owner {options.floods:g} times the average", options.floods),
        ):
            tell(f"{amount}, {how}")
            found[f"{amount}, {how}"] = simulated(replace(traffic, floods=floods), costs, options.people_in_memory)
    costs_of_them = json.loads(options.costs.read_text())
    write_json(options.json, {"machine": describe_machine(), "costs": costs_of_them, "simulated": found})
    print(json.dumps(found, indent=1))
    return int(any(one["batches beyond the bound"] for one in found.values()))


def replay(options: argparse.Namespace) -> int:
    """Train the batches of each owner alone, and compare the adapters' files. Owners whom FILE has are kept."""
    run_dir = options.run_dir.absolute()
    work = (options.work or run_dir.with_name(f"{run_dir.name}-replay")).absolute()
    batches = batches_of(run_dir)
    names = options.users.split(",") if options.users else sorted(batches)[: 1 if options.quick else None]
    found = json.loads(options.json.read_text())["owners"] if options.json.exists() else {}
    for name in names:
        if name not in found:
            found[name] = replayed(run_dir, name, batches[name], work / name, tell)
            write_json(options.json, {"machine": describe_machine(), "owners": found})
    return int(not all(one["same"] for one in found.values()))


def talk_of_many(options: argparse.Namespace) -> int:
    """Hold the crowd's run, then check whose adapter answered."""
    sizes = crowd.QUICK if options.quick else crowd.Sizes(options.owners, options.minutes, options.pause)
    run_dir = (options.run_dir or REPOSITORY / "runs" / f"people-crowd-{options.method}").absolute()
    if options.only_check:
        record = json.loads(options.json.read_text())
    else:
        found = asyncio.run(crowd.measured(run_dir, sizes, tell, method=options.method, seed=options.seed))
        record = {"machine": describe_machine(), **found}
        write_json(options.json, record)
    record["whose"] = crowd.checked(run_dir, tell)
    write_json(options.json, record)
    print(json.dumps(record, indent=1))
    return int(record["refused"] > 0 or record["whose"]["by a foreign adapter"] > 0)


PARTS: dict[str, Any] = {"owners": owners, "replay": replay, "crowd": talk_of_many, "simulate": simulate}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options = build_parser().parse_args(argv)
    try:
        with interrupted_by(signal.SIGTERM):
            return PARTS[options.part](options)
    except KeyboardInterrupt:
        print("stopped; what was done is kept", file=sys.stderr)
        return 130
    except FAILURES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
