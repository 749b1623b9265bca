"""Converts rows to records and back, with exact numbers: ids as int32, log-probabilities as float64.

Guarantees: ``decode(encode(x)) == x`` for turns and samples, including a sample's free attributes if they are JSON
values.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from openclaw.ledger.records import Feedback, PlainPart, TopK, Turn, Verdict, VersionSpan, loss_tokens
from slime.utils.streams import Stream, carried
from slime.utils.types import Sample


class Row(Protocol):
    """A row's columns by name: `sqlite3.Row`, or a dict."""

    def __getitem__(self, name: str, /) -> Any: ...


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as int32 bytes."""
    return array("i", ids).tobytes()


def unpack_ids(blob: bytes) -> list[int]:
    """Inverse of `pack_ids`."""
    values = array("i")
    values.frombytes(blob)
    return values.tolist()


def pack_floats(values: Sequence[float] | None) -> bytes | None:
    """Return floats as float64 bytes; None stays None."""
    return None if values is None else array("d", values).tobytes()


def unpack_floats(blob: bytes | None) -> list[float] | None:
    """Inverse of `pack_floats`."""
    if blob is None:
        return None
    values = array("d")
    values.frombytes(blob)
    return values.tolist()


def flat(rows: Sequence[Sequence[Any]] | None) -> list[Any] | None:
    """Return a matrix's values row by row; None stays None. Raise ValueError if it is not rectangular."""
    if rows is None:
        return None
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the rows of a sample's top K have different lengths")
    return [value for row in rows for value in row]


def in_rows(values: list[Any] | None, count: int) -> list[list[Any]] | None:
    """Inverse of `flat` for ``count`` rows."""
    if values is None or not count:
        return values
    width = len(values) // count
    return [values[start : start + width] for start in range(0, len(values), width)]


def decode_topk(log_probs: bytes | None, ids: bytes | None, count: int) -> TopK | None:
    """Return a reply's top K from its columns, with a row per response token; None if there is none."""
    values = in_rows(unpack_floats(log_probs), count)
    if values is None or ids is None:
        return None
    return TopK(values, in_rows(unpack_ids(ids), count) or [])


def encode_turn(turn: Turn) -> dict[str, Any]:
    """Return the columns of a new turn."""
    return {
        "id": turn.id,
        "session_id": turn.session_id,
        "position": turn.index,
        "kind": turn.kind,
        "created_at": turn.created_at,
        "finished_at": turn.finished_at,
        "messages": json.dumps(turn.messages),
        "tools": json.dumps(turn.tools),
        "chat_template_kwargs": json.dumps(turn.chat_template_kwargs),
        "prompt_ids": pack_ids(turn.prompt_ids),
        "response_ids": pack_ids(turn.response_ids),
        "response_logprobs": pack_floats(turn.response_logprobs),
        "weight_versions": json.dumps([vars(span) for span in turn.weight_versions]),
        "finish_reason": turn.finish_reason,
        "response_message": json.dumps(turn.response_message),
        "temperature": turn.temperature,
        "top_p": turn.top_p,
        "conversation": turn.conversation,
        "next_state": None if turn.next_state is None else json.dumps(turn.next_state),
        "next_state_at": turn.next_state_at,
        "signal": turn.signal,
        "state": turn.state,
        "reason": turn.reason,
        "malformed_calls": turn.malformed_calls,
        "adapter_fallback": turn.adapter_fallback,
        "topk_log_probs": None if turn.response_topk is None else pack_floats(flat(turn.response_topk.log_probs)),
        "topk_ids": None if turn.response_topk is None else pack_ids(flat(turn.response_topk.ids) or []),
        "scored": int(turn.scored),
        **encode_plain(turn.plain),
    }


def encode_plain(plain: PlainPart | None) -> dict[str, Any]:
    """Return the columns that tell a prompt with lessons from the one without."""
    if plain is None:
        return {"lesson_start": None, "lesson_end": None, "plain_middle": None}
    return {"lesson_start": plain.start, "lesson_end": plain.end, "plain_middle": pack_ids(plain.ids)}


def decode_plain(row: Row) -> PlainPart | None:
    """Inverse of `encode_plain`."""
    if row["plain_middle"] is None:
        return None
    return PlainPart(row["lesson_start"], row["lesson_end"], tuple(unpack_ids(row["plain_middle"])))


