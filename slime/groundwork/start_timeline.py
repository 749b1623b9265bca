"""The timeline of a start: what happens between the command and the first answer, in which process, after whom.

Each process of a run appends its own steps to ``start.jsonl`` in the run's folder, one JSON object a line. Seconds count from
the command, by the machine's monotonic clock; a process on another machine counts by the time of day. The driver begins the
file with what it and the programs before it did (`Beginning`); everybody else calls `mark`. A step counts when it comes for
the first time, so an engine that restarts later changes nothing.

`rows` says how long each step took and which process it waited for. `StartWatch` prints steps as they come, and what a start that
stands still waits for.

Guarantees: imports only the ground floor, so every process may use it. A timeline that cannot be written or read never stops a
run. A line that is not complete yet is left for the next look.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from groundwork.machine import this_host
from groundwork.private_files import private

FILE_NAME = "start.jsonl"
VARIABLE = "SLIME_START"
"""Carries the time of the command and the steps so far from ``scripts/launch.sh`` and the launcher to the driver, as JSON."""
LOOK_SECONDS = 0.25
SAME_COMMAND_SECONDS = 1.0
"""Times of two commands that differ by less are of one, because clocks are set."""
QUIET_SECONDS = 30.0
"""A start without a new step for this long says what it waits for, and again after as long."""


class Step(StrEnum):
    """Steps of a start, in the words that a user reads."""

    LOADED = "program loaded"
    PLANNED = "plan checked"
    MODEL_FOUND = "model found"
    RAY = "Ray is up"
    ENGINES = "engines serve"
    PUSHED = "engines have the trainer's weights"
    READY_TO_STEP = "first step possible"
    STARTED = "process started"
    IMPORTED = "server imported"
    WEIGHTS = "weights loaded"
    CACHE = "cache allocated"
    COMPILING = "kernel compilers run"
    COMPILED = "kernels compiled"
    PREFILL_GRAPHS = "prefill graphs captured"
    GRAPHS = "decoding graphs captured"
    LISTENS = "listens"
    MODEL = "model and optimizer built"
    READY = "checkpoint loaded"
    ANSWERED = "first answer"


DEMO, LAUNCHER, DRIVER, MANAGER, TRAINER, GATEWAY, ENGINE = (
    *("demo", "launcher", "driver", "manager", "trainer", "gateway", "engine"),
)
"""Kinds of processes; the name of an engine's process goes on after a dash."""
STEPS: Mapping[str, tuple[Step, ...]] = {
    DEMO: (Step.LOADED, Step.MODEL_FOUND),
    LAUNCHER: (Step.LOADED, Step.PLANNED),
    DRIVER: (Step.LOADED, Step.RAY, Step.PUSHED, Step.READY_TO_STEP),
    MANAGER: (Step.LOADED, Step.ENGINES),
    ENGINE: (
        *(Step.LOADED, Step.STARTED, Step.IMPORTED, Step.COMPILING, Step.COMPILED),
        *(Step.WEIGHTS, Step.CACHE, Step.PREFILL_GRAPHS, Step.GRAPHS, Step.LISTENS),
    ),
    TRAINER: (Step.LOADED, Step.MODEL, Step.READY),
    GATEWAY: (Step.STARTED, Step.LOADED, Step.LISTENS, Step.ANSWERED),
}
"""The steps of each kind, in order."""
OPTIONAL = frozenset({Step.COMPILING, Step.COMPILED, Step.PREFILL_GRAPHS, Step.GRAPHS})
"""Steps that an engine on a CPU, or with all kernels in its cache, does not have."""
AFTER: Mapping[tuple[str, Step], tuple[tuple[str, Step], ...]] = {
    (LAUNCHER, Step.LOADED): ((DEMO, Step.MODEL_FOUND),),
    (DRIVER, Step.LOADED): ((LAUNCHER, Step.PLANNED),),
    (MANAGER, Step.LOADED): ((DRIVER, Step.RAY),),
    (ENGINE, Step.LOADED): ((MANAGER, Step.LOADED), (ENGINE, Step.LISTENS)),
    (MANAGER, Step.ENGINES): ((ENGINE, Step.LISTENS),),
    (TRAINER, Step.LOADED): ((DRIVER, Step.RAY), (ENGINE, Step.LISTENS)),
    (DRIVER, Step.PUSHED): ((TRAINER, Step.READY), (MANAGER, Step.ENGINES)),
    (GATEWAY, Step.STARTED): ((DRIVER, Step.PUSHED),),
    (DRIVER, Step.READY_TO_STEP): ((GATEWAY, Step.LISTENS),),
}
"""What a step of a process comes after in other processes; the last of them that was there is whom it waited for."""


