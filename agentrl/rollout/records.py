"""Records of episodes: two files each in the run's ``episodes`` folder, append only.

``NAME.jsonl`` has one event per line: ``v`` (of this format), ``n`` (its number), ``time`` (Unix seconds), ``kind``, and the
fields of its kind. ``NAME.ids`` has the numbers of the replies, little endian: ids as 32-bit integers, log-probabilities as 64-bit
floats. A reply's event says where they are. A prompt is stored as what it adds to the tokens before it.

``NAME.N.png`` is the picture with the number ``N``, as the policy saw it.

Guarantees: the numbers are on disk before the event that names them. A file that a crash cut short is readable up to its
last whole line. Secrets are redacted, and once a text had one, the episode's ids are no longer stored, because they spell it
too. Nothing that the environment keeps to itself, such as a right answer, is here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from groundwork.images import png_bytes
from groundwork.private_files import private, private_folder
from openclaw.privacy.redactor import Redactor

VERSION = 1
FOLDER = "episodes"
IDS, LOG_PROBS = np.dtype("<i4"), np.dtype("<f8")
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class RecordError(ValueError):
    """A record cannot be read; the message says why."""


@cache
def _redactor() -> Redactor:
    return Redactor("secrets")


class EpisodeRecord:
    """Writes the record of one episode; `close` it at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        """Begin or continue the record ``name`` in a run's folder."""
        self.name = UNSAFE.sub("-", name)
        self._place = place = folder / FOLDER
        private_folder(place)
        self._events = FileIO(place / f"{self.name}.jsonl", "ab", opener=private)
        self._numbers = FileIO(place / f"{self.name}.ids", "ab", opener=private)
        self._count = 0
        self._tokens: list[int] = []
        self._withheld = False

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event with JSON values."""
        (event,) = _redactor().messages([fields])
        self._withheld = self._withheld or event != fields
        self._append(kind, event)

    def policy(self, prompt_ids: Sequence[int], ids: Sequence[int], log_probs: Sequence[float], **fields: Any) -> None:
        """Append a reply with its tokens."""
        (event,) = _redactor().messages([fields])
        self._withheld = self._withheld or event != fields
        before = len(self._tokens) if list(prompt_ids[: len(self._tokens)]) == self._tokens else 0
        added = [*prompt_ids[before:], *ids]
        stored: dict[str, Any] = {"prompt_tokens": len(prompt_ids), "keeps": before, "tokens": len(ids)}
        if self._withheld:
            stored["withheld"] = True
        else:
            stored["at"] = self._numbers.tell()
            self._numbers.write(np.array(added, IDS).tobytes() + np.array(log_probs, LOG_PROBS).tobytes())
        self._tokens = [*prompt_ids, *ids]
        self._append("policy", event | stored)

    def picture(self, number: int, image: Any) -> None:
        """Write a picture beside the record, as ``NAME.NUMBER.png``; events name it by its number."""
        with open(self._place / f"{self.name}.{number}.png", "wb", opener=private) as file:
            file.write(png_bytes(image))

    def close(self) -> None:
        """Close the files."""
        self._events.close()
        self._numbers.close()

    def _append(self, kind: str, event: dict[str, Any]) -> None:
        line = {"v": VERSION, "n": self._count, "time": round(time.time(), 3), "kind": kind, **event}
        self._events.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n")
        self._count += 1


@dataclass(frozen=True)
class Tokens:
    """The tokens of a stored reply."""

    prompt_ids: list[int]
    ids: list[int]
    log_probs: list[float]


@dataclass
class Episode:
    """A record that was read.

    Attributes:
        name: of the record.
        events: in order.
        tokens: of the replies that have stored ones, by the number of their event.
        cut: whether its last line is incomplete, as a crash leaves it.
    """

    name: str
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tokens: dict[int, Tokens] = field(default_factory=dict[int, Tokens])
    cut: bool = False

    def first(self, kind: str) -> dict[str, Any]:
        """Return the first event of a kind, or an empty one."""
        return next((event for event in self.events if event["kind"] == kind), {})


def names(folder: Path) -> list[str]:
    """Return the names of a run's records, oldest first."""
    files = sorted((folder / FOLDER).glob("*.jsonl"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return [file.stem for file in files]


def read(folder: Path, name: str, *, tokens: bool = True) -> Episode:
    """Return a record, without its ``tokens`` if they are not wanted: then the ``.ids`` file is not read.

    Raises:
        RecordError: there is none, it is of a newer version, or damaged before its last line.
    """
    place = folder / FOLDER / f"{name}.jsonl"
    try:
        *lines, rest = place.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise RecordError(f"no record {place}; --episodes lists those of a run") from error
    episode = Episode(name, cut=bool(rest))
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{place}: line {number} is damaged: {error}") from error
        if event["v"] > VERSION:
            raise RecordError(f"{place} is of version {event['v']}; this program reads up to {VERSION}; update it")
        episode.events.append(event)
    if tokens:
        _add_tokens(episode, place.with_suffix(".ids"))
    return episode


def _add_tokens(episode: Episode, numbers: Path) -> None:
    stored = numbers.read_bytes() if numbers.exists() else b""
    whole: list[int] = []
    for event in episode.events:
        if event["kind"] == "policy" and "at" in event:
            episode.tokens[event["n"]] = tokens = _read_tokens(stored, event, whole)
            whole = [*tokens.prompt_ids, *tokens.ids]


def _read_tokens(stored: bytes, event: dict[str, Any], before: Sequence[int]) -> Tokens:
    """Return a reply's tokens, given those of the reply before it."""
    prompt, count, keeps, start = (int(event[name]) for name in ("prompt_tokens", "tokens", "keeps", "at"))
    middle = start + (prompt - keeps + count) * IDS.itemsize
    end = middle + count * LOG_PROBS.itemsize
    if end > len(stored):
        raise RecordError(f"the .ids file ends at {len(stored)}, but event {event['n']} has numbers up to {end}")
    whole = [*before[:keeps], *np.frombuffer(stored[start:middle], IDS).tolist()]
    return Tokens(whole[:prompt], whole[prompt:], np.frombuffer(stored[middle:end], LOG_PROBS).tolist())
