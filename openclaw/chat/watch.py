"""Follows replies after the user's reaction: the judge's verdict, then the weights that learned from it.

Guarantees: a thread of its own asks the server, so nobody waits. Each piece of news is told once. A server that cannot
tell is asked no more. Owns the thread, which ends with `Watch.close`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw.chat.server import ChatError, MissingRecordError
from openclaw.messages.preview import preview

FIRST_SECONDS = 0.25
MAX_SECONDS = 5.0
MAX_WATCHED = 16
PREVIEW = 48
PROBE = "probe"
"""The reason of a turn that the gate keeps (`openclaw.ledger.probes`)."""


class OutcomeSource(Protocol):
    """What tells what became of a reply, like `openclaw.chat.server.Server`."""

    def outcome(self, response_id: str) -> dict[str, Any]: ...


@dataclass
class Watched:
    """A reply under watch: the reaction to it, and what was told already."""

    reaction: str
    judged: bool = False
    troubled: bool = False


class Watch:
    """Tells ``announce`` one line per piece of news."""

    def __init__(self, source: OutcomeSource, announce: Callable[[str], None]) -> None:
        """Start watching; nothing is watched yet."""
        self._source = source
        self._announce = announce
        self._watched: dict[str, Watched] = {}
        self._known: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._pause = FIRST_SECONDS
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def add(self, response_id: str, reaction: str) -> None:
        """Watch a reply that got ``reaction``, unless it had one before."""
        with self._changed:
            if response_id in self._known:
                return
            self._known.add(response_id)
            self._watched[response_id] = Watched(quoted(reaction))
            while len(self._watched) > MAX_WATCHED:
                del self._watched[next(iter(self._watched))]
            self._pause = FIRST_SECONDS
            self._changed.notify()

    def close(self) -> None:
        """Ask no more; wait for a request that is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        """Ask about every reply, in pauses that grow while there is nothing new."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._watched)
                if self._closed or self._changed.wait_for(lambda: self._closed, self._pause):
                    return
                due = list(self._watched.items())
                self._pause = min(2 * self._pause, MAX_SECONDS)
            for response_id, watched in due:
                if self._closed:
                    return
                if self._ask(response_id, watched):
                    with self._changed:
                        self._watched.pop(response_id, None)

    def _ask(self, response_id: str, watched: Watched) -> bool:
        """Announce what is new about one reply; return whether nothing more will be."""
        try:
            outcome = self._source.outcome(response_id)
        except MissingRecordError:
            return True
        except ChatError:
            return False
        for line in news(outcome, watched):
            self._announce(line)
            self._pause = FIRST_SECONDS
        return settled(outcome)


def settled(outcome: dict[str, Any]) -> bool:
    """Return whether nothing more will become of a reply."""
    if outcome["state"] == "judged":
        return outcome["sample"] in (None, "dropped") or outcome["weight_version"] is not None
    return outcome["state"] in ("ended", "excluded")


def news(outcome: dict[str, Any], watched: Watched) -> Iterator[str]:
    """Yield the lines that were not told yet; note them in ``watched``."""
    state, reason, sample = outcome["state"], outcome["reason"], outcome["sample"]
    if state == "excluded":
        yield f"not trained on: {reason}"
    if state == "pending" and outcome["judge_attempts"] and not watched.troubled:
        watched.troubled = True
        yield f"the judge failed on {watched.reaction} and tries again; openclaw-rl inspect RUN shows its error"
    if state != "judged":
        return
    if not watched.judged:
        watched.judged = True
        if sample:
            learns = f"it learns from {watched.reaction}"
        elif reason == PROBE:
            learns = f"kept to compare weights, so it does not learn from {watched.reaction}: {reason}"
        else:
            learns = f"nothing to learn from {watched.reaction}: {reason}"
        yield f"judged: {verdict(outcome)} ({learns})"
    if sample == "dropped":
        yield f"not trained on {watched.reaction}: {reason}"
    elif outcome["weight_version"] is not None:
        yield f"learned from {watched.reaction}: weights {outcome['weight_version']}"


def verdict(outcome: dict[str, Any]) -> str:
    """Return score and hint in words."""
    score, hint = outcome["score"], outcome["hint"]
    parts = [] if score is None else [f"{score:+d}" if score else "0"]
    return ", ".join([*parts, *([f"hint {quoted(hint)}"] if hint else [])]) or "no score"


def quoted(text: str) -> str:
    """Return ``text`` in quotes, on one line and not too long."""
    return f'"{preview(text, PREVIEW)}"'