class Event(NamedTuple):
    """A step of a process, in seconds from the command."""

    seconds: float
    process: str
    step: Step

    @property
    def kind(self) -> str:
        """The kind of the process."""
        return self.process.partition("-")[0]


class Row(NamedTuple):
    """An event as a table shows it.

    Attributes:
        event: the step.
        took: seconds since the process's step before it, or since what it waited for, if that came later.
        waited: seconds that the process stood still for ``waited_for`` (``trainer: checkpoint loaded``); 0 without one.
    """

    event: Event
    took: float
    waited: float = 0.0
    waited_for: str = ""

    def line(self) -> str:
        """Return the row for the console."""
        seconds, process, step = self.event
        waited = f", after {self.waited:.1f} s for {self.waited_for}" if self.waited_for else ""
        return f"start    {seconds:6.1f} s  {process}: {step} ({self.took:.1f} s{waited})"


def _now() -> float:
    """Return the seconds since the machine's boot, which all its processes share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _own_age() -> float:
    """Return the seconds since this process was started."""
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return max(0.0, _now() - ticks / os.sysconf("SC_CLK_TCK"))


class Beginning:
    """The steps before a run has its folder; one program hands them to the next in `VARIABLE`."""

    def __init__(self, origin: float, events: Sequence[Event] = ()) -> None:
        """``origin``: the command, in seconds since boot."""
        self._origin = origin
        self.events = list(events)

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Beginning:
        """Return what the programs before this one did; without any, the command is the start of this process."""
        try:
            carried = json.loads(environment[VARIABLE])
            origin = _now() - (time.time() - float(carried["command"]))
            return cls(origin, [Event(at, process, Step(step)) for at, process, step in carried.get("events", [])])
        except (KeyError, TypeError, ValueError):
            return cls(_now() - _own_age())

    def mark(self, process: str, step: Step) -> None:
        """Note a step that has just been done."""
        self.events.append(Event(round(_now() - self._origin, 2), process, step))

    def carried(self) -> dict[str, str]:
        """Return the variable for the next program."""
        return {VARIABLE: json.dumps({"command": self.command, "events": self.events})}

    @property
    def command(self) -> float:
        """The time of the command, in seconds since the epoch."""
        return time.time() - (_now() - self._origin)

    def write(self, run_dir: Path) -> None:
        """Begin the timeline of a run; one that an earlier start left in the folder is replaced."""
        header = {"host": this_host(), "origin": self._origin, "command": self.command}
        lines = [json.dumps(header), *(_line(event) for event in self.events)]
        with suppress(OSError), open(run_dir / FILE_NAME, "w", encoding="utf-8", opener=private) as file:
            file.write("".join(f"{line}\n" for line in lines))


def _line(event: Event) -> str:
    return json.dumps({"seconds": event.seconds, "process": event.process, "step": event.step})


def mark(run_dir: str | Path | None, process: str, step: Step) -> None:
    """Append a step that has just been done; a no-op without a run's folder, and where it has no timeline."""
    if run_dir is None:
        return
    path = Path(run_dir) / FILE_NAME
    try:
        with open(path, encoding="utf-8") as file:
            header = json.loads(file.readline())
        same = header["host"] == this_host()
        seconds = _now() - header["origin"] if same else time.time() - header["command"]
        with open(path, "a", encoding="utf-8") as file:
            file.write(_line(Event(round(seconds, 2), process, step)) + "\n")
    except (OSError, ValueError, KeyError):
        return


def read(run_dir: Path, since: float = 0.0) -> list[Event]:
    """Return the first event of each step of each process, in order of time; empty without a timeline.

    Args:
        run_dir: the run's folder.
        since: seconds since the epoch; a timeline whose command is older is another start's.
    """
    try:
        text = (run_dir / FILE_NAME).read_text(encoding="utf-8")
        first, *lines = text[: text.rfind("\n") + 1].split("\n")
        if float(json.loads(first)["command"]) < since:
            return []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    firsts: dict[tuple[str, Step], Event] = {}
    for event in sorted(_events(lines), key=lambda event: event.seconds):
        firsts.setdefault((event.process, event.step), event)
    return list(firsts.values())


def _events(lines: Sequence[str]) -> Iterator[Event]:
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            entry: dict[str, Any] = json.loads(line)
            yield Event(float(entry["seconds"]), str(entry["process"]), Step(entry["step"]))


def rows(events: Sequence[Event]) -> list[Row]:
    """Return a row per event, in order of time."""
    return [_row(event, events[:position]) for position, event in enumerate(events)]


