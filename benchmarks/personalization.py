r"""How fast does the model learn what a user likes? Both measures of the paper, for every method, with simulated users.

`python -m benchmarks.personalization --json r.json [--report r.md]` holds one run of `openclaw-test/personal_run.py` for each method
and seed, in which all users share one model (joint): half an hour on two idle cores. With `--forms joint,separate` each user
also has a model of its own. `--quick` checks that it runs. `--ablate k,w` adds runs with other settings.

Guarantees: a finished run is a JSON file in ``--runs``, so the same command continues an interrupted benchmark and runs nothing
twice. Ctrl-C and SIGTERM also end the runs that go on. What was not run is shown as such. Exit status 1 when a run fails; figures are recorded, not judged.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import REPOSITORY, describe_machine
from benchmarks.personal_parts.figures import personal_table, table
from benchmarks.personal_parts.matrix import ABLATIONS, BASE, FORMS, JOINT, METHODS, PERSONAL_ARMS, Cell, cells
from benchmarks.personal_parts.records import OtherSizesError, Programs, Record, RunError, load, run, write
from benchmarks.personal_parts.report import PERSONAL_HEAD, Asked, personal_rows, rows, write_report
from groundwork.command_line import new_output_file
from openclaw.launch.methods import methods_of

sys.path.append(str(REPOSITORY / "openclaw-test"))
from simulated_users.reading import UserFileError, find_users
from simulated_users.workspace import CHAT, SIMULATED

from lab.personal.sizes import Sizes

RUNS = REPOSITORY / "benchmarks" / "baselines" / "personalization"
USERS = "student,captain"
SECONDS_PER_RUN = {BASE: 60.0, "opd": 150.0}
SECONDS_OF_OTHERS = 100.0
"""On two idle cores with the default sizes, from the runs of `baselines/learning_cpu.json`: a start takes 35 s, 16 updates 30 s
(OPD 80 s), and counted sessions and scores the rest. The mean of the folder's own runs takes their place."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    sizes = Sizes()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.personalization",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    ablations = ", ".join(ABLATIONS)
    after = ",".join(map(str, sizes.score_after))
    add("--json", required=True, type=new_output_file, help="file for the figures")
    add("--report", type=new_output_file, help="file for the report (Markdown, with two plots beside it)")
    every = ",".join(METHODS)
    add("--methods", default=None, help=f"comma-separated (default: {every}; none with --arms)")
    add("--arms", default="", help=f"what a first complaint changes: {','.join(PERSONAL_ARMS)} (default: none)")
    add("--users", default=USERS, help="names or YAML files, comma-separated (default: %(default)s)")
    add("--forms", default=JOINT, help=f"{','.join(FORMS)}: the whole matrix (default: %(default)s)")
    add("--seeds", default=None, help="comma-separated (default: those that all users name)")
    add("--ablate", default="", help=f"comma-separated: {ablations} (default: none)")
    add(
        "--runs", type=Path, default=None, help=f"folder of the runs' records (default: {RUNS.relative_to(REPOSITORY)})"
    )
    add("--most-sessions", type=int, default=sizes.most_sessions, help="counted, per user (default: %(default)s)")
    add("--score-after", default=after, help="updates, comma-separated (default: %(default)s)")
    add("--heldout", type=int, default=sizes.heldout, help="problems of a score, per user (default: %(default)s)")
    add("--workspace", action="store_true", help="homework as files, simulated in messages (default: in the chat)")
    add("--jobs", type=int, default=1, help="runs at a time; no figure depends on it (default: %(default)s)")
    add("--only-report", action="store_true", help="run nothing; tell what the folder has")
    add(
        "--quick", action="store_true", help="one method, user and seed, four sessions, one update; checks that it runs"
    )
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options with the runs, all checked before anything starts."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.quick:
        options.users, options.forms, options.seeds = "student", "separate", "0"
        options.methods, options.arms = options.methods or "combine", options.arms or "lessons,weights,both"
        options.most_sessions, options.score_after, options.heldout = 4, "1", 16
        options.runs = options.runs or Path(tempfile.mkdtemp(prefix="personalization-"))
    options.runs = options.runs or RUNS
    try:
        people = find_users(options.users.split(","))
        after = tuple(int(word) for word in options.score_after.split(",") if word != "0")
        options.sizes = Sizes(options.most_sessions, after, options.heldout)
        seeds = options.seeds.split(",") if options.seeds else _common_seeds([user.seeds for user in people])
        options.seeds = [int(seed) for seed in seeds]
    except (ValueError, UserFileError) as error:
        parser.error(str(error))
    options.people = dict(zip([user.name for user in people], map(_absolute, options.users.split(",")), strict=True))
    chosen = options.methods if options.methods is not None else "" if options.arms else ",".join(METHODS)
    options.methods, options.forms = [name for name in chosen.split(",") if name], options.forms.split(",")
    names = {BASE, *(method.config.name for method in methods_of() if not method.variant)}
    if unknown := [name for name in options.methods if name not in names]:
        parser.error(f"--methods {unknown[0]}: known: {BASE}, {', '.join(sorted(names - {BASE}))}")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: give 1 or more")
    if unknown := set(options.forms) - set(FORMS):
        parser.error(f"--forms {min(unknown)}: give joint, separate or both with a comma")
    if len(people) == 1:
        options.forms = options.forms[:1] if options.forms != [JOINT] else ["separate"]
    arms = [name for name in options.arms.split(",") if name]
    if unknown := [name for name in arms if name not in PERSONAL_ARMS]:
        parser.error(f"--arms {unknown[0]}: known: {', '.join(PERSONAL_ARMS)}")
    options.arms = [PERSONAL_ARMS[name] for name in arms]
    asked = [name for name in options.ablate.split(",") if name]
    if unknown := [name for name in asked if name not in ABLATIONS]:
        parser.error(f"--ablate {unknown[0]}: known: {', '.join(ABLATIONS)}")
    options.ablations = {name: ABLATIONS[name] for name in asked}
    return options


