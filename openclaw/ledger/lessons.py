"""Lessons in the ledger: whose they are, where they come from, which turns read them, and their deletion.

Guarantees: a lesson belongs to one person, and every method that takes a lesson's id also takes that person and knows no
other's. Evidence is never counted twice: it is read from the verdicts of the turns that read a lesson, so a verdict that is taken
back takes its evidence along. A lesson that rests as learned is judged by its person's turns without it, in the same way, and
keeps each measurement (`openclaw.lessons.lesson.Measure`). A judge that finds no wish in a complaint any more retires the lesson that it gave, unless its
person has touched the lesson or another complaint gave it too; nothing is deleted. A lesson of the judge lives as long as the
session of one of the complaints that it comes from; one that its owner worded lives until it is deleted. A deleted lesson
leaves no token of it: the turns that read it keep their plain prompt alone, and their samples, if any, become tombstones, as does
all practice of its person, whose numbers come from a teacher that may have read it; `openclaw.ledger.sessions.Sessions.erase` then
removes the bytes. No step uses practice that was drawn before a lesson or the mode changed. The states are those of
`openclaw.lessons.lesson`.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from openclaw.ledger.codec import decode_plain, decode_turn, pack_ids, unpack_ids
from openclaw.ledger.database import Database, close_practice, sessions_of
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Turn
from openclaw.lessons.lesson import (
    LESSON_MOVES,
    MAX_KEPT,
    SERVED_STATES,
    UNWANTED,
    Lesson,
    Measure,
    Mode,
    UnusableLessonError,
    is_unused,
    judged_move,
    may_move,
    measured_move,
    moved_to,
    relation,
    usable_lesson,
)
from openclaw.owners import CHILD, EPISODE

_LEARNED = "(lessons.state = 'resting' AND lessons.reason = 'learned')"
_ITS_STEP = (
    "SELECT 1 FROM steps WHERE steps.weight_version = lesson_measures.weight_version AND (steps.person IS NULL"
    " OR steps.person = (SELECT person FROM lessons WHERE lessons.id = lesson_measures.lesson))"
)
_OF_UNDONE = (
    f"(EXISTS ({_ITS_STEP} AND undone_at IS NOT NULL) AND NOT EXISTS ({_ITS_STEP}"
    " AND undone_at IS NULL AND live_at <= lesson_measures.at))"
)
"""Whether a measure is of weights that a restored checkpoint or a rollback has undone."""
FORGOTTEN_LESSON = "forgotten_lesson"
"""Why a turn has no sample any more: the lesson that its prompt had was deleted."""


def _count(role: str, name: str, score: int | None = None) -> str:
    """Return the SQL of one number of a lesson's evidence: of its turns in a role, those with a verdict."""
    scored = "" if score is None else " JOIN verdicts USING (turn_id)"
    wanted = "" if score is None else f" AND json_extract(verdict, '$.score') = {score}"
    return (
        f" (SELECT COUNT(*) FROM lesson_turns{scored} WHERE lesson = lessons.id AND role = '{role}'{wanted}) AS {name}"
    )


_COUNTS = {
    "said": ("said", None),
    "served": ("read", None),
    "liked": ("read", 1),
    "disliked": ("read", -1),
    "without": ("without", None),
    "liked_without": ("without", 1),
    "disliked_without": ("without", -1),
}
"""The numbers of a lesson's evidence: the role of the turns that count, and their score."""
_EVIDENCE = (
    f"SELECT lessons.*,{','.join(_count(role, name, score) for name, (role, score) in _COUNTS.items())} FROM lessons"
)
_PLAIN = f"SELECT *, {', '.join(f'0 AS {name}' for name in _COUNTS)} FROM lessons"
"""Lessons without their evidence, which takes milliseconds to count."""
READ_IT = "turn_id IN (SELECT turn_id FROM lesson_turns WHERE lesson = ? AND role = 'read')"


@dataclass(frozen=True)
class Birth:
    """What the judge read in a complaint: the lesson, whether it waits for its person, and the older one that it replaces."""

    text: str
    waits: bool = False
    replaces: str | None = None


Wish = Birth | Literal["no_wish"] | None
"""What a judge read in a complaint: a lesson, no wish, or None if it could not be asked or its answer could not be read."""


