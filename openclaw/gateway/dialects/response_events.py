"""The events of a streamed response: every item is added, grows, and is done; the last event has the whole response.

Guarantees: events are numbered from 0 without a gap, whatever else the stream sends. Each item's ``done`` has what its deltas add up to,
and the items of the last event are exactly those that were done. A custom call is told at its end, because its input is known
only when its arguments are whole. `ResponseWriter` owns the state of one stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from chat_codec.reply_parser import Content, Delta, Reasoning, ToolCallArguments, ToolCallStart
from openclaw.gateway.capture import Capture, Step
from openclaw.gateway.dialects.dialect import Writer, event
from openclaw.gateway.dialects.response_items import Item, ItemWriter, entries_of, text_part
from openclaw.gateway.errors import CANCELLED, ApiError


@dataclass
class _Open:
    """The item that grows."""

    kind: str
    place: int
    id: str = ""
    begin: bytes = b""
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    call: ToolCallStart | None = None


class ResponseWriter(Writer):
    """Writes the events of one streamed response."""

    def __init__(self, response: Mapping[str, Any], items: ItemWriter, *, logprobs: bool) -> None:
        """Start a stream of a response that is in progress; ``logprobs``: those of its texts are told."""
        self._response = dict(response)
        self._items = items
        self._logprobs = logprobs
        self._number = 0
        self._open: _Open | None = None
        self._done: list[Item] = []
        self._held: list[Mapping[str, Any]] = []

    def start(self) -> bytes:
        """Return the events that begin a stream; nothing the second time."""
        if self._number:
            return b""
        return self._event("response.created", response=self._response) + self.alive()

    def alive(self) -> bytes:
        """Return an event that says that the response is in progress, after those that begin a stream."""
        return self.start() or self._event("response.in_progress", response=self._response)

    def step(self, step: Step) -> bytes:
        """Return the events of the next step."""
        data = self.start()
        if self._logprobs:
            self._held += step.logprobs
        for delta in step.deltas:
            data += self._delta(delta)
        return data

    def finished(self, *, complete: bool) -> tuple[bytes, list[Item]]:
        """Return the events that end the last item, and all items."""
        data = self.start() + self._close(complete=complete)
        if not self._done:
            data += self._begin_text() + self._close(complete=complete)
        return data, self._done

    def end_with(self, kind: str, response: Mapping[str, Any]) -> bytes:
        """Return the last event."""
        return self._event(kind, response=response)

    def failure(self, error: ApiError) -> bytes:
        """Return the events that end a stream which failed; items that were not done are not part of the response."""
        status = "cancelled" if error.code == CANCELLED else "failed"
        response = {**self._response, "status": status, "output": self._done, "error": stated(error)}
        return self.start() + self._event("response.failed", response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _piece(self, begin: bytes, text: str) -> bytes:
        """Return a delta's event, of which ``begin`` has everything but number and text."""
        self._number += 1
        return b'%b%d,"delta":%b}\n\n' % (begin, self._number - 1, orjson.dumps(text))

    def _delta(self, delta: Delta) -> bytes:
        data, current = b"", self._open
        match delta:
            case Reasoning(text):
                if current is None or current.kind != "reasoning":
                    data = self._close() + self._begin_thought()
                return data + self._grown(text)
            case Content(text):
                if current is None or current.kind != "message":
                    data = self._close() + self._begin_text()
                return data + self._spoken(text)
            case ToolCallStart():
                return self._close() + self._begin_call(delta)
            case ToolCallArguments(_, text):
                return self._grown(text)

    def _grown(self, text: str) -> bytes:
        current = self._open
        assert current is not None
        current.texts.append(text)
        return self._piece(current.begin, text) if current.begin else b""

    def _spoken(self, text: str) -> bytes:
        """Return a text's event; held log-probabilities before those of the text are of something else."""
        current = self._open
        assert current is not None
        if not self._logprobs:
            return self._grown(text)
        entries, self._held = entries_of(text, self._held), []
        current.logprobs += entries
        current.texts.append(text)
        where = {"item_id": current.id, "output_index": current.place, "content_index": 0}
        return self._event("response.output_text.delta", **where, delta=text, logprobs=entries)

    def _where(self, current: _Open) -> dict[str, Any]:
        return {"item_id": self._item(current, complete=True)["id"], "output_index": current.place}

    def _begin(self, current: _Open, kind: str, item: Item, **fields: Any) -> bytes:
        """Open an item whose deltas are events of type ``kind``; return the event that adds it."""
        self._open, current.id = current, item["id"]
        named = {"type": kind, "item_id": item["id"], "output_index": current.place, **fields}
        current.begin = f"event: {kind}\ndata: ".encode() + orjson.dumps(named)[:-1] + b',"sequence_number":'
        return self._event("response.output_item.added", output_index=current.place, item=item)

    def _begin_thought(self) -> bytes:
        current = _Open("reasoning", len(self._done))
        item = self._items.thought(current.place, None, whole=False)
        data = self._begin(current, "response.reasoning_summary_text.delta", item, summary_index=0)
        part = {"type": "summary_text", "text": ""}
        return data + self._event(
            "response.reasoning_summary_part.added", **self._where(current), summary_index=0, part=part
        )

    def _begin_text(self) -> bytes:
        current = _Open("message", len(self._done))
        item = self._items.message(current.place, [], "in_progress")
        data = self._begin(current, "response.output_text.delta", item, content_index=0, logprobs=[])
        return data + self._event(
            "response.content_part.added", **self._where(current), content_index=0, part=text_part("")
        )

    def _begin_call(self, call: ToolCallStart) -> bytes:
        current = _Open("call", len(self._done), call=call)
        if self._items.is_custom(call.name):
            self._open = current
            return b""
        item = self._items.call(current.place, call.id, call.name, "", "in_progress")
        return self._begin(current, "response.function_call_arguments.delta", item)

    def _item(self, current: _Open, *, complete: bool) -> Item:
        """Return an item as it is now."""
        text, status = "".join(current.texts), "completed" if complete else "incomplete"
        if current.kind == "reasoning":
            return self._items.thought(current.place, text)
        if current.call is not None:
            return self._items.call(current.place, current.call.id, current.call.name, text, status)
        return self._items.message(current.place, [text_part(text, current.logprobs)], status)

    def _close(self, *, complete: bool = True) -> bytes:
        """Return the events that end the open item, if there is one."""
        current, self._open, self._held = self._open, None, []
        if current is None:
            return b""
        item = self._item(current, complete=complete)
        self._done.append(item)
        where, text = self._where(current), "".join(current.texts)
        data = b""
        if current.kind == "reasoning":
            where["summary_index"] = 0
            data += self._event("response.reasoning_summary_text.done", **where, text=text)
            data += self._event("response.reasoning_summary_part.done", **where, part=item["summary"][0])
        elif current.kind == "message":
            where["content_index"] = 0
            data += self._event("response.output_text.done", **where, text=text, logprobs=current.logprobs)
            data += self._event("response.content_part.done", **where, part=item["content"][0])
        elif item["type"] == "custom_tool_call":
            begun = {**item, "input": "", "status": "in_progress"}
            data += self._event("response.output_item.added", output_index=current.place, item=begun)
            data += self._event("response.custom_tool_call_input.delta", **where, delta=item["input"])
            data += self._event("response.custom_tool_call_input.done", **where, input=item["input"])
        else:
            data += self._event(
                "response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"]
            )
        return data + self._event("response.output_item.done", output_index=current.place, item=item)


def stated(error: ApiError) -> dict[str, Any]:
    """Return an error as the ``error`` of a response."""
    return {"code": error.code or error.kind, "message": error.message}


def reasons(captures: Sequence[Capture]) -> dict[str, Any] | None:
    """Return ``incomplete_details`` of a reply that a limit cut off, or None."""
    return {"reason": "max_output_tokens"} if captures[0].finish_reason == "length" else None
