"""``openclaw-rl lessons RUN``: read and change a person's lessons in a run's ledger (`openclaw.lessons`).

Guarantees: one transaction of the ledger per command, whether the run is up or down; a running gateway sees it within seconds.
What comes from the ledger cannot control the terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict

from groundwork.command_line import CommandLine, named_by_beginning
from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.exceptions import NoRunError
from openclaw.ledger.exceptions import LedgerError, LedgerUnavailableError, UnknownRecordError
from openclaw.ledger.lessons import Lessons
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import MODES, Lesson, UnusableLessonError
from openclaw.messages.preview import harmless
from openclaw.owners import LOCAL, root
from openclaw.privacy.redactor import Redactor
from openclaw.runs.folder import open_run
from openclaw.runs.owner_option import add_owner
from openclaw.runtime.where import add_run

ALL = "all"


def line(lesson: Lesson) -> str:
    """Return one line about a lesson: its state, its evidence, its words."""
    state = lesson.state if lesson.reason is None else f"{lesson.state} ({lesson.reason})"
    pinned = " pinned" if lesson.pinned else ""
    evidence = f"said {lesson.said}, read {lesson.served}, liked {lesson.liked}, disliked {lesson.disliked}"
    if lesson.is_learned:
        confirmed = ", confirmed" if lesson.is_confirmed else ""
        evidence += f"; without it liked {lesson.liked_without}, disliked {lesson.disliked_without}{confirmed}"
    if lesson.measure is not None:
        evidence += f"; {lesson.measure}"
    return f"{lesson.id}  {state + pinned:20}  {evidence}  {harmless(lesson.text)}"


def _text(words: Sequence[str]) -> str:
    if not words:
        raise ConfigError(
            'the lesson has no words; type, for example: openclaw-rl lessons RUN add "Keep answers short."'
        )
    return " ".join(words)


def _meant(lessons: Lessons, person: str, words: Sequence[str]) -> Lesson:
    """Return the lesson whose id begins as the first word."""
    known = {each.id: each for each in lessons.of(person)}
    try:
        return known[named_by_beginning(words[0] if words else "", list(known), "lesson", "list shows them")]
    except LookupError as error:
        raise UnknownRecordError(str(error)) from error


def _list(ledger: Ledger, person: str, options: argparse.Namespace) -> Iterator[str]:
    found = ledger.lessons.of(person)
    if options.json:
        yield json.dumps([asdict(each) for each in found], ensure_ascii=False)
        return
    yield from map(line, found)
    yield f"mode: {ledger.lessons.mode(person, options.default)}; lessons: {len(found)}"


def _mode(ledger: Ledger, person: str, options: argparse.Namespace) -> Iterator[str]:
    word = " ".join(options.words)
    for mode in MODES:
        if mode == word:
            ledger.lessons.choose_mode(person, mode)
            yield f"mode: {mode}"
            return
    raise ConfigError(f"mode {word!r} is unknown; use {', '.join(MODES)}")


def _add(ledger: Ledger, person: str, options: argparse.Namespace) -> Iterator[str]:
    yield line(ledger.lessons.add(person, _text(options.words)))


def _remove(ledger: Ledger, person: str, options: argparse.Namespace) -> Iterator[str]:
    if options.words == [ALL]:
        yield f"deleted {ledger.lessons.forget_person(person)} lessons"
    else:
        lesson = _meant(ledger.lessons, person, options.words)
        ledger.lessons.remove(person, lesson.id)
        yield f"deleted {lesson.id}"
    yield from _erase(ledger)


def _erase(ledger: Ledger) -> Iterator[str]:
    """Remove the bytes of deleted words; yield what keeps them, if anything does."""
    try:
        ledger.sessions.erase()
    except LedgerUnavailableError as error:
        yield str(error)


def _edit(ledger: Ledger, person: str, options: argparse.Namespace) -> Iterator[str]:
    lesson = _meant(ledger.lessons, person, options.words)
    yield line(ledger.lessons.edit(person, lesson.id, text=_text(options.words[1:])))
    yield from _erase(ledger)


def _set(
    *, pinned: bool | None = None, on: bool | None = None
) -> Callable[[Ledger, str, argparse.Namespace], Iterator[str]]:
    def act(ledger: Ledger, person: str, options: argparse.Namespace) -> Iterator[str]:
        lesson = _meant(ledger.lessons, person, options.words)
        yield line(ledger.lessons.edit(person, lesson.id, pinned=pinned, on=on))

    return act


ACTS: Mapping[str, Callable[[Ledger, str, argparse.Namespace], Iterator[str]]] = {
    "list": _list,
    "add": _add,
    "edit": _edit,
    "pin": _set(pinned=True),
    "unpin": _set(pinned=False),
    "on": _set(on=True),
    "off": _set(on=False),
    "rm": _remove,
    "mode": _mode,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 2, with one line, if it cannot be done."""
    parser = CommandLine(
        prog="openclaw-rl lessons",
        description="Read and change the lessons of a person: short wishes that stand in the person's next requests.",
        epilog='add "WORDS"; edit ID "WORDS"; pin, unpin, on, off or rm ID; rm all; mode auto, confirm or off. '
        "on also accepts a proposed lesson, off declines it.",
    )
    add_run(parser)
    parser.add_argument("action", choices=ACTS, nargs="?", default="list", help="what to do (default: list)")
    parser.add_argument(
        "words", nargs="*", metavar="WORDS", help="a lesson's id or the beginning of it, its text, or a mode"
    )
    parser.add_argument("--json", action="store_true", help="list as JSON")
    add_owner(parser)
    options = parser.parse_args(argv)
    person = root(LOCAL if options.owner is None else options.owner)
    try:
        run = open_run(options.run)
        variables = RuntimeVariables.from_env(os.environ if run.settings is None else run.settings)
        options.default, redact = variables.lessons, variables.redact
        ledger = Ledger(run.ledger_path, redaction=None if redact == "off" else Redactor(redact))
        with closing(ledger):
            for told in ACTS[options.action](ledger, person, options):
                print(told)
    except (ConfigError, LedgerError, NoRunError, UnusableLessonError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