def _common_seeds(seeds: Sequence[Sequence[int]]) -> list[int]:
    """Return the seeds that every user names, in the order of the first.

    Raises:
        ValueError: there is none.
    """
    common = [seed for seed in seeds[0] if all(seed in others for others in seeds)]
    if not common:
        raise ValueError("the users have no seed in common; give --seeds 0,1,2")
    return common


def _absolute(name: str) -> str:
    """Return a file's absolute path, and a name as it is."""
    return str(Path(name).resolve()) if name.endswith((".yaml", ".yml")) else name


def run_options(options: argparse.Namespace) -> list[str]:
    """Return the options of each run."""
    sizes: Sizes = options.sizes
    words = ["--most-sessions", str(sizes.most_sessions), "--heldout", str(sizes.heldout)]
    words += ["--score-after", ",".join(map(str, sizes.score_after)) or "0"]
    return [*words, *(["--workspace"] if options.workspace else [])]


def seconds_left(todo: Sequence[Cell], done: Sequence[Record]) -> float:
    """Return how long the runs to do will take: each as its method's runs of the folder, or as measured on idle cores."""

    def expected(method: str) -> float:
        known = [record["seconds"]["total"] for record in done if record["method"] == method]
        return statistics.mean(known) if known else SECONDS_PER_RUN.get(method, SECONDS_OF_OTHERS)

    return sum(expected(cell.method) for cell in todo)


def carry_out(options: argparse.Namespace) -> dict[str, Record]:
    """Run what is missing, unless only a report is asked for; return all records by name.

    Raises:
        OtherSizesError, RunError: see there.
    """
    arms = [arm for arms in options.ablations.values() for arm in arms]
    wanted = list(cells(options.methods, options.people, options.forms, options.seeds, arms, options.arms))
    fixed: dict[str, Any] = {
        "sizes": options.sizes.as_record(),
        "homework": SIMULATED if options.workspace else CHAT,
    }
    found = {cell.name: record for cell in wanted if (record := load(options.runs, cell, fixed))}
    todo = [] if options.only_report else [cell for cell in wanted if cell.name not in found]
    print(f"{len(found)} of {len(wanted)} runs are in {options.runs}", flush=True)
    left, failed, lock, programs = list(todo), [], threading.Lock(), Programs()

    def one(cell: Cell) -> None:
        minutes = seconds_left(left, list(found.values())) / 60 / options.jobs
        print(f"{cell.name}: one of {len(left)} runs left, which take about {minutes:.0f} min", flush=True)
        try:
            record = run(cell, run_options(options), options.runs, programs)
        except RunError as error:
            failed.append(str(error))
            return
        finally:
            with lock:
                left.remove(cell)
        found[cell.name] = record

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(one, todo))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            programs.stop()
            raise
    if failed:
        raise RunError("\n".join([*failed, "the same command tries these again, and keeps the runs that are done"]))
    return found


def show(asked: Asked, console: Console) -> None:
    """Print the tables."""
    shown = Table("method", *asked.forms, "paper, joint", title="sessions until the rule is followed, lower is better")
    for row in rows(asked):
        shown.add_row(*row)
    if asked.methods:
        console.print(shown)
    if asked.personal:
        shown = Table("what learns", *PERSONAL_HEAD, title="from the first complaint on")
        for row in personal_rows(asked):
            shown.add_row(*row)
        console.print(shown)


@contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Let a signal do what Ctrl-C does, once; a further one changes nothing while the runs stop."""

    def interrupt(*_: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options = parse(argv)
    try:
        with interrupted_by(signal.SIGTERM):
            found = carry_out(options)
    except KeyboardInterrupt:
        print("stopped; the same command continues and keeps the runs that are done", file=sys.stderr)
        return 130
    except (OtherSizesError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    machine = next((record["machine"] for record in found.values()), None) or describe_machine()
    after = options.sizes.score_after
    asked = Asked(
        *(found, options.methods, list(options.people), options.forms, options.seeds, after),
        ablations=options.ablations,
        personal=options.arms,
        machine=machine,
    )
    figures = table(found, options.methods, list(options.people), options.seeds, after)
    write(
        options.json,
        {
            "machine": machine,
            "users": list(options.people),
            "seeds": options.seeds,
            "figures": figures,
            "personal": personal_table(found, options.arms, list(options.people), options.seeds),
            "runs": sorted(found),
        },
    )
    show(asked, Console())
    if options.report:
        write_report(asked, options.report)
        print(f"report: {options.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
