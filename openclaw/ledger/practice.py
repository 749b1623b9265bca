"""Practice in the ledger: its rounds, the prompts that it may use, and those that are kept to measure it.

Guarantees: the samples of a round and the round itself are committed together, so a process that dies in a round leaves nothing
of it, and one that starts again goes on after the last whole round. A round is trained under the lessons that its teacher read or
not at all: whatever changes them, or the mode, closes it (`openclaw.ledger.database.close_practice`). One whose step was undone
counts no more. A prompt, by its ids, is held out or practised, never both. Prompts are those of a person's own judged main turns:
no probe of the gate, no episode, no side turn, none with pictures or secrets. A forgotten session takes its prompts and the samples
drawn from them along. A round knows its lessons by a digest of their ids and times, so it holds no word of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from groundwork.chat_messages import pictures_in
from openclaw.ledger.codec import decode_sample, decode_turn, pack_ids, prompt_of
from openclaw.ledger.database import Database, close_practice, sessions_of
from openclaw.ledger.decisions import ROLLBACK
from openclaw.ledger.records import LESSONS_CHANGED, PROBE, REDACTED, Turn
from openclaw.ledger.samples import insert_sample
from openclaw.lessons.lesson import SERVED_STATES
from slime.utils.types import Sample

RoundOutcome = Literal["drawn", "reached", "stuck", "failed"]
REPLAYED = "replayed"
"""Entry of a sample's metadata: it is a turn of the person that is trained again."""
_LOOK_BACK = 256
_COUNTS = (
    f"NOT EXISTS (SELECT 1 FROM samples WHERE practice_round = done.id AND reason IN ('{ROLLBACK}', '{LESSONS_CHANGED}'))"
    " AND NOT EXISTS (SELECT 1 FROM steps WHERE live_at <= done.at AND undone_at > done.at"
    " AND (steps.person IS NULL OR steps.person = done.person))"
)
"""Whether a round counts: its replies were not taken back, nor the weights that it measured."""
_NOT_LIVE = (
    "state IN ('ready', 'leased') AND NOT EXISTS"
    " (SELECT 1 FROM steps WHERE steps.rollout_id = samples.rollout_id AND undone_at IS NULL)"
)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a person's practice.

    Attributes:
        series: digest of what the teacher reads; rounds with other lessons begin anew.
        outcome: ``drawn``: it gave samples; ``reached``: the weights do without the lessons what the teacher does with them;
            ``stuck``: the last rounds brought them no nearer; ``failed``: no reply could be drawn or scored.
        kl: nats per token from the weights to the teacher on the held-out prompts, before the round; None: not measured.
        tokens: of prompts and replies of its samples.
        at: when it began, seconds since the epoch.
    """

    series: str
    outcome: RoundOutcome
    kl: float | None
    tokens: int
    at: float


class Practices:
    """The practice of everybody."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def people(self) -> list[str]:
        """Return the people who have lessons that requests carry."""
        states = ", ".join(f"'{state}'" for state in SERVED_STATES)
        rows = self._database.rows(f"SELECT DISTINCT person FROM lessons WHERE state IN ({states}) ORDER BY person")
        return [row["person"] for row in rows]

    def rounds(self, person: str, series: str) -> list[Round]:
        """Return a person's rounds with the same lessons, oldest first, without those that a rollback or a restore undid."""
        rows = self._database.rows(
            "SELECT series, outcome, kl, tokens, at FROM practice_rounds AS done WHERE person = ? AND series = ?"
            f" AND {_COUNTS} ORDER BY id",
            (person, series),
        )
        return [Round(**dict(row)) for row in rows]

    def under_way(self, person: str, series: str) -> bool:
        """Return whether practised replies of a person wait for a step whose weights are live.

        Rounds of another series are closed first.
        """
        query = f"SELECT 1 FROM samples WHERE person = ? AND origin = 'practice' AND {_NOT_LIVE} LIMIT 1"
        if not self._database.rows(query, (person,)):
            return False
        with self._database.transaction() as connection:
            close_practice(connection, person, series)
        return bool(self._database.rows(query, (person,)))

    def prompts(self, person: str, lessons: Sequence[str], most: int, tokens: int) -> tuple[list[Turn], list[Turn]]:
        """Return turns whose prompts may be practised, the newest first, and the held-out ones.

        The prompt is `Turn.student_ids`. One that already has the complaint which gave a lesson in it is left out: there the
        lesson says nothing new. Of turns with the same prompt, such as a reply and its regeneration, the newest is taken. Two
        prompts are held out as soon as a person has twice as many, one as soon as there are two that were never practised. So
        prompts that come one by one are measured, too, although each is practised at once.

        Args:
            person: whose they are.
            lessons: ids of those that are practised.
            most: turns to practise.
            tokens: most of one prompt.
        """
        turns = self._usable(person, lessons, tokens)
        kept = self._prompts_of("SELECT turn_id FROM heldout_prompts WHERE person = ?", person)
        used = self._prompts_of("SELECT turn_id FROM samples WHERE person = ? AND origin = 'practice'", person)
        new = [prompt for prompt in turns if prompt not in kept | used]
        free = len(new) if len(turns) >= 2 * HELDOUT else len(new) // 2
        missing = min(HELDOUT - len(kept & turns.keys()), free)
        kept |= set(new[: max(0, missing)])
        practised = [turn for prompt, turn in turns.items() if prompt not in kept]
        return practised[:most], [turn for prompt, turn in turns.items() if prompt in kept][:HELDOUT]

    def _prompts_of(self, turns: str, person: str) -> set[bytes]:
        """Return the packed ids of the prompts of turns that an SQL query names."""
        columns = "prompt_ids, lesson_start, lesson_end, plain_middle"
        return set(map(prompt_of, self._database.rows(f"SELECT {columns} FROM turns WHERE id IN ({turns})", (person,))))

    def replayable(self, person: str, heldout: Sequence[str], most: int, uses: int) -> list[Sample]:
        """Return the newest samples of a person's own turns that live weights have learned from, the newest first.

        Those of episodes, of held-out prompts, with pictures, those that a late opinion corrected, and those that rounds trained
        again ``uses`` times are left out.

        Args:
            person: whose they are.
            heldout: turns whose prompts measure this round.
            most: samples, before those with pictures are left out.
            uses: how often a turn may be trained again.
        """
        held = ("", *heldout)
        rows = self._database.rows(
            "SELECT * FROM samples AS own WHERE person = ? AND origin = 'live' AND episode IS NULL AND state IN"
            " ('leased', 'trained') AND rollout_id IN (SELECT rollout_id FROM steps WHERE undone_at IS NULL)"
            " AND NOT EXISTS (SELECT 1 FROM samples AS other WHERE other.turn_id = own.turn_id AND other.origin = 'live'"
            " AND other.id <> own.id) AND (SELECT COUNT(*) FROM samples AS again WHERE again.turn_id = own.turn_id"
            f" AND again.origin = 'practice' AND json_extract(again.sample, '$.metadata.{REPLAYED}')) < ?"
            f" AND turn_id NOT IN (SELECT turn_id FROM heldout_prompts UNION VALUES {', '.join(['(?)'] * len(held))})"
            " ORDER BY id DESC LIMIT ?",
            (person, uses, *held, most),
        )
        return [sample for sample in map(decode_sample, rows) if not pictures_in(sample.prompt)]

    def _usable(self, person: str, lessons: Sequence[str], tokens: int) -> dict[bytes, Turn]:
        """Return the newest turn of each prompt, the newest first, by the packed ids of the prompt."""
        of_person, names = sessions_of(person)
        rows = self._database.rows(
            f"SELECT * FROM turns WHERE {of_person} AND kind = 'main' AND state = 'judged'"
            f" AND length(prompt_ids) BETWEEN 4 AND {4 * tokens}"
            f" AND (reason IS NULL OR reason NOT IN ('{PROBE}', '{REDACTED}'))"
            " AND NOT EXISTS (SELECT 1 FROM lesson_turns JOIN turns AS told ON told.id = turn_id WHERE role = 'said'"
            f" AND lesson IN ({', '.join('?' for _ in lessons)}) AND told.session_id = turns.session_id"
            f" AND told.number < turns.number) ORDER BY number DESC LIMIT {_LOOK_BACK}",
            (*names, *lessons),
        )
        usable: dict[bytes, Turn] = {}
        for turn in map(decode_turn, rows):
            if not pictures_in(turn.messages) and len(turn.student_ids) <= tokens:
                usable.setdefault(pack_ids(turn.student_ids), turn)
        return usable

    def record(
        self,
        person: str,
        done: Round,
        still_true: Callable[[], bool],
        samples: Sequence[tuple[str, Sample]] = (),
        heldout: Sequence[str] = (),
        made_by: str | None = None,
    ) -> bool:
        """Commit a round; return False, with nothing written, if a turn was deleted or the lessons changed meanwhile.

        Args:
            person: whose it is.
            done: the round.
            still_true: asked inside the transaction, whether the teacher would read the same lessons now.
            samples: pairs of the turn whose prompt was practised, and the sample.
            heldout: turns whose prompts measured it.
            made_by: the method that trains them.
        """
        named = {*heldout, *(turn_id for turn_id, _ in samples)}
        with self._database.transaction() as connection:
            marks = ", ".join("?" for _ in named)
            [(known,)] = connection.execute(
                f"SELECT COUNT(*) FROM turns WHERE id IN ({marks})", tuple(named)
            ).fetchall()
            if known < len(named) or not still_true():
                return False
            number = self._database.insert(connection, "practice_rounds", {"person": person, **vars(done)})
            own = {"practice_round": number, "made_by": made_by}
            connection.executemany(
                "INSERT OR IGNORE INTO heldout_prompts (turn_id, person) VALUES (?, ?)",
                [(each, person) for each in heldout],
            )
            for turn_id, sample in samples:
                insert_sample(self._database, connection, turn_id, sample, origin="practice", **own)
        return True


HELDOUT = 2
"""Prompts of a person that measure practice and are never practised."""


def forget_prompts(connection: sqlite3.Connection, session_id: str) -> None:
    """Delete what practice has of a session that is about to be deleted, inside its transaction."""
    connection.execute(
        "DELETE FROM heldout_prompts WHERE turn_id IN (SELECT id FROM turns WHERE session_id = ?)", (session_id,)
    )
