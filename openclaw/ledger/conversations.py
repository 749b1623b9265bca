"""Turns of the ledger as conversations in JSON lines, written and read: the format of offline training and import.

One line per session: ``{"session_id", "turns": [{"type", "prompt", "response", "next_state", "trainable"}]}`` with
``type`` ``main`` or ``side``, ``prompt`` the request messages, ``response`` the assistant message, and ``next_state`` the
messages after it or null. ``trainable`` says whether the turn waits for a judge or gave a sample that was not dropped; for
an imported turn it is the file's value. Where a turn has them, ``tools``, ``chat_template_kwargs``, ``verdict``
(`Verdict.to_dict`) and ``finish_reason`` (``length``: cut off) follow.

A part ``{"type": "image", "sha256": HEX}`` of a message is a picture; `write_pictures` writes the files ``HEX.png``.

Guarantees: writing only reads the ledger; sessions come in the order of their first turn, turns in the order they were
recorded. Importing a file again adds nothing, and exporting an imported file gives the same file. A file with an invalid line
adds nothing at all. Imported turns are for reading and export. They are never judged or trained (reason ``imported``): no
engine sampled their tokens, so they have neither ids nor log-probabilities. A run with ``DATA_PATH`` trains such a file
(`openclaw.offline`).
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from groundwork.chat_messages import Message, MessageError, check_messages
from groundwork.data_rows import read_json, read_text
from groundwork.private_files import private, private_folder, writing
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.records import Turn, TurnKind, Verdict
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import TurnRecord
from openclaw.privacy.secret_finder import kept_id

CONVERSATIONS_NAME = "conversations.jsonl"
"""The file's name in a folder of recorded or collected turns."""
CUT_OFF = "length"
IMPORTED = "imported"
IMPORTED_NOT_TRAINABLE = "imported_not_trainable"


def conversations(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield each session of the ledger."""
    for session_id in ledger.views.session_ids():
        yield {
            "session_id": session_id,
            "turns": [turn_values(record) for record in ledger.views.turn_records(session_id)],
        }


def turn_values(record: TurnRecord) -> dict[str, Any]:
    """Return one turn in the conversation format."""
    turn, verdict = record.turn, record.verdict or record.kept
    to_judge = turn.state in ("pending", "unscored") or turn.reason == IMPORTED
    further = {
        "tools": turn.tools,
        "chat_template_kwargs": turn.chat_template_kwargs,
        "verdict": verdict and json.loads(json.dumps(verdict.to_dict())),  # lists, no tuples
        "finish_reason": turn.finish_reason if turn.finish_reason == CUT_OFF else None,
    }
    return {
        "type": turn.kind,
        "prompt": turn.messages,
        "response": turn.response_message,
        "next_state": turn.next_state,
        "trainable": to_judge or any(item.state != "dropped" and not item.of_practice for item in record.samples),
        **{name: value for name, value in further.items() if value},
    }


def write_conversations(
    ledger: Ledger, path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Write all sessions to ``path``, one JSON object per line, and return their number."""
    total = len(ledger.views.session_ids())

    def watched() -> Iterator[dict[str, Any]]:
        for number, conversation in enumerate(conversations(ledger), start=1):
            yield conversation
            on_progress(number, total)

    return write_lines(watched(), path, ledger.path)


def write_pictures(ledger: Ledger, folder: Path) -> int:
    """Write the pictures of the ledger to ``folder`` as ``SHA256.png`` and return their number; without any, make no folder."""
    count = 0
    for digest, file in ledger.pictures.files():
        private_folder(folder)
        with open(folder / f"{digest}.png", "wb", opener=private) as target:
            target.write(file)
        count += 1
    return count


def write_lines(values: Iterable[dict[str, Any]], path: Path, *not_over: Path) -> int:
    """Write one JSON object per line, whole or not at all, and return their number.

    Raises:
        OutputError: the file cannot be written.
    """
    count = 0
    with writing(path, *not_over) as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=True).encode() + b"\n")
            count += 1
    return count


FORMAT = '{"session_id", "turns": [{"type", "prompt", "response", "next_state", "trainable"}]}'
KINDS = ("main", "side")


class ImportFormatError(LedgerError):
    """A file is not conversations in JSON lines; the message names the line and the field."""


@dataclass
class Imported:
    """Counts of ``added`` turns, already ``known`` turns, and their ``sessions``."""

    sessions: int = 0
    added: int = 0
    known: int = 0


@dataclass(frozen=True)
class ImportedTurn:
    """A turn as a file describes it, its texts turned into messages; ``verdict`` is what a judge said elsewhere."""

    kind: TurnKind
    trainable: bool
    messages: list[Message]
    response_message: Message
    next_state: list[Message] | None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    verdict: Verdict | None = None
    finish_reason: str = "stop"


