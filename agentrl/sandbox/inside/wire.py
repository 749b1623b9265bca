"""Frames between the host and the supervisor, and the cap on a command's output.

A frame is the lengths of a JSON header and of a body (two big-endian 32-bit numbers), then both. Guarantee: a reader never
holds more than `MAX_HEADER` and `MAX_BODY` bytes of one frame.
"""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTHS = struct.Struct(">II")
MAX_HEADER = 4 << 20
MAX_BODY = 64 << 20
CHUNK = 1 << 16


class Frames:
    """Takes the frames out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the headers and bodies that are complete now.

        Raises:
            ValueError: a length is beyond the limits, or a header is not a JSON object.
        """
        self._buffer += data
        results: list[tuple[dict[str, Any], bytes]] = []
        while len(self._buffer) >= LENGTHS.size:
            header, body = LENGTHS.unpack_from(self._buffer)
            if header > MAX_HEADER or body > MAX_BODY:
                raise ValueError(f"a frame of {header} and {body} bytes is too large")
            start, end = LENGTHS.size + header, LENGTHS.size + header + body
            if len(self._buffer) < end:
                break
            fields = json.loads(self._buffer[LENGTHS.size : start])
            if not isinstance(fields, dict):
                raise ValueError("the header of a frame is not a JSON object")
            results.append((fields, bytes(self._buffer[start:end])))
            del self._buffer[:end]
        return results


def frame(fields: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the frame of a header and a body."""
    header = json.dumps(fields).encode()
    return LENGTHS.pack(len(header), len(body)) + header + body


class Capped:
    """The head and the tail of a stream, ``most`` bytes together."""

    def __init__(self, most: int) -> None:
        self._tail_most = most // 2
        self._head_most = most - self._tail_most
        self._head, self._tail = bytearray(), bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._seen += len(data)
        room = self._head_most - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._tail_most + CHUNK:
            del self._tail[: len(self._tail) - self._tail_most]

    def result(self) -> tuple[bytes, int]:
        """Return what is kept, and how many bytes between head and tail are not."""
        tail = self._tail[max(0, len(self._tail) - self._tail_most) :]
        kept = bytes(self._head + tail)
        return kept, self._seen - len(kept)
