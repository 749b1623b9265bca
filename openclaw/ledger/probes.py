"""The turns on which two versions of the weights are compared: kept out of training, or trained long before.

Guarantees: a turn becomes a probe when it is judged, and stays one: it has the reason `PROBE` and no sample, so its reply is
never trained, in no pass through the data. Which turns do is decided by parts of sessions (`part_of`), from a hash with a
secret of the ledger (`draw_key`), so that no client can choose: `BLOCK` turns in a row are probes or not. At most twice the
share of an owner's recent turns are, so that nobody's feedback is lost to the draw. A turn that saw pictures is not
compared, since the weights score ids alone. A forgotten session takes its probes and their scores along.

While there are few probes, turns that earlier steps have trained are compared, too. Which ones are is a reservoir: decided by
a hash of the number alone, so that new turns cannot displace old ones faster than their share of all turns grows.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import TypeVar

from groundwork.chat_messages import pictures_in
from openclaw.ledger.codec import decode_turn, pack_ids
from openclaw.ledger.database import Database, sessions_of
from openclaw.ledger.records import PASS, PROBE, Turn, first_pass
from openclaw.lessons.lesson import UNDER_LESSON
from openclaw.owners import owner_of, root

BLOCK = 16
"""Turns in a row of a session that are probes, or not, together: some people have one session for days."""
RECENT = 128
"""Number of an owner's judged turns in which the share of probes is bounded."""
CHUNK, CHUNKS = 256, 32
"""Turns whose verdicts one query reads, and the most queries of one choice."""
MULTIPLIER = 2654435761
"""Knuth's multiplicative hash: 2**32 divided by the golden ratio. The lowest hashes are spread evenly over time."""
SCALE = 2**64
KEY_BYTES = 32
DECIDED = f"state = 'judged' AND (reason IS NULL OR reason IN ('{PROBE}', '{UNDER_LESSON}'))"
"""Of turns that the draw decided about: those of lessons are drawn like the others, since the gate asks without lessons."""
T = TypeVar("T")


def part_of(session_id: str, turn_id: str, index: int) -> str:
    """Return the name of the part of a session that a turn, its number ``index``, belongs to: the same in all passes."""
    return f"{first_pass(session_id, turn_id)}#{index // BLOCK}"