def _row(event: Event, earlier: Sequence[Event]) -> Row:
    own = max((other.seconds for other in earlier if other.process == event.process), default=None)
    after = AFTER.get((event.kind, event.step), ())
    others = [other for other in earlier if (other.kind, other.step) in after and other.process != event.process]
    last = max(others, key=lambda other: other.seconds, default=None)
    if last is None or (own is not None and last.seconds <= own):
        return Row(event, event.seconds - (own or 0.0))
    waited = last.seconds - own if own is not None else 0.0
    return Row(event, event.seconds - last.seconds, waited, f"{last.process}: {last.step}")


def seconds_of(events: Sequence[Event], process: str, step: Step) -> float | None:
    """Return when a process had done a step; None if it has not."""
    return next((event.seconds for event in events if (event.process, event.step) == (process, step)), None)


def is_over(events: Sequence[Event]) -> bool:
    """Return whether a step is possible, and the gateway, if there is one, has answered."""
    kinds = {event.kind for event in events}
    answered = GATEWAY not in kinds or seconds_of(events, GATEWAY, Step.ANSWERED) is not None
    return answered and seconds_of(events, DRIVER, Step.READY_TO_STEP) is not None


def waited_for(events: Sequence[Event]) -> list[str]:
    """Return what a start waits for: per process that is not done, its next step; empty once a step is possible."""
    if seconds_of(events, DRIVER, Step.READY_TO_STEP) is not None:
        return []
    newest = {event.process: event for event in events if event.kind not in (DEMO, LAUNCHER)}
    results = []
    for process, event in newest.items():
        later = STEPS[event.kind][STEPS[event.kind].index(event.step) + 1 :]
        due = next((step for step in later if step not in OPTIONAL and step is not Step.ANSWERED), None)
        if due is not None and not _waits_itself(events, event.kind, due):
            results.append(f"{process}: {due} (last: {event.step}, at {event.seconds:.0f} s)")
    if MANAGER not in newest and seconds_of(events, DRIVER, Step.RAY) is not None:
        results.append(f"{MANAGER}: {Step.LOADED}")
    return results


def _waits_itself(events: Sequence[Event], kind: str, step: Step) -> bool:
    """Return whether a step has to wait for a process that is seen and not that far."""
    for other, needed in AFTER.get((kind, step), ()):
        of_kind = {event.process for event in events if event.kind == other}
        done = {event.process for event in events if (event.kind, event.step) == (other, needed)}
        if of_kind - done:
            return True
    return False


def log_of(process: str) -> str:
    """Return the log in the run's folder that tells more about a process."""
    if process.startswith(ENGINE):
        return f"logs/{process}.log"
    return "runtime.log" if process == GATEWAY else "logs/processes.log"


class StartWatch:
    """Prints a start's timeline as it grows, in a thread of its own, until it is over or closed."""

    def __init__(
        self, run_dir: Path, say: Callable[[str], None], beginning: Beginning, quiet_seconds: float = QUIET_SECONDS
    ) -> None:
        """Give ``say`` each line, at once those of ``beginning``; the timeline of an earlier start in ``run_dir`` is not read."""
        self._run_dir = run_dir
        self._say = say
        self._beginning = beginning
        self._quiet_seconds = quiet_seconds
        self._told: set[tuple[str, Step]] = set()
        self._news_at = _now()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="start-watch", daemon=True)
        self.tell()

    def start(self) -> None:
        """Print from now on."""
        self._thread.start()

    def close(self) -> None:
        """Print what is left, and end."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _follow(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            if self.look():
                return
        self.look()

    def tell(self) -> None:
        """Print what is new in the beginning, before the run has a timeline."""
        self._print(self._beginning.events)

    def _print(self, events: Sequence[Event]) -> bool:
        """Print the rows that are new; return whether there is one."""
        news = [row for row in rows(events) if (row.event.process, row.event.step) not in self._told]
        for row in news:
            self._told.add((row.event.process, row.event.step))
            self._say(row.line())
        return bool(news)

    def look(self) -> bool:
        """Print what is new, or what a start that stands still waits for; return whether it is over."""
        events = read(self._run_dir, self._beginning.command - SAME_COMMAND_SECONDS)
        if self._print(events):
            self._news_at = _now()
        elif _now() - self._news_at >= self._quiet_seconds and (missing := waited_for(events)):
            self._news_at = _now()
            logs = dict.fromkeys(log_of(line.partition(":")[0]) for line in missing)
            self._say(
                f"start    nothing new for {self._quiet_seconds:.0f} s; it waits for {'; '.join(missing)}. See {', '.join(logs)}"
            )
        return is_over(events)