def prompt_of(row: Row) -> bytes:
    """Return `Turn.student_ids` of a row of ``turns``, packed."""
    plain = decode_plain(row)
    return row["prompt_ids"] if plain is None else pack_ids(plain.applied(unpack_ids(row["prompt_ids"])))


def decode_turn(row: Row) -> Turn:
    """Return the turn of a row of ``turns``."""
    response_ids = unpack_ids(row["response_ids"])
    return Turn(
        id=row["id"],
        session_id=row["session_id"],
        index=row["position"],
        kind=row["kind"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        messages=json.loads(row["messages"]),
        tools=json.loads(row["tools"]),
        chat_template_kwargs=json.loads(row["chat_template_kwargs"]),
        prompt_ids=unpack_ids(row["prompt_ids"]),
        response_ids=response_ids,
        response_logprobs=unpack_floats(row["response_logprobs"]) or [],
        weight_versions=[VersionSpan(**span) for span in json.loads(row["weight_versions"])],
        finish_reason=row["finish_reason"],
        response_message=json.loads(row["response_message"]),
        temperature=row["temperature"],
        top_p=row["top_p"],
        state=row["state"],
        reason=row["reason"],
        next_state=None if row["next_state"] is None else json.loads(row["next_state"]),
        next_state_at=row["next_state_at"],
        signal=row["signal"],
        conversation=row["conversation"],
        malformed_calls=row["malformed_calls"],
        adapter_fallback=row["adapter_fallback"],
        response_topk=decode_topk(row["topk_log_probs"], row["topk_ids"], len(response_ids)),
        scored=bool(row["scored"]),
        plain=decode_plain(row),
    )


def decode_feedback(row: sqlite3.Row) -> Feedback:
    """Return the feedback of a row of ``feedback``."""
    return Feedback(
        turn_id=row["turn_id"],
        created_at=row["created_at"],
        thumbs=row["thumbs"],
        score=row["score"],
        text=row["text"],
        source=row["source"],
        action=row["action"],
        edit=row["edit"],
        applied=bool(row["applied"]),
    )


def decode_verdict(row: sqlite3.Row) -> Verdict:
    """Return the verdict of a row with the columns ``verdict`` and ``teacher_log_probs``."""
    teacher = unpack_floats(row["teacher_log_probs"])
    return Verdict.from_dict(json.loads(row["verdict"]), None if teacher is None else tuple(teacher))


def _columns() -> list[tuple[str, Stream]]:
    """Return the sample streams with a column of their own, and the column's name."""
    return [(name, stream) for name, stream in carried() if stream.column]


def _pack(values: Sequence[Any] | None, stream: Stream) -> bytes | None:
    if values is None:
        return None
    return pack_ids(values) if stream.dtype == "int64" else pack_floats(values)


def _unpack(blob: bytes | None, stream: Stream) -> list[Any] | None:
    if blob is None:
        return None
    return unpack_ids(blob) if stream.dtype == "int64" else unpack_floats(blob)


def encode_sample(sample: Sample) -> dict[str, Any]:
    """Return the columns of a sample.

    Raises:
        ValueError: naming what is inconsistent (`Sample.validate`) or not storable.
    """
    sample.validate()
    values = sample.to_dict()
    counted = {"oldest_version": next(iter(sample.weight_versions), None), "loss_tokens": loss_tokens(values)}
    columns: dict[str, bytes | None] = {"tokens": pack_ids(values.pop("tokens"))}
    for name, stream in _columns():
        numbers = values.pop(name, None)
        columns[name] = _pack(flat(numbers) if stream.top_k else numbers, stream)
    try:
        text = json.dumps(values)
    except TypeError as error:
        raise ValueError(f"a sample may hold only plain Python values: {error}") from error
    return {"sample": text, **counted, **columns}


def decode_sample(row: Row) -> Sample:
    """Return the sample of a row of ``samples``; its metadata says its ``ledger_id``, ``turn_id``, ``person`` and ``origin``."""
    values = json.loads(row["sample"])
    values["tokens"] = unpack_ids(row["tokens"])
    for name, stream in _columns():
        numbers = _unpack(row[name], stream)
        values[name] = in_rows(numbers, values["response_length"]) if stream.top_k else numbers
    sample = Sample.from_dict(values)
    of_row = {"ledger_id": row["id"], **{name: row[name] for name in ("turn_id", "person", "origin")}}
    sample.metadata = {**sample.metadata, **of_row}
    return sample