def import_conversations(
    ledger: Ledger, path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Imported:
    """Add a file's turns to the ledger, except those it already has.

    Args:
        ledger: the target; its redaction applies.
        path: one JSON object, or one per line.
        on_progress: called with the number of conversations done and in total.

    Raises:
        ImportFormatError: naming the first invalid line; nothing is added then.
    """
    parsed = [(where, read_session_id(value, where), read_turns(value, where)) for where, value in read_objects(path)]
    result = Imported()
    for number, (_, session_id, turns) in enumerate(parsed, start=1):
        held = Counter(identity_of(record.turn) for record in ledger.views.turn_records(session_id))
        position = held.total()
        new: list[tuple[Turn, Verdict | None]] = []
        for described in turns:
            turn_id = f"imported-{uuid.uuid4().hex}"
            turn = described_turn(turn_id, session_id, position + len(new), described, ledger)
            identity = identity_of(turn)
            if held[identity] > 0:
                held[identity] -= 1
                result.known += 1
            else:
                new.append((turn, described.verdict and described.verdict.redacted(ledger.database.redaction)))
        if new:
            ledger.logs.record(session_id, new, closed=True)
        result.sessions += 1
        result.added += len(new)
        on_progress(number, len(parsed))
    return result


def read_objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each conversation: the whole file, or its lines."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ImportFormatError(f"{path} cannot be read: {error}") from error
    try:
        yield str(path), read_json(text)
        return
    except ValueError:
        pass
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"{path} line {number}", read_json(line)
            except ValueError as error:
                raise ImportFormatError(f"{path} line {number} is not JSON ({error}); write {FORMAT}") from error


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a JSON value is an object, whose names are always texts."""
    return isinstance(value, dict)


def _is_array(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def read_session_id(value: object, where: str) -> str:
    session_id = value.get("session_id") if _is_object(value) else None
    if not isinstance(session_id, str) or not session_id:
        raise ImportFormatError(f"{where}: session_id is missing; write {FORMAT}")
    return kept_id(session_id)


def read_turns(value: dict[str, Any], where: str) -> list[ImportedTurn]:
    """Return the turns with validated fields and texts converted to messages."""
    turns = value.get("turns")
    if not _is_array(turns):
        raise ImportFormatError(f"{where}: turns is not a list; write {FORMAT}")
    checked: list[ImportedTurn] = []
    for number, turn in enumerate(turns):
        place = f"{where}, turn {number}"
        if not _is_object(turn):
            raise ImportFormatError(f"{place} is not an object; write {FORMAT}")
        kind, trainable = turn.get("type", "main"), turn.get("trainable", True)
        if kind not in KINDS or not isinstance(trainable, bool):
            raise ImportFormatError(f"{place}: type must be main or side, trainable true or false")
        reply = read_messages(turn.get("response"), "assistant", f"{place}: response")
        if len(reply) != 1:
            raise ImportFormatError(f"{place}: response is one message, got {len(reply)}")
        following = turn.get("next_state")
        checked.append(
            ImportedTurn(
                kind=kind,
                trainable=trainable,
                messages=read_messages(turn.get("prompt"), "user", f"{place}: prompt"),
                response_message=reply[0],
                next_state=None if following is None else read_messages(following, "user", f"{place}: next_state"),
                tools=_listed(turn, "tools", place),
                chat_template_kwargs=_named(turn, "chat_template_kwargs", place),
                verdict=_verdict(turn, place),
                finish_reason=CUT_OFF if turn.get("finish_reason") == CUT_OFF else "stop",
            )
        )
    return checked


def _listed(turn: dict[str, Any], name: str, place: str) -> list[dict[str, Any]] | None:
    values: object = turn.get(name)
    if not values:
        return None
    if not (_is_array(values) and all(map(_is_object, values))):
        raise ImportFormatError(f"{place}: {name} is not a list of objects; write it as in a request, or leave it out")
    return values


def _named(turn: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    value: object = turn.get(name) or {}
    if not _is_object(value):
        raise ImportFormatError(f"{place}: {name} is not an object; leave it out")
    return value


def _verdict(turn: dict[str, Any], place: str) -> Verdict | None:
    result = turn.get("verdict")
    if result is None:
        return None
    try:
        verdict = Verdict.from_dict(result)
    except (KeyError, TypeError, AttributeError) as error:
        raise ImportFormatError(f"{place}: verdict is not one that export wrote ({error!r}); leave it out") from error
    if verdict.score not in (-1, 0, 1, None):
        raise ImportFormatError(f"{place}: verdict has the score {verdict.score!r}; write -1, 0, 1 or null")
    return verdict


def read_messages(value: object, role: str, where: str) -> list[Message]:
    """Return a text, a message or a list of messages as messages; a text gets the role ``role``."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    results = [value] if _is_object(value) else value
    if not _is_array(results) or not all(_is_object(item) and "role" in item for item in results):
        raise ImportFormatError(f"{where}: write a text, a message or a list of messages with role and content")
    try:
        return check_messages(results, parts=None) if results else results
    except MessageError as error:
        raise ImportFormatError(f"{where}, {error}") from error


def described_turn(turn_id: str, session_id: str, position: int, described: ImportedTurn, ledger: Ledger) -> Turn:
    """Return a described turn as the ledger keeps one that was not served here, redacted."""
    now = ledger.database.clock()
    turn = Turn(
        id=turn_id,
        session_id=session_id,
        index=position,
        kind=described.kind,
        created_at=now,
        finished_at=now,
        messages=described.messages,
        prompt_ids=[],
        response_ids=[],
        response_logprobs=[],
        finish_reason=described.finish_reason,
        response_message=described.response_message,
        temperature=0.0,
        top_p=1.0,
        tools=described.tools,
        chat_template_kwargs=described.chat_template_kwargs,
        state="excluded",
        reason=IMPORTED if described.trainable else IMPORTED_NOT_TRAINABLE,
        next_state=described.next_state,
        next_state_at=None if described.next_state is None else now,
    )
    return turn.redacted(ledger.database.redaction)


def identity_of(turn: Turn) -> str:
    """Return the key by which two turns of a session are the same."""
    return json.dumps([turn.kind, turn.messages, turn.response_message, turn.next_state], sort_keys=True)