def drawn(part: str, share: float, key: bytes) -> bool:
    """Return whether the turns of a part of a session are probes if ``share`` of all turns shall be.

    Args:
        part: of a session, see `part_of`.
        share: of all turns.
        key: secret of the ledger.
    """
    digest = blake2b(part.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * SCALE


def reservoir_order(number: int) -> int:
    """Return the place of a turn in the reservoir: the turns with the lowest ones are compared."""
    return number * MULTIPLIER % 2**32


@dataclass(frozen=True)
class Candidate:
    """A turn that can be compared.

    Attributes:
        turn_id: the turn.
        number: its position in the ledger.
        part: of its session, see `part_of`.
        owner: whose it is.
        liked: whether its verdict is 1; otherwise it is -1.
        stated: whether a person's feedback is the verdict.
        trained: whether an earlier step has trained it; otherwise it is kept out of training.
        tokens: of prompt and reply.
    """

    turn_id: str
    number: int
    part: str
    owner: str
    liked: bool
    stated: bool
    trained: bool
    tokens: int


def choose_probes(candidates: Sequence[Candidate], most: int, tokens: int) -> list[Candidate]:
    """Return the first candidates: at most ``most`` per opinion and ``tokens`` in all; the owners take turns.

    Args:
        candidates: the best ones of each owner first.
        most: bound per opinion.
        tokens: bound on the sum of prompts and replies.
    """
    liked, disliked = (
        islice(
            in_turn([candidate for candidate in candidates if candidate.liked == opinion], lambda each: each.owner),
            most,
        )
        for opinion in (True, False)
    )
    chosen: list[Candidate] = []
    waiting = deque([liked, disliked])
    while waiting:
        opinion = waiting.popleft()
        for item in opinion:
            if item.tokens > tokens:
                continue  # a shorter one may fit
            tokens -= item.tokens
            chosen.append(item)
            waiting.append(opinion)
            break
    return chosen


def in_turn(items: Iterable[T], owner: Callable[[T], str]) -> Iterator[T]:
    """Yield items, one of each owner per round."""
    queues: dict[str, deque[T]] = {}
    for item in items:
        queues.setdefault(owner(item), deque()).append(item)
    while queues:
        for name, queue in list(queues.items()):
            yield queue.popleft()
            if not queue:
                del queues[name]


class Probes:
    """The probe set."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def becomes_probe(self, turn: Turn, share: float) -> bool:
        """Return whether a turn that is being judged with an opinion shall be a probe, at this share of all turns.

        One that feedback lets judge again was a probe if it has the reason, and stays one. So is a turn that was one in
        another pass through the data, and none that gave a sample there is.
        """
        if not share:
            return False
        if turn.reason == PROBE:
            return True
        if pictures_in(turn.messages):
            return False
        if (elsewhere := self._in_other_passes(turn)) is not None:
            return elsewhere
        if not drawn(part_of(turn.session_id, turn.id, turn.index), share, self.draw_key()):
            return False
        of_person, names = sessions_of(root(owner_of(turn.session_id)))
        own = self._database.rows(
            f"SELECT reason FROM turns WHERE {of_person} AND {DECIDED} ORDER BY number DESC LIMIT ?", (*names, RECENT)
        )
        return sum(row["reason"] == PROBE for row in own) + 1 <= 2 * share * (len(own) + 1)

    def draw_key(self) -> bytes:
        """Return the secret of the draw, made at its first use."""
        query = "SELECT value FROM secrets WHERE name = 'probes'"
        if not (rows := self._database.rows(query)):
            with self._database.transaction() as connection:
                made = secrets.token_bytes(KEY_BYTES)
                connection.execute("INSERT INTO secrets VALUES ('probes', ?) ON CONFLICT DO NOTHING", (made,))
            rows = self._database.rows(query)
        return rows[0]["value"]

    def _in_other_passes(self, turn: Turn) -> bool | None:
        """Return whether the same turn is a probe in another pass through the data; None if none has decided."""
        first = first_pass(turn.session_id, turn.id)
        decided = f"position = ? AND response_ids = ? AND {DECIDED}"
        same = (turn.index, pack_ids(turn.response_ids))
        results = [
            row["reason"]
            for row in self._database.rows(
                "SELECT id, session_id, reason FROM turns INDEXED BY turns_by_session_state"
                f" WHERE session_id > ? AND session_id < ? AND {decided}",
                (f"{first}{PASS}", f"{first}{PASS}:", *same),  # the colon follows the digits
            )
            if first_pass(row["session_id"], row["id"]) == first
        ]
        if first != turn.session_id:
            own = self._database.rows(f"SELECT reason FROM turns WHERE session_id = ? AND {decided}", (first, *same))
            results += [row["reason"] for row in own]
        return PROBE in results if results else None

    def candidates(
        self, first: int, end: int, rollout_id: int, most: int, person: str | None = None
    ) -> list[Candidate]:
        """Return turns with numbers from ``first``, below ``end``, on which versions can be compared, in the order of choice.

        Probes come before trained turns, and each of the two in `reservoir_order`; the owners take turns.

        Args:
            first: lowest number.
            end: number above the highest.
            rollout_id: the batch; only turns that earlier ones have trained count.
            most: that are needed of each opinion.
            person: whose turns; None: everybody's.
        """
        of_person, names = ("1", ()) if person is None else sessions_of(person)
        rows = self._database.rows(
            f"SELECT number, session_id, reason FROM turns WHERE {of_person} AND state = 'judged' AND number >= ?"
            " AND number < ? AND (reason IS NULL OR reason = 'probe')",
            (*names, first, end),
        )
        rows.sort(key=lambda row: (row["reason"] is None, reservoir_order(row["number"])))
        numbers = [row["number"] for row in in_turn(rows, lambda row: root(owner_of(row["session_id"])))]
        candidates: list[Candidate] = []
        for start in range(0, min(len(numbers), CHUNK * CHUNKS), CHUNK):
            candidates += self._compared(numbers[start : start + CHUNK], rollout_id)
            counts = Counter(candidate.liked for candidate in candidates)
            if min(counts[True], counts[False]) >= most:
                break
        return candidates

    def _compared(self, numbers: Sequence[int], rollout_id: int) -> list[Candidate]:
        """Return those of the turns that have an opinion and are probes, or were trained before ``rollout_id``."""
        marks = ", ".join("?" for _ in numbers)
        rows = self._database.rows(
            "SELECT number, id, session_id, position, reason, verdict, (length(prompt_ids) + length(response_ids)) / 4 AS tokens"
            f" FROM turns JOIN verdicts ON verdicts.turn_id = turns.id WHERE number IN ({marks}) AND (reason = 'probe' OR EXISTS"
            " (SELECT 1 FROM samples WHERE samples.turn_id = turns.id AND samples.state IN ('leased', 'trained')"
            " AND samples.origin = 'live' AND samples.rollout_id < ?))"
            " AND NOT EXISTS (SELECT 1 FROM turn_pictures WHERE turn_pictures.turn_id = turns.id)",
            (*numbers, rollout_id),
        )
        verdicts = {row["number"]: json.loads(row["verdict"]) for row in rows}
        by_number = {
            row["number"]: Candidate(
                turn_id=row["id"],
                number=row["number"],
                part=part_of(row["session_id"], row["id"], row["position"]),
                owner=root(owner_of(row["session_id"])),
                liked=verdicts[row["number"]]["score"] > 0,
                stated=verdicts[row["number"]].get("score_source") == "feedback",
                trained=row["reason"] is None,
                tokens=row["tokens"],
            )
            for row in rows
            if verdicts[row["number"]]["score"]
        }
        return [by_number[number] for number in numbers if number in by_number]

    def turns(self, turn_ids: Sequence[str]) -> list[Turn]:
        """Return the turns with these ids that the ledger still has, in this order."""
        marks = ", ".join("?" for _ in turn_ids)
        rows = self._database.rows(f"SELECT * FROM turns WHERE id IN ({marks})", tuple(turn_ids))
        turns = {row["id"]: decode_turn(row) for row in rows}
        return [turns[turn_id] for turn_id in turn_ids if turn_id in turns]

    def newest_turns(self, count: int, tokens: int, person: str | None = None) -> list[Turn]:
        """Return the newest judged turns that gave samples, up to ``count`` and ``tokens`` of prompts and replies in all.

        With ``person``, of this person alone.
        """
        of_person, names = ("1", ()) if person is None else sessions_of(person)
        rows = self._database.rows(
            "SELECT id, (length(prompt_ids) + length(response_ids)) / 4 AS tokens FROM turns"
            f" WHERE {of_person} AND state = 'judged' AND reason IS NULL ORDER BY number DESC LIMIT ?",
            (*names, count),
        )
        chosen: list[str] = []
        for row in rows:
            tokens -= row["tokens"]
            if tokens >= 0:
                chosen.append(row["id"])
        return self.turns(chosen)