class Lessons:
    """The lessons of everybody."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def mode(self, person: str, default: Mode) -> Mode:
        """Return what a person has chosen; ``default`` without a choice."""
        rows = self._database.rows("SELECT lessons FROM people WHERE person = ?", (person,))
        return rows[0]["lessons"] if rows else default

    def choose_mode(self, person: str, mode: Mode) -> None:
        """Commit a person's choice."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO people (person, lessons) VALUES (?, ?) ON CONFLICT DO UPDATE SET lessons = excluded.lessons",
                (person, mode),
            )
            close_practice(connection, person)

    def of(self, person: str) -> list[Lesson]:
        """Return a person's lessons with their evidence, the latest changed last."""
        rows = self._database.rows(f"{_EVIDENCE} WHERE person = ? ORDER BY changed_at, rowid", (person,))
        return [self._measured(_lesson(row)) for row in rows]

    def people(self) -> list[str]:
        """Return the people who have lessons, by name."""
        return [row["person"] for row in self._database.rows("SELECT DISTINCT person FROM lessons ORDER BY person")]

    def served(self, person: str) -> list[Lesson]:
        """Return the lessons that a person's requests may carry, the latest changed last, without their evidence."""
        states = ", ".join(f"'{state}'" for state in SERVED_STATES)
        return self._plain(f"person = ? AND state IN ({states}) ORDER BY changed_at, rowid", person)

    def wanted(self, person: str) -> list[Lesson]:
        """Return the lessons that a person's requests may carry and those that the weights have learned, as `served`."""
        states = ", ".join(f"'{state}'" for state in SERVED_STATES)
        wanted = f"(state IN ({states}) OR {_LEARNED})"
        return self._plain(f"person = ? AND {wanted} ORDER BY changed_at, rowid", person)

    def measurable_people(self) -> list[str]:
        """Return the people who have lessons that a measurement may move."""
        rows = self._database.rows(
            f"SELECT DISTINCT person FROM lessons WHERE state = 'active' OR {_LEARNED} ORDER BY person"
        )
        return [row["person"] for row in rows]

    def measurable(self, person: str) -> list[Lesson]:
        """Return a person's lessons that a measurement may move, with their evidence: active ones and learned ones."""
        return [each for each in self.of(person) if each.state == "active" or each.is_learned]

    def record_measure(self, person: str, lesson_id: str, text: str, measure: Measure) -> str | None:
        """Commit a measurement of a lesson and what it means for its state; return the move, or None if it stays.

        A lesson that was reworded or deleted meanwhile is left alone.
        """
        with self._database.transaction() as connection:
            found = self._plain("person = ? AND id = ? AND text = ?", person, lesson_id, text)
            if not found:
                return None
            values = {"lesson": lesson_id, **asdict(measure)}
            connection.execute(
                f"INSERT OR REPLACE INTO lesson_measures ({', '.join(values)}) VALUES ({', '.join('?' for _ in values)})",
                tuple(values.values()),
            )
            move = measured_move(found[0], measure)
            if move is not None:
                self._change(connection, found[0], move, touch=False)
        return move

    def unlearn(self, connection: sqlite3.Connection) -> None:
        """Serve again, inside a transaction, the lessons that rest as learned by nothing but measures of undone versions."""
        measured = f"SELECT 1 FROM lesson_measures WHERE lesson = lessons.id AND {_OF_UNDONE}"
        for lesson in self._plain(f"{_LEARNED} AND EXISTS ({measured})"):
            rows = connection.execute(
                f"SELECT * FROM lesson_measures WHERE lesson = ? AND NOT {_OF_UNDONE} ORDER BY at DESC", (lesson.id,)
            )
            left = map(_measure, rows.fetchall())
            decided = next((each for each in left if each.satisfied or each.missed), None)
            if decided is None or decided.missed:
                self._change(connection, lesson, "return", touch=False)

    def prompts(self, person: str, most: int, tokens: int) -> list[tuple[Turn, bool]]:
        """Return the newest turns of a person whose prompts may be answered anew, the newest first, and whether each was practised.

        These are main turns with their ids, without pictures, of no episode. The prompt is `Turn.student_ids`.

        Args:
            person: whose they are.
            most: turns.
            tokens: most of one prompt.
        """
        of_person, names = sessions_of(person)
        practised = "EXISTS (SELECT 1 FROM samples WHERE samples.turn_id = turns.id AND origin = 'practice')"
        rows = self._database.rows(
            f"SELECT *, {practised} AS practised FROM turns WHERE {of_person} AND kind = 'main' AND length(prompt_ids) BETWEEN 4 AND {4 * tokens}"
            f" AND instr(session_id, '{CHILD}{EPISODE}') = 0"
            f" AND NOT EXISTS (SELECT 1 FROM turn_pictures WHERE turn_id = turns.id) ORDER BY number DESC LIMIT {int(most)}",
            names,
        )
        return [(decode_turn(row), bool(row["practised"])) for row in rows]

    def get(self, person: str, lesson_id: str) -> Lesson:
        """Return one of a person's lessons.

        Raises:
            UnknownRecordError: if the person has no such lesson.
        """
        rows = self._database.rows(f"{_EVIDENCE} WHERE person = ? AND id = ?", (person, lesson_id))
        if not rows:
            raise UnknownRecordError(f"{self._database.path} has no lesson {lesson_id!r} of this person")
        return self._measured(_lesson(rows[0]))

    def _measured(self, lesson: Lesson) -> Lesson:
        """Return a lesson with its newest measurement."""
        rows = self._database.rows(
            "SELECT * FROM lesson_measures WHERE lesson = ? ORDER BY at DESC LIMIT 1", (lesson.id,)
        )
        return replace(lesson, measure=_measure(rows[0])) if rows else lesson

    def add(self, person: str, text: str, *, pinned: bool = False) -> Lesson:
        """Commit a lesson that its owner worded; one that says the same is served again instead.

        Raises:
            UnusableLessonError: if the text cannot be a lesson, or as many others as may be are pinned.
        """
        text = self._usable(text)
        with self._database.transaction() as connection:
            known = self._relations(person, text)
            if same := next((each for each in known["same"]), None):
                move = {"proposed": "accept", "resting": "switch_on", "retired": "switch_on"}.get(same.state)
                columns: dict[str, Any] = {"text": text, "origin": "owner", "touched": 1}
                columns["pinned"] = int(pinned or same.pinned or same.is_learned)
                self._change(connection, same, move, **columns)
                lesson_id = same.id
            else:
                lesson_id = self._insert(connection, person, text, "owner", "trial", pinned=pinned)
            for older in known["contrary"]:
                self._replace(connection, lesson_id, older)
            self._bound(connection, person)
        return self.get(person, lesson_id)

    def edit(
        self,
        person: str,
        lesson_id: str,
        *,
        text: str | None = None,
        pinned: bool | None = None,
        on: bool | None = None,
    ) -> Lesson:
        """Commit what an owner changes of a lesson: its words, whether it is pinned, whether it is served.

        Switching a proposed lesson on accepts it, switching it off declines it. A learned one that is switched on is pinned, or
        it would rest again. New words keep the state, but those of a learned lesson are served; the evidence of the old ones is
        dropped.

        Raises:
            UnknownRecordError: if the person has no such lesson.
            UnusableLessonError: if the text cannot be a lesson, or as many others as may be are pinned.
        """
        with self._database.transaction() as connection:
            lesson = self.get(person, lesson_id)
            self._database.update_one(connection, "lessons", lesson_id, touched=1)
            close_practice(connection, person)
            if text is not None and (text := self._usable(text)) != lesson.text:
                self._forget_words(connection, lesson)
                for table in ("lesson_turns", "lesson_measures"):
                    connection.execute(f"DELETE FROM {table} WHERE lesson = ?", (lesson_id,))
                if lesson.is_learned:
                    self._change(connection, lesson, "return", touch=False)
                self._database.update_one(
                    connection, "lessons", lesson_id, text=text, origin="owner", changed_at=self._database.clock()
                )
            if pinned is not None:
                self._database.update_one(connection, "lessons", lesson_id, pinned=int(pinned))
            lesson = self.get(person, lesson_id)
            if on is not None:
                moves = ("accept", "switch_on") if on else ("decline", "switch_off", "off_at_rest")
                move = next((each for each in moves if may_move(lesson, each)), None)
                if move is not None:
                    columns = {"pinned": 1} if on and lesson.is_learned else {}
                    self._change(connection, lesson, move, touch=on, **columns)
                    self._follow_up(connection, lesson)
                    for older in self._relations(person, lesson.text)["contrary"] if on else ():
                        self._replace(connection, lesson_id, older)
                    self._bound(connection, person)
        return self.get(person, lesson_id)

    def remove(self, person: str, lesson_id: str) -> None:
        """Delete a lesson, and what the prompts of turns have of it.

        Raises:
            UnknownRecordError: if the person has no such lesson.
        """
        with self._database.transaction() as connection:
            self._remove(connection, self.get(person, lesson_id))

    def forget_person(self, person: str) -> int:
        """Delete all lessons of a person and the person's choice; return the number of lessons."""
        with self._database.transaction() as connection:
            lessons = self.of(person)
            for lesson in lessons:
                self._remove(connection, lesson)
            for table in ("people", "practice_rounds"):
                connection.execute(f"DELETE FROM {table} WHERE person = ?", (person,))
        return len(lessons)

    def settle(self, connection: sqlite3.Connection, turn_id: str, person: str, wish: Wish) -> str | None:
        """Take in the verdict of a turn, inside the transaction that commits it.

        The lessons on trial that the turn read change their state by the evidence. The lesson that its complaint gives is
        born, and those that an earlier verdict on the same turn gave are withdrawn. For the learned lessons of its person it is
        evidence of what the weights do without them.

        Args:
            connection: in the transaction.
            turn_id: a judged turn.
            person: whose it is.
            wish: what the judge read in the reaction; None changes nothing of what an earlier verdict gave.

        Returns:
            What became of the wish: ``born``, ``proposed``, ``repeated`` (a lesson says so already), ``unlearned`` (one that
            the weights had learned says so, and is served again), ``replaced`` (it takes the place of an older one), or why it is none: ``unwanted`` (its person switched such a lesson off, or it had no
            effect). Without a wish: ``withdrawn`` if an earlier one was, else None.
        """
        connection.execute(
            "INSERT OR IGNORE INTO lesson_turns SELECT lessons.id, turns.id, 'without' FROM lessons, turns"
            f" WHERE lessons.person = ? AND {_LEARNED} AND turns.id = ? AND turns.kind = 'main'"
            f" AND turns.created_at >= lessons.rested_at"
            " AND NOT EXISTS (SELECT 1 FROM lesson_turns WHERE lesson = lessons.id AND turn_id = turns.id AND role = 'read')",
            (person, turn_id),
        )
        outcome = None if wish is None else self._heard(connection, turn_id, person, wish)
        read = connection.execute(
            f"{_EVIDENCE} WHERE state = 'trial'"
            " AND id IN (SELECT lesson FROM lesson_turns WHERE turn_id = ? AND role = 'read')",
            (turn_id,),
        ).fetchall()
        for lesson in map(_lesson, read):
            if move := judged_move(lesson):
                self._change(connection, lesson, move, touch=False)
                self._follow_up(connection, lesson)
        return outcome

    def still_has(self, turn: Turn) -> bool:
        """Return whether the ledger's prompt of a turn is still the one that ``turn`` has: no lesson of it was deleted."""
        rows = self._database.rows("SELECT prompt_ids FROM turns WHERE id = ?", (turn.id,))
        return bool(rows) and unpack_ids(rows[0]["prompt_ids"]) == turn.prompt_ids

    def age(self) -> int:
        """Retire the lessons that nobody used for long; return their number."""

        def unused() -> list[Lesson]:
            now = self._database.clock()
            return [each for each in self._plain("state <> 'retired' AND pinned = 0") if is_unused(each, now)]

        if not unused():
            return 0
        with self._database.transaction() as connection:
            old = unused()
            for lesson in old:
                self._change(connection, lesson, "age", touch=False)
        return len(old)

    def _plain(self, where: str, *parameters: str) -> list[Lesson]:
        """Return lessons without their evidence."""
        return [_lesson(row) for row in self._database.rows(f"{_PLAIN} WHERE {where}", parameters)]

    def _usable(self, text: str) -> str:
        redaction = self._database.redaction
        return usable_lesson(text) if redaction is None else usable_lesson(text, redacted=redaction.text)

    def _relations(self, person: str, text: str) -> dict[str, list[Lesson]]:
        """Return a person's lessons by what they are to a text."""
        results: dict[str, list[Lesson]] = {"same": [], "contrary": [], "other": []}
        for lesson in self._plain("person = ? ORDER BY changed_at, rowid", person):
            results[relation(lesson.text, text)].append(lesson)
        return results

    def _heard(
        self, connection: sqlite3.Connection, turn_id: str, person: str, wish: Birth | Literal["no_wish"]
    ) -> str | None:
        """Take in what a complaint says now; withdraw what it alone gave before and does not say any more."""
        of_turn = "turn_id = ? AND role = 'said'"
        before = connection.execute(f"SELECT lesson FROM lesson_turns WHERE {of_turn}", (turn_id,)).fetchall()
        connection.execute(f"DELETE FROM lesson_turns WHERE {of_turn}", (turn_id,))
        outcome = self._born(connection, turn_id, person, wish) if isinstance(wish, Birth) else None
        for (lesson_id,) in before:
            lesson = self.get(person, lesson_id)
            if lesson.origin == "owner" or lesson.said:
                continue
            self._source(connection, lesson_id, turn_id)  # it is forgotten with this turn's session
            if not lesson.touched and may_move(lesson, "withdraw"):
                self._unlink(connection, lesson)
                self._change(connection, lesson, "withdraw", touch=False, replaces=None)
                outcome = outcome or "withdrawn"
        return outcome

    def _born(self, connection: sqlite3.Connection, turn_id: str, person: str, birth: Birth) -> str:
        with suppress(UnusableLessonError):
            text = self._usable(birth.text)
            known = self._relations(person, text)
            if any(each.reason in UNWANTED for each in known["same"]):
                return "unwanted"
            named = [each for each in known["other"] if each.id == birth.replaces]
            older = [each for each in (*named, *known["contrary"]) if each.is_wanted]
            if same := next((each for each in known["same"]), None):
                again = {"resting": "return", "retired": "switch_on"}.get(same.state)
                self._source(connection, same.id, turn_id)
                proposed = again is not None and birth.waits and not same.is_learned
                self._change(connection, same, "propose" if proposed else again)
                waits, lesson_id = birth.waits or same.state == "proposed", same.id
                outcome = "unlearned" if same.is_learned else "repeated"
            else:
                waits, state = birth.waits, "proposed" if birth.waits else "trial"
                lesson_id = self._insert(connection, person, text, "judge", state)
                self._source(connection, lesson_id, turn_id)
                if older:
                    self._database.update_one(connection, "lessons", lesson_id, replaces=older[0].id)
                outcome = "proposed" if waits else "replaced" if older else "born"
            for each in () if waits else older:
                self._replace(connection, lesson_id, each)
            self._bound(connection, person)
            return outcome
        return "unusable"

    def _insert(
        self, connection: sqlite3.Connection, person: str, text: str, origin: str, state: str, *, pinned: bool = False
    ) -> str:
        lesson_id, now = f"lesson-{uuid.uuid4().hex[:16]}", self._database.clock()
        columns: dict[str, Any] = {"id": lesson_id, "person": person, "text": text, "origin": origin, "state": state}
        columns |= {"pinned": int(pinned), "created_at": now, "changed_at": now}
        self._database.insert(connection, "lessons", columns)
        close_practice(connection, person)
        return lesson_id

    def _source(self, connection: sqlite3.Connection, lesson_id: str, turn_id: str) -> None:
        connection.execute("INSERT OR IGNORE INTO lesson_turns VALUES (?, ?, 'said')", (lesson_id, turn_id))

    def _change(
        self, connection: sqlite3.Connection, lesson: Lesson, move: str | None, *, touch: bool = True, **columns: Any
    ) -> None:
        """Move a lesson, if ``move`` applies to it, and set columns; ``touch`` makes it the newest."""
        if move is not None and may_move(lesson, move):
            if LESSON_MOVES[move].target is None:  # its evidence decides
                lesson = self.get(lesson.person, lesson.id)
            columns["state"], columns["reason"] = moved_to(lesson, move)
            if columns["reason"] == "learned":
                columns["rested_at"] = self._database.clock()
            elif lesson.is_learned:
                columns["rested_at"] = None
                connection.execute("DELETE FROM lesson_turns WHERE lesson = ? AND role = 'without'", (lesson.id,))
        if touch:
            columns["changed_at"] = self._database.clock()
        if columns:
            self._database.update_one(connection, "lessons", lesson.id, **columns)
            close_practice(connection, lesson.person)

    def _replace(self, connection: sqlite3.Connection, lesson_id: str, older: Lesson) -> None:
        if older.is_wanted:
            replaced: dict[str, Any] = {"replaces": None} if older.replaces == lesson_id else {}
            self._change(connection, older, _replacing(older), touch=False, **replaced)
            self._database.update_one(connection, "lessons", lesson_id, replaces=older.id)

    def _follow_up(self, connection: sqlite3.Connection, before: Lesson) -> None:
        """Let the lesson that another one replaces rest when that one begins to be served, and return when it ends."""
        if before.replaces is None:
            return
        [(state,)] = connection.execute("SELECT state FROM lessons WHERE id = ?", (before.id,)).fetchall()
        for older in self._plain("person = ? AND id = ?", before.person, before.replaces):
            if state in SERVED_STATES and not before.is_wanted and older.is_wanted:
                self._change(connection, older, _replacing(older), touch=False)
            elif state not in SERVED_STATES and before.is_wanted and older.reason == "replaced":
                self._change(connection, older, "return", touch=False)

    def _bound(self, connection: sqlite3.Connection, person: str) -> None:
        """Retire a person's oldest lessons beyond `MAX_KEPT`, and delete the oldest retired ones beyond as many.

        Those that the person touched are deleted last, because a "no" shall last. Those that samples were made under stay,
        because nobody asked to delete the samples.

        Raises:
            UnusableLessonError: there are more, and all are pinned.
        """
        lessons = self._plain("person = ? ORDER BY changed_at, rowid", person)
        kept = [each for each in lessons if each.state != "retired"]
        free, excess = [each for each in kept if not each.pinned], max(0, len(kept) - MAX_KEPT)
        if excess > len(free):
            raise UnusableLessonError("number", f"you have {MAX_KEPT} pinned lessons; unpin or delete one first")
        for lesson in free[:excess]:
            self._change(connection, lesson, "crowd_out", touch=False)
        retired = [each for each in lessons if each.state == "retired"]
        excess = len(retired) - MAX_KEPT
        for lesson in sorted(retired, key=lambda each: each.touched):
            if excess <= 0:
                break
            if not connection.execute(f"SELECT 1 FROM samples WHERE {READ_IT} LIMIT 1", (lesson.id,)).fetchone():
                self._remove(connection, lesson)
                excess -= 1

    def _remove(self, connection: sqlite3.Connection, lesson: Lesson) -> None:
        """Delete a lesson."""
        self._forget_words(connection, lesson)
        self._unlink(connection, lesson)
        connection.execute("DELETE FROM lessons WHERE id = ?", (lesson.id,))

    def _unlink(self, connection: sqlite3.Connection, lesson: Lesson) -> None:
        """Let the lesson that this one replaces return, or be replaced by what replaced this one."""
        connection.execute(
            "UPDATE lessons SET replaces = NULLIF(?, id) WHERE replaces = ?", (lesson.replaces, lesson.id)
        )
        if lesson.is_wanted and lesson.replaces is not None:
            for older in self._plain("person = ? AND id = ?", lesson.person, lesson.replaces):
                if older.reason == "replaced":
                    self._change(connection, older, "return", touch=False)

    def _forget_words(self, connection: sqlite3.Connection, lesson: Lesson) -> None:
        """Leave the turns that read a lesson their plain prompt alone; delete their samples and the practice of its person."""
        learned = f"({READ_IT} OR (person = ? AND origin = 'practice'))"
        connection.execute(
            "INSERT OR IGNORE INTO forgotten_samples (id, rollout_id, forgotten_at) SELECT id,"
            f" CASE WHEN state IN ('leased', 'trained') THEN rollout_id END, ? FROM samples WHERE {learned}",
            (self._database.clock(), lesson.id, lesson.person),
        )
        connection.execute(
            "UPDATE turns SET reason = ? WHERE reason IS NULL AND state = 'judged'"
            " AND id IN (SELECT turn_id FROM lesson_turns WHERE lesson = ? AND role = 'read')",
            (FORGOTTEN_LESSON, lesson.id),
        )
        connection.execute(f"DELETE FROM samples WHERE {learned}", (lesson.id, lesson.person))
        rows = connection.execute(
            "SELECT id, prompt_ids, lesson_start, lesson_end, plain_middle FROM turns"
            " WHERE plain_middle IS NOT NULL AND id IN (SELECT turn_id FROM lesson_turns WHERE lesson = ? AND role = 'read')",
            (lesson.id,),
        ).fetchall()
        for row in rows:
            connection.execute(
                "UPDATE turns SET prompt_ids = ?, lesson_end = ?, topk_log_probs = NULL, topk_ids = NULL WHERE id = ?",
                _plain_alone(row),
            )

    def _drop_orphans(self, connection: sqlite3.Connection, lesson_ids: Collection[str]) -> None:
        """Delete those of the lessons that the judge worded and that no complaint supports any more."""
        for lesson_id in lesson_ids:
            supported = "EXISTS (SELECT 1 FROM lesson_turns WHERE lesson = id AND role = 'said')"
            for lesson in self._plain(f"id = ? AND origin = 'judge' AND NOT {supported}", lesson_id):
                self._remove(connection, lesson)

    def forget_session(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Delete what lessons have of a session that is about to be deleted, inside its transaction."""
        of_session = "turn_id IN (SELECT id FROM turns WHERE session_id = ?)"
        said = connection.execute(
            f"SELECT DISTINCT lesson FROM lesson_turns WHERE role = 'said' AND {of_session}", (session_id,)
        ).fetchall()
        connection.execute(f"DELETE FROM lesson_turns WHERE role = 'said' AND {of_session}", (session_id,))
        self._drop_orphans(connection, [row["lesson"] for row in said])
        connection.execute(f"DELETE FROM lesson_turns WHERE {of_session}", (session_id,))


def _replacing(older: Lesson) -> str:
    """Return the move by which a newer lesson replaces a wanted one."""
    return "replaced_at_rest" if older.is_learned else "replace"


def _plain_alone(row: sqlite3.Row) -> tuple[bytes, int, str]:
    """Return prompt ids and end of the lessons' place for a turn that keeps its plain prompt alone, and its id."""
    plain = decode_plain(row)
    assert plain is not None
    return pack_ids(plain.applied(unpack_ids(row["prompt_ids"]))), plain.start + len(plain.ids), row["id"]


def note_lessons(connection: sqlite3.Connection, turn_id: str, lessons: Sequence[tuple[str, str]], at: float) -> None:
    """Note the lessons that a new turn read, as id and text, inside the transaction that records it.

    If one of them was deleted or reworded meanwhile, the turn keeps its plain prompt alone and is no evidence for it.
    """
    known = 0
    for lesson in lessons:
        known += connection.execute(
            "UPDATE lessons SET served_at = ? WHERE id = ? AND text = ?", (at, *lesson)
        ).rowcount
        connection.execute(
            "INSERT INTO lesson_turns SELECT id, ?, 'read' FROM lessons WHERE id = ? AND text = ?", (turn_id, *lesson)
        )
    if known < len(lessons):
        row = connection.execute("SELECT * FROM turns WHERE id = ?", (turn_id,)).fetchone()
        if row["plain_middle"] is not None:
            connection.execute(
                "UPDATE turns SET prompt_ids = ?, lesson_end = ?, topk_log_probs = NULL, topk_ids = NULL WHERE id = ?",
                _plain_alone(row),
            )


def _measure(row: sqlite3.Row) -> Measure:
    return Measure(**{name: row[name] for name in row.keys() if name != "lesson"})  # noqa: SIM118 - a row yields values


def _lesson(row: sqlite3.Row) -> Lesson:
    values: dict[str, Any] = dict(row)
    del values["rested_at"]
    for name in ("pinned", "touched"):
        values[name] = bool(values[name])
    return Lesson(**values)
