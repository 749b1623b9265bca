"""``openclaw-rl versions RUN``: which versions of the weights a run had, and what the gate decided about each.

Guarantees: read-only, and works while the run writes. `RunFolder` is a run's folder as the gate's commands see it: a run is up while
the process that its lock names lives; a process of another machine counts as alive.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from groundwork.command_line import CommandLine, nearest_path
from groundwork.exceptions import ConfigError
from groundwork.paused import WITHOUT_NAME
from openclaw.config.runtime_variables import GateVariables
from openclaw.ledger.decisions import DecisionRecord, Kind
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.store import Ledger
from openclaw.runtime.adapters import accepted_versions
from openclaw.runtime.where import (
    SETTINGS_NAME,
    add_person,
    add_run,
    checkpoints_of,
    find_ledger,
    gate_command,
)
from slime.checkpoints.versions import SavedVersion, saved_versions
from slime.exceptions import PeopleError
from slime.updates.rollback import asked_rollbacks

SAVE_LOCK = "save.lock"
HOLDER = re.compile(r"process (?P<pid>\d+) on (?P<host>[^,]+),")


PIPE_WIDTH = 200
WORDS: dict[Kind, str] = {
    "start": "start",
    "step": "accepted",
    "refused": "refused",
    "rollback": "rolled back",
    "accept": "change accepted",
}


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its things; ``save``: the folder of its checkpoints."""

    folder: Path
    ledger: Path
    save: Path

    def saved(self) -> list[SavedVersion]:
        """Return the checkpoints that the run can go back to, oldest first."""
        return saved_versions(self.save)

    def bounds(self, environment: Mapping[str, str] = os.environ) -> GateVariables:
        """Return the gate's variables: of ``environment``, else those that the run was started with.

        Raises:
            ConfigError: one is invalid.
        """
        kept = {name: value for name, value in environment.items() if value}
        return GateVariables.from_env({**_strings(self.folder / SETTINGS_NAME), **kept})

    def is_up(self) -> bool:
        """Return whether the run's driver lives."""
        try:
            held = HOLDER.search((self.save / SAVE_LOCK).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return False
        return held is not None and (held["host"] != socket.gethostname() or psutil.pid_exists(int(held["pid"])))


def open_run(folder: Path) -> RunFolder:
    """Return a run's folder.

    Raises:
        UnknownRecordError: if it has no ledger; the message says what to type.
    """
    ledger = find_ledger(folder)
    if ledger is None or not folder.is_dir():
        raise UnknownRecordError(
            f"no ledger in {folder}{nearest_path(folder) or '; name the folder of a run, such as runs/NAME'}"
        )
    return RunFolder(folder, ledger, checkpoints_of(folder))


def _strings(file: Path) -> dict[str, str]:
    """Return the texts of an object in a file, by name; empty without the file."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return (
        {name: value for name, value in document.items() if isinstance(value, str)}
        if isinstance(document, dict)
        else {}
    )


@dataclass(frozen=True)
class Version:
    """A row of the table.

    Attributes:
        version: of the weights.
        decided_at: seconds since the epoch.
        live_at: when it went live; None if it did not, or before the first step.
        step: the last batch in the weights.
        samples: in that batch: trained, or in quarantine.
        decision: what the gate decided.
        why: in one line.
        margin: of the users' opinions in nats per token, and its standard error ``margin_error``; None without.
        tasks: share of the verified tasks that it solves; None without.
        checkpoint: whether ``openclaw-rl rollback`` can go back to it.
        serves: whether it serves now.
        person: whose adapter it is; None: everybody's weights.
    """

    version: str
    decided_at: float
    live_at: float | None
    step: int
    samples: int
    decision: str
    why: str
    margin: float | None
    margin_error: float | None
    tasks: float | None
    checkpoint: bool
    serves: bool
    person: str | None = None


def versions_of(
    ledger: Ledger,
    checkpoints: Sequence[str],
    person: str | None = None,
    kept: Callable[[str], Collection[str]] = lambda person: (),
) -> list[Version]:
    """Return the versions of a run, oldest first: those that the gate decided about, and steps without a decision.

    With an adapter per person, of everybody's adapters, or of that of ``person``.

    Args:
        ledger: of the run.
        checkpoints: versions of everybody's weights that have a checkpoint.
        person: whose; None: everybody's.
        kept: versions of a person's adapter that are on disk.
    """
    decisions = [each for each in ledger.decisions.all() if person is None or each.person == person]
    steps = [each for each in ledger.views.step_records() if person is None or each["person"] == person]
    serving = {each: ledger.samples.live_weight_version(each) for each in {step["person"] for step in steps}}
    decided = {(decision.rollout_id, decision.weight_version) for decision in decisions}
    people = {decision.person for decision in decisions} | serving.keys()
    there = {each: checkpoints if each is None else kept(each) for each in people}
    rows = [_version(each, there[each.person], serving.get(each.person)) for each in decisions]
    for step in steps:
        if (step["rollout_id"], step["weight_version"]) not in decided:
            record = DecisionRecord(
                0, step["rollout_id"], "step", step["weight_version"], "no gate decided", decided_at=step["trained_at"]
            )
            live = replace(record, live_at=step["live_at"], samples=step["samples"], person=step["person"])
            rows.append(_version(live, there[live.person], serving[live.person]))
    return sorted(rows, key=lambda row: row.decided_at)


def _version(record: DecisionRecord, checkpoints: Collection[str], serving: str | None) -> Version:
    serves = record.kind in ("step", "rollback", "start") and record.weight_version == serving
    return Version(
        version=record.weight_version,
        decided_at=record.decided_at,
        live_at=record.live_at,
        step=record.rollout_id,
        samples=record.samples,
        decision=WORDS[record.kind],
        why=record.why,
        margin=record.metrics.get("gate/margin"),
        margin_error=record.metrics.get("gate/margin_error"),
        tasks=record.metrics.get("gate/tasks_candidate"),
        checkpoint=record.kind in ("step", "rollback", "start") and record.weight_version in checkpoints,
        serves=serves,
        person=record.person,
    )


def people_with_offers(ledger: Ledger, fewest: int) -> list[str]:
    """Return the people who may accept a change of their own adapter."""
    people = sorted({each.person for each in ledger.decisions.all("AND kind = 'refused'") if each.person is not None})
    return [person for person in people if ledger.decisions.offer(fewest, person) is not None]


def table(versions: Sequence[Version]) -> Table:
    """Return the versions as a table for a terminal."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    of_people = any(version.person is not None for version in versions)
    if of_people:
        result.add_column("person")
    for title in ("version", "decided", "live", "step", "samples", "decision", "margin", "tasks", "checkpoint", ""):
        result.add_column(
            title, justify="right" if title in ("version", "step", "samples", "margin", "tasks") else "left"
        )
    for version in versions:
        margin = "" if version.margin is None else f"{version.margin:+.3f} ± {version.margin_error or 0.0:.3f}"
        whose = ["" if version.person is None else version.person or WITHOUT_NAME] if of_people else []
        result.add_row(
            *whose,
            version.version,
            _clock(version.decided_at),
            "" if version.live_at is None else _clock(version.live_at),
            str(version.step),
            str(version.samples),
            version.decision,
            margin,
            "" if version.tasks is None else f"{version.tasks:.0%}",
            "yes" if version.checkpoint else "",
            "serves" if version.serves else "",
        )
    return result


def _clock(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def refusal_lines(versions: Sequence[Version]) -> Iterator[str]:
    """Yield why each refused version was refused."""
    for version in versions:
        if version.decision in (WORDS["refused"], WORDS["rollback"], WORDS["accept"]):
            yield f"step {version.step}: {version.why}"


def show(run: RunFolder, ledger: Ledger, *, as_json: bool, person: str | None = None) -> None:
    """Print the versions of a run, or of a person's adapter in it."""
    saved = [item.weight_version for item in run.saved()]
    versions = versions_of(
        ledger, saved, person, lambda each: [str(kept.number) for kept in accepted_versions(run.folder, each)]
    )
    fewest = run.bounds().gate_offer
    offers = [(each, ledger.decisions.offer(fewest, each)) for each in (person, *people_with_offers(ledger, fewest))]
    offers = [(each, offer) for each, offer in offers if offer is not None and (person is None or each == person)]
    lines = [f"{offer}, type: {gate_command('accept', run.folder, each)}" for each, offer in dict(offers).items()]
    offered = "\n".join(lines) or None
    notes = [note for note in asked_rollbacks(run.folder) if person is None or note.person == person]
    asked = notes[0].version if notes else None
    if as_json:
        rows = [asdict(version) for version in versions]
        for row in rows if person is None and not any(row["person"] is not None for row in rows) else ():
            del row["person"]
        print(json.dumps({"versions": rows, "offer": offered, "asked": asked}, indent=2))
        return
    if not versions:
        print(f"{run.folder} has taken no step yet, so it serves the weights it started with")
        return
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(table(versions))
    for line in refusal_lines(versions):
        console.print(line, markup=False, soft_wrap=True)
    for note in notes:
        whose = "" if note.person is None else f" of {note.person or WITHOUT_NAME}"
        waits = f"it was asked to go back to version {note.version}{whose}, which it does within seconds, or when it is resumed"
        console.print(waits, markup=False, soft_wrap=True)
    if offered:
        console.print(offered, markup=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; return the exit code: 2, with one line, for a folder without a ledger."""
    parser = CommandLine(
        prog="openclaw-rl versions", description="Show the versions of a run's weights and what the gate decided."
    )
    add_run(parser, optional=True)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_person(parser, "only versions of this person's adapter, in a run with an adapter per person")
    options = parser.parse_args(argv)
    try:
        run = open_run(options.run)
        with closing(Ledger(run.ledger)) as ledger:
            show(run, ledger, as_json=options.json, person=options.person)
    except (ConfigError, LedgerError, PeopleError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
