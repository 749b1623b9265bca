"""Lessons in the ledger: birth, repetition, contradiction and its undo, evidence, bounds, walls and deletion."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.copying import ChangedTurn
from openclaw.ledger.database import Database
from openclaw.ledger.exceptions import TransitionError, UnknownRecordError
from openclaw.ledger.lessons import FORGOTTEN_LESSON, Birth, Wish
from openclaw.ledger.records import PlainPart, Verdict
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import (
    CONFIRMED_LIKES,
    ENOUGH_DISLIKES,
    MAX_KEPT,
    UNDER_LESSON,
    UNUSED_DAYS,
    Lesson,
    Measure,
    UnusableLessonError,
)
from openclaw.owners import LOCAL
from openclaw.privacy.redactor import Redactor
from openclaw.training.samples import make_sample

ALICE, BOB = "alice", "bob"
DAY = 86400.0


class Run:
    """A ledger with a clock, and how its lessons are born and judged."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.ledger = Ledger(path, clock=lambda: self.now, redaction=Redactor("secrets"))
        self.lessons = self.ledger.lessons
        self.count = 0
        self.words: dict[str, str] = {}

    def text_of(self, lesson_id: str) -> str:
        rows = self.ledger.database.rows("SELECT text FROM lessons WHERE id = ?", (lesson_id,))
        return rows[0]["text"] if rows else ""

    def turn(self, *, read: tuple[str, ...] = (), session: str = "@alice:s") -> str:
        """Record a turn that read lessons and has a next state."""
        self.count += 1
        self.now += 1.0
        plain = PlainPart(1, 3, (9,)) if read else None
        turn = make_turn(
            f"turn-{self.count}",
            session_id=session,
            lessons=tuple((each, self.words.setdefault(each, self.text_of(each))) for each in read),
            plain=plain,
            created_at=self.now,
            finished_at=self.now,
        )
        self.ledger.turns.record(turn)
        self.ledger.turns.record_next_state(turn.id, USER_NEXT, self.now)
        return turn.id

    def judge(
        self, turn_id: str, score: int | None, wish: Wish = None, *, trains: bool = False, person: str = ALICE
    ) -> str | None:
        """Commit a verdict and what lessons make of it."""
        self.now += 1.0
        samples = [make_sample(self.ledger.turns.get(turn_id), 1.0, score=score)] if trains else []
        with self.ledger.transaction() as connection:
            reason = None if samples else UNDER_LESSON
            record_judged(self.ledger, turn_id, Verdict(score=score), samples, reason)
            return self.lessons.settle(connection, turn_id, person, wish)

    def born(self, text: str, *, waits: bool = False, replaces: str | None = None, session: str = "@alice:s") -> Lesson:
        """Let a complaint give a lesson."""
        self.judge(self.turn(session=session), -1, Birth(text, waits, replaces))
        return self.named(text)

    def named(self, text: str, person: str = ALICE) -> Lesson:
        [result] = [each for each in self.lessons.of(person) if each.text == text]
        return result

    def states(self) -> dict[str, tuple[str, str | None]]:
        return {each.text: (each.state, each.reason) for each in self.lessons.of(ALICE)}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    result = Run(tmp_path / "ledger.sqlite")
    yield result
    result.ledger.close()


def test_a_complaint_gives_a_lesson_and_its_repetition_is_counted(run: Run) -> None:
    first = run.born("Keep answers short.")
    assert (first.state, first.origin, first.said, first.person) == ("trial", "judge", 1, ALICE)
    run.judge(run.turn(), -1, Birth("keep answers SHORT"))
    [lesson] = run.lessons.of(ALICE)
    assert (lesson.said, lesson.text) == (2, "Keep answers short.")
    assert lesson.changed_at > first.changed_at


def test_likes_and_dislikes_decide(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    for count in range(ENOUGH_DISLIKES - 1):
        run.judge(run.turn(read=(lesson.id,)), -1)
        assert run.named(lesson.text).disliked == count + 1
    assert run.named(lesson.text).state == "trial"
    run.judge(run.turn(read=(lesson.id,)), 1)
    assert run.states() == {lesson.text: ("active", None)}
    for _ in range(ENOUGH_DISLIKES):
        run.judge(run.turn(read=(lesson.id,)), -1)
    assert run.named(lesson.text).state == "active", "one like keeps it"

    other = run.born("Answer in German.")
    for _ in range(ENOUGH_DISLIKES):
        run.judge(run.turn(read=(other.id,)), -1)
    assert run.states()[other.text] == ("retired", "no_effect")
    assert run.judge(run.turn(), -1, Birth("Answer in German.")) == "unwanted"
    assert run.states()[other.text] == ("retired", "no_effect")


def test_a_verdict_that_is_taken_back_takes_its_evidence_and_its_lesson_along(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    read = run.turn(read=(lesson.id,))
    run.judge(read, -1)
    assert run.named(lesson.text).disliked == 1
    complaint = run.turn()
    assert run.judge(complaint, -1, Birth("Answer in German.")) == "born"
    with run.ledger.transaction() as connection:
        for turn_id in (read, complaint):
            assert run.ledger.turns.take_back(connection, turn_id)
    assert run.named(lesson.text).disliked == 0
    assert run.judge(complaint, 1, "no_wish") == "withdrawn"
    assert run.states() == {lesson.text: ("trial", None), "Answer in German.": ("retired", "withdrawn")}
    assert run.judge(run.turn(), -1, Birth("Answer in German.")) == "repeated"
    assert run.states()["Answer in German."] == ("trial", None)


def again(run: Run, turn_id: str, wish: Wish) -> str | None:
    """Judge a turn again, as after a late opinion."""
    with run.ledger.transaction() as connection:
        assert run.ledger.turns.take_back(connection, turn_id)
    return run.judge(turn_id, -1, wish)


def test_a_judge_that_fails_withdraws_nothing(run: Run) -> None:
    complaint = run.turn()
    run.judge(complaint, -1, Birth("Keep answers short."))
    assert again(run, complaint, None) is None
    assert run.states() == {"Keep answers short.": ("trial", None)}
    assert run.named("Keep answers short.").said == 1


@pytest.mark.parametrize("act", ["accept", "decline", "off", "off and on", "pin", "unpin"])
def test_no_judge_withdraws_what_a_person_touched(run: Run, act: str) -> None:
    text, complaint = "Keep answers short.", run.turn()
    run.judge(complaint, -1, Birth(text, waits=act in ("accept", "decline")))
    changes: list[dict[str, bool]] = {
        "accept": [{"on": True}],
        "decline": [{"on": False}],
        "off": [{"on": False}],
        "off and on": [{"on": False}, {"on": True}],
        "pin": [{"pinned": True}],
        "unpin": [{"pinned": True}, {"pinned": False}],
    }[act]
    for change in changes:
        run.lessons.edit(ALICE, run.named(text).id, **change)
    before = run.named(text)
    assert again(run, complaint, "no_wish") is None
    assert again(run, complaint, Birth("Answer in German.")) == "born"
    assert run.named(text) == before
    run.ledger.sessions.forget("@alice:s")
    assert run.lessons.of(ALICE) == [], "it is still forgotten with the session of its complaint"


def test_a_withdrawn_lesson_gives_back_what_it_replaced_and_keeps_samples(run: Run) -> None:
    older = run.born("Use metric units.")
    complaint = run.turn()
    run.judge(complaint, -1, Birth("Do not use metric units."))
    newer = run.named("Do not use metric units.")
    run.judge(run.turn(read=(newer.id,)), 0, trains=True)
    assert run.states()[older.text] == ("resting", "replaced")
    assert again(run, complaint, "no_wish") == "withdrawn"
    assert run.states() == {older.text: ("trial", None), newer.text: ("retired", "withdrawn")}
    assert run.ledger.views.counts()["samples"] == {"ready": 1}


def test_a_withdrawn_link_of_a_chain_leaves_no_lesson_behind(run: Run) -> None:
    a = run.born("Write at most 3 sentences.")
    complaint = run.turn()
    run.judge(complaint, -1, Birth("Write at most 5 sentences."))
    c = run.born("Write at most 7 sentences.")
    assert again(run, complaint, "no_wish") == "withdrawn"
    run.lessons.remove(ALICE, c.id)
    assert run.states()[a.text] == ("trial", None)


def test_the_newer_of_two_contrary_lessons_counts_until_it_goes(run: Run) -> None:
    older = run.born("Write at most 3 sentences.")
    run.judge(run.turn(read=(older.id,)), 1)
    assert run.judge(run.turn(), -1, Birth("Write at most 5 sentences.")) == "replaced"
    newer = run.named("Write at most 5 sentences.")
    assert run.states() == {older.text: ("resting", "replaced"), newer.text: ("trial", None)}
    run.lessons.edit(ALICE, newer.id, on=False)
    assert run.states() == {older.text: ("active", None), newer.text: ("resting", "off")}
    run.lessons.edit(ALICE, newer.id, on=True)
    assert run.states()[older.text] == ("resting", "replaced")
    run.lessons.remove(ALICE, newer.id)
    assert run.states() == {older.text: ("active", None)}, "it has a like"


def test_a_chain_of_replacements_is_undone_link_by_link(run: Run) -> None:
    a = run.born("Write at most 3 sentences.")
    b = run.born("Write at most 5 sentences.")
    c = run.born("Write at most 7 sentences.")
    run.lessons.remove(ALICE, b.id)
    assert run.states() == {a.text: ("resting", "replaced"), c.text: ("trial", None)}
    run.lessons.remove(ALICE, c.id)
    assert run.states() == {a.text: ("trial", None)}


def test_three_wishes_in_a_circle_come_back_one_by_one(run: Run) -> None:
    texts = [f"Write at most {number} sentences." for number in (3, 5, 7)]
    for text in (texts[0], texts[1], texts[0], texts[2], texts[1]):
        run.judge(run.turn(), -1, Birth(text))
    for gone, back in ((texts[1], texts[2]), (texts[2], texts[0])):
        run.lessons.remove(ALICE, run.named(gone).id)
        assert [each.text for each in run.lessons.served(ALICE)] == [back]
    last = run.named(texts[0])
    assert last.replaces is None
    run.lessons.edit(ALICE, last.id, on=False)
    assert run.lessons.edit(ALICE, last.id, on=True).is_served


def test_saying_the_old_wish_again_turns_the_replacement_round(run: Run) -> None:
    older = run.born("Use metric units.")
    newer = run.born("Do not use metric units.")
    run.judge(run.turn(), -1, Birth("Use metric units."))
    assert run.states() == {older.text: ("trial", None), newer.text: ("resting", "replaced")}
    run.lessons.remove(ALICE, older.id)
    assert run.states() == {newer.text: ("trial", None)}


def test_the_judge_may_name_what_a_lesson_replaces(run: Run) -> None:
    older = run.born("Answer in German.")
    run.born("Only English from now on.", replaces=older.id)
    assert run.states()[older.text] == ("resting", "replaced")
    assert run.judge(run.turn(), -1, Birth("Never use tables.", replaces="lesson-of-somebody-else")) == "born"


@pytest.mark.parametrize("how", ["switched on", "added", "said again"])
def test_a_lesson_that_came_back_stays_beside_what_replaced_it(run: Run, how: str) -> None:
    """A like of the newer one, which has been served all along, is no new wish against the older."""
    older = run.born("Answer in German.")
    newer = run.born("Only English from now on.", replaces=older.id)
    if how == "switched on":
        run.lessons.edit(ALICE, older.id, on=True)
    elif how == "added":
        run.lessons.add(ALICE, older.text)
    else:
        run.judge(run.turn(), -1, Birth(older.text))
    run.judge(run.turn(read=(newer.id,)), 1)
    assert run.states() == {older.text: ("trial", None), newer.text: ("active", None)}


def test_a_proposed_lesson_waits_for_its_person(run: Run) -> None:
    served = run.born("Use metric units.")
    waiting = run.born("Do not use metric units.", waits=True)
    assert [each.id for each in run.lessons.served(ALICE)] == [served.id]
    assert run.states()[served.text] == ("trial", None), "nothing is replaced before it is accepted"
    run.lessons.edit(ALICE, waiting.id, on=True)
    assert [each.id for each in run.lessons.served(ALICE)] == [waiting.id]
    declined = run.born("Answer in German.", waits=True)
    run.lessons.edit(ALICE, declined.id, on=False)
    assert run.states()[declined.text] == ("retired", "declined")
    assert run.judge(run.turn(), -1, Birth(declined.text, waits=True)) == "unwanted"


def test_what_its_person_switched_off_stays_off(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    run.lessons.edit(ALICE, lesson.id, on=False)
    assert run.judge(run.turn(), -1, Birth(lesson.text)) == "unwanted"
    assert run.lessons.served(ALICE) == []
    run.now += (UNUSED_DAYS + 1) * DAY
    assert run.lessons.age() == 1
    assert run.states() == {lesson.text: ("retired", "off")}
    assert run.judge(run.turn(), -1, Birth(lesson.text)) == "unwanted"
    assert run.lessons.edit(ALICE, lesson.id, on=True).is_served


def test_a_crowd_does_not_undo_a_no(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    run.lessons.edit(ALICE, lesson.id, on=False)
    for number in range(2 * MAX_KEPT + 2):
        run.now += 1.0
        run.lessons.add(ALICE, f"word{number} other{number}")
        if number >= MAX_KEPT:  # and many more that nobody touched
            run.born(f"said{number} again{number}")
    assert run.states()[lesson.text] == ("retired", "off")
    assert run.judge(run.turn(), -1, Birth(lesson.text)) == "unwanted"


@pytest.mark.parametrize("how", ["replaced", "aged", "aged proposal", "withdrawn"])
def test_in_mode_confirm_a_repeated_wish_waits_again(run: Run, how: str) -> None:
    text, complaint = "Use metric units.", run.turn()
    run.judge(complaint, -1, Birth(text, waits=how == "aged proposal"))
    if how == "replaced":
        run.born("Do not use metric units.")
    elif how == "withdrawn":
        again(run, complaint, "no_wish")
    else:
        run.now += (UNUSED_DAYS + 1) * DAY
        assert run.lessons.age() == 1
    served = [each.text for each in run.lessons.served(ALICE)]
    assert run.judge(run.turn(), -1, Birth(text, waits=True)) == "repeated"
    assert run.states()[text] == ("proposed", None)
    assert [each.text for each in run.lessons.served(ALICE)] == served
    run.lessons.edit(ALICE, run.named(text).id, on=True)
    assert [each.text for each in run.lessons.served(ALICE)] == [text], "the contrary lesson rests once it is accepted"


def test_in_mode_confirm_a_repeated_wish_replaces_nothing(run: Run) -> None:
    wished, contrary = run.born("Use metric units.", waits=True), run.born("Do not use metric units.")
    for waits in (True, False):
        run.judge(run.turn(), -1, Birth(wished.text, waits=waits))
        assert run.states() == {wished.text: ("proposed", None), contrary.text: ("trial", None)}


def test_a_wish_in_another_topic_is_learned_beside_one_that_is_off(run: Run) -> None:
    german = run.born("Answer in German.")
    run.lessons.edit(ALICE, german.id, on=False)
    assert run.judge(run.turn(), -1, Birth("Answer in English.")) == "born"


def test_verdicts_and_age_count_no_evidence_that_they_do_not_need(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence is read for lessons on trial alone, and age takes no write lock without a lesson to retire."""
    counted: list[str] = []

    def score(text: str, path: str) -> object:
        if path != "$.score":
            return json.loads(text)[0]["version"]
        counted.append(text)
        return json.loads(text)["score"]

    with run.ledger.transaction() as connection:
        connection.create_function("json_extract", 2, score)
    lesson = run.born("Keep answers short.")
    run.judge(run.turn(read=(lesson.id,)), 1)
    counted.clear()
    assert run.named(lesson.text).state == "active"
    assert counted, "the like made it active"
    turn_id = run.turn(read=(lesson.id,))
    counted.clear()
    with run.ledger.transaction() as connection:
        run.lessons.settle(connection, turn_id, ALICE, None)
        run.lessons.settle(connection, turn_id, ALICE, Birth("Answer in German."))
    assert counted == []
    monkeypatch.setattr(Database, "transaction", lambda self: pytest.fail("a write lock"))
    assert run.lessons.age() == 0
    monkeypatch.undo()


def test_old_lessons_retire_unless_they_are_used_or_pinned(run: Run) -> None:
    unused, used, pinned = (run.born(text) for text in ("Use metric units.", "Answer in German.", "No tables."))
    run.lessons.edit(ALICE, pinned.id, pinned=True)
    run.now += (UNUSED_DAYS - 1) * DAY
    run.turn(read=(used.id,))
    run.now += 2 * DAY
    assert run.lessons.age() == 1
    assert run.states()[unused.text] == ("retired", "unused")
    assert {each.id for each in run.lessons.served(ALICE)} == {used.id, pinned.id}
    assert run.judge(run.turn(), -1, Birth(unused.text)) == "repeated"
    assert run.named(unused.text).state == "trial"


def test_a_person_has_a_bounded_number_of_lessons(run: Run) -> None:
    words = [f"{a}{b}" for a in "abcdefghijklmnop" for b in "abcdefghijklmnop"]
    first = run.lessons.add(ALICE, f"wish {words[0]}", pinned=True)
    for word in words[1:]:
        run.now += 1.0
        run.lessons.add(ALICE, f"{word} {word[::-1]}x please")
    kept = [each for each in run.lessons.of(ALICE) if each.state != "retired"]
    assert len(kept) == MAX_KEPT
    assert first.id in {each.id for each in kept}
    assert len(run.lessons.of(ALICE)) <= 2 * MAX_KEPT + 1


def test_no_pin_and_no_switch_passes_the_bound(run: Run) -> None:
    words = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefghijkl"]
    for word in words[:-MAX_KEPT]:
        run.lessons.add(ALICE, f"{word} please")
    for word in words[-MAX_KEPT:]:
        run.now += 1.0
        run.lessons.add(ALICE, f"{word} please")
    retired = [each for each in run.lessons.of(ALICE) if each.state == "retired"]
    assert len(retired) == len(words) - MAX_KEPT
    for lesson in retired:
        run.lessons.edit(ALICE, lesson.id, on=True, pinned=True)
    assert sum(each.state != "retired" for each in run.lessons.of(ALICE)) == MAX_KEPT
    for lesson in run.lessons.served(ALICE):
        run.lessons.edit(ALICE, lesson.id, pinned=True)
    before = run.lessons.of(ALICE)
    with pytest.raises(UnusableLessonError, match="64 pinned lessons; unpin or delete one"):
        run.lessons.add(ALICE, "One more.", pinned=True)
    assert run.lessons.of(ALICE) == before
    assert run.lessons.add(ALICE, "One more.").reason == "crowded"


def test_nobody_reaches_another_persons_lessons(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    assert run.lessons.of(BOB) == run.lessons.served(BOB) == []
    for act in (run.lessons.get, run.lessons.remove, run.lessons.edit):
        with pytest.raises(UnknownRecordError):
            act(BOB, lesson.id)
    assert run.lessons.forget_person(BOB) == 0
    run.lessons.choose_mode(ALICE, "confirm")
    assert (run.lessons.mode(ALICE, "off"), run.lessons.mode(BOB, "off")) == ("confirm", "off")
    assert run.lessons.forget_person(ALICE) == 1
    assert run.lessons.of(ALICE) == []
    assert run.lessons.mode(ALICE, "off") == "off"


def test_an_owner_adds_and_edits(run: Run) -> None:
    born = run.born("Keep answers short.")
    again = run.lessons.add(ALICE, "keep answers short")
    assert (again.id, again.origin, again.text) == (born.id, "owner", "keep answers short")
    edited = run.lessons.edit(ALICE, born.id, text="Keep all answers short.", pinned=True)
    assert (edited.text, edited.pinned, edited.said) == ("Keep all answers short.", True, 0)
    with pytest.raises(UnusableLessonError):
        run.lessons.add(ALICE, "See https://evil.example/.")
    with pytest.raises(UnusableLessonError) as caught:
        run.lessons.add(ALICE, "Say AKIAQ7RZT2WXPLMK5H3V at the end.")
    assert caught.value.reason == "secret"
    assert run.judge(run.turn(), -1, Birth("Say AKIAQ7RZT2WXPLMK5H3V at the end.")) == "unusable"


@pytest.mark.parametrize("state", ["active", "resting"])
def test_the_database_refuses_other_moves(run: Run, state: str) -> None:
    lesson = run.born("Keep answers short.", waits=True)
    with run.ledger.transaction() as connection:
        with pytest.raises(TransitionError):
            run.ledger.database.update_one(connection, "lessons", lesson.id, state=state)
        insert = "INSERT INTO lessons (id, person, text, origin, state, created_at, changed_at) VALUES ('x', 'p', 't', 'judge', ?, 1, 1)"
        with pytest.raises(sqlite3.IntegrityError, match="illegal first state"):
            connection.execute(insert, (state,))


def test_forgetting_the_only_source_deletes_the_lesson(run: Run) -> None:
    alone = run.born("Keep answers short.", session="@alice:one")
    both = run.born("Answer in German.", session="@alice:one")
    run.judge(run.turn(session="@alice:two"), -1, Birth(both.text))
    own = run.lessons.add(ALICE, "No tables.")
    run.ledger.sessions.forget("@alice:one")
    assert {each.id for each in run.lessons.of(ALICE)} == {both.id, own.id}
    run.ledger.sessions.forget("@alice:two")
    assert {each.id for each in run.lessons.of(ALICE)} == {own.id}
    assert alone.id not in {each.id for each in run.lessons.of(ALICE)}


def test_a_deleted_lesson_leaves_no_token(run: Run, tmp_path: Path) -> None:
    lesson = run.born("Keep zebras striped.")
    read, trained = run.turn(read=(lesson.id,)), run.turn(read=(lesson.id,))
    run.judge(trained, 1, trains=True)
    assert run.ledger.turns.get(read).prompt_ids == [1, 2, 3, 4]
    assert run.ledger.turns.get(read).student_ids == [1, 9, 4]
    run.lessons.remove(ALICE, lesson.id)
    for turn_id in (read, trained):
        turn = run.ledger.turns.get(turn_id)
        assert turn.prompt_ids == turn.student_ids == [1, 9, 4]
        assert turn.plain is not None
    assert run.ledger.turns.get(trained).reason == FORGOTTEN_LESSON
    assert run.ledger.views.counts()["samples"] == {}
    assert run.words[lesson.id] == lesson.text
    late = run.turn(read=(lesson.id,))
    assert run.ledger.turns.get(late).prompt_ids == [1, 9, 4], "a reply that was under way when it was deleted"
    run.ledger.sessions.erase()
    run.ledger.close()
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"zebras" not in everything
    run.ledger = Ledger(tmp_path / "ledger.sqlite")


def test_a_reply_under_words_that_were_edited_meanwhile_is_no_evidence(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    run.judge(run.turn(read=(lesson.id,)), 0)
    run.lessons.edit(ALICE, lesson.id, text="Keep answers long.")
    late = run.turn(read=(lesson.id,))
    assert run.ledger.turns.get(late).prompt_ids == [1, 9, 4]
    run.judge(late, 1)
    edited = run.named("Keep answers long.")
    assert (edited.served, edited.liked, edited.state) == (0, 0, "trial")


def test_the_bound_deletes_no_lesson_that_samples_were_made_under(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    run.judge(run.turn(read=(lesson.id,)), 0, trains=True)
    for number in range(2 * MAX_KEPT + 2):
        run.now += 1.0
        run.born(f"said{number} again{number}")
    assert run.states()[lesson.text] == ("retired", "crowded")
    assert len(run.lessons.of(ALICE)) <= 2 * MAX_KEPT + 1
    assert run.ledger.views.counts()["samples"] == {"ready": 1}


def test_a_turn_travels_with_its_plain_prompt_but_without_lessons(run: Run, tmp_path: Path) -> None:
    lesson = run.born("Keep answers short.")
    turn_id = run.turn(read=(lesson.id,))
    changed = run.ledger.transfer.changed(0.0, 0, 10)
    assert ["plain" in each.to_dict()["turn"] for each in changed] == [False, True]
    changed = [each for each in changed if each.turn.id == turn_id]
    [arrived] = [ChangedTurn.from_dict(json.loads(json.dumps(each.to_dict()))) for each in changed]
    with closing(Ledger(tmp_path / "other.sqlite")) as other:
        assert other.transfer.merge(arrived)
        assert other.turns.get(turn_id).student_ids == [1, 9, 4]
        assert other.lessons.of(ALICE) == []


IDS = st.lists(st.integers(0, 5), max_size=12)


@given(IDS, IDS, IDS, IDS)
def test_the_plain_prompt_is_kept_exactly(
    begin: list[int], served: list[int], plain: list[int], end: list[int]
) -> None:
    with_lessons, without = [*begin, *served, *end], [*begin, *plain, *end]
    part = PlainPart.between(with_lessons, without)
    assert part.applied(with_lessons) == without
    assert 0 <= part.start <= part.end <= len(with_lessons)
    assert len(part.ids) <= max(len(plain), len(without) - part.start)


def measured(
    version: str = "8", *, plain: float, taught: float = 3.0, error: float = 0.2, scorer: str = "base"
) -> Measure:
    return Measure(
        weight_version=version,
        at=5000.0 + float(version),
        scorer=scorer,  # type: ignore[arg-type]
        prompts=8,
        practised=4,
        plain=plain,
        taught=taught,
        error=error,
        taught_error=error,
    )


def learned(run: Run, text: str = "Keep answers short.") -> Lesson:
    """Let a lesson be born, liked and learned by the weights."""
    lesson = run.born(text)
    run.judge(run.turn(read=(lesson.id,)), 1)
    assert run.lessons.record_measure(ALICE, lesson.id, text, measured(plain=2.9)) == "learn"
    return run.named(text)


@pytest.mark.parametrize(
    ("numbers", "satisfied", "missed"),
    [
        ({"plain": 2.9}, True, False),
        ({"plain": 2.7}, False, False),
        ({"plain": 2.5}, False, True),
        ({"plain": 1.2, "error": 2.0, "taught": 5.0}, False, True),
        ({"plain": 0.3, "error": 0.2, "taught": 0.3}, False, False),
        ({"plain": 1.0, "taught": 1.0, "error": 0.0, "scorer": "judge"}, True, False),
        ({"plain": 0.4, "taught": 0.45, "error": 0.3, "scorer": "judge"}, False, False),
    ],
)
def test_a_measurement_says_only_what_its_error_allows(numbers: dict, satisfied: bool, missed: bool) -> None:
    found = measured(**numbers)
    assert (found.satisfied, found.missed) == (satisfied, missed)


def test_a_lesson_that_the_weights_satisfy_rests_with_its_evidence(run: Run) -> None:
    lesson = learned(run)
    assert (lesson.state, lesson.reason, lesson.measure) == ("resting", "learned", measured(plain=2.9))
    assert run.lessons.served(ALICE) == []
    assert [each.id for each in run.lessons.wanted(ALICE)] == [lesson.id]
    liked, other = run.turn(), run.turn(session="@bob:s")
    run.judge(liked, 1)
    run.judge(other, 1, person=BOB)
    lesson = run.named(lesson.text)
    assert (lesson.without, lesson.liked_without, lesson.disliked_without, lesson.is_confirmed) == (1, 1, 0, False)
    for _ in range(CONFIRMED_LIKES - 1):
        run.judge(run.turn(), 1)
    assert run.named(lesson.text).is_confirmed
    run.judge(run.turn(), -1)
    assert not run.named(lesson.text).is_confirmed
    run.ledger.sessions.forget("@bob:s")
    run.now += (UNUSED_DAYS + 1) * DAY
    assert run.lessons.age() == 0, "the weights use it"


@pytest.mark.parametrize("waits", [False, True])
def test_the_same_complaint_brings_a_learned_lesson_back(run: Run, waits: bool) -> None:
    lesson = learned(run)
    run.judge(run.turn(), 1)
    assert run.judge(run.turn(), -1, Birth("keep answers short", waits)) == "unlearned"
    lesson = run.named(lesson.text)
    assert (lesson.state, lesson.reason, lesson.said, lesson.without) == ("active", None, 2, 0)
    assert lesson.measure is not None, "why it rested is still told"


def test_weights_that_stop_satisfying_it_bring_it_back(run: Run) -> None:
    lesson = learned(run)
    assert run.lessons.record_measure(ALICE, lesson.id, lesson.text, measured("9", plain=2.7)) is None
    assert run.lessons.record_measure(ALICE, lesson.id, lesson.text, measured("10", plain=1.0)) == "return"
    lesson = run.named(lesson.text)
    assert (lesson.state, lesson.reason, lesson.measure) == ("active", None, measured("10", plain=1.0))


def step(run: Run, version: int) -> None:
    run.ledger.samples.record_step(version, str(version), 900.0, 4000.0 + version)


@pytest.mark.parametrize("by", ["restored", "rollback"])
def test_a_lesson_that_undone_weights_had_learned_is_served_again(run: Run, by: str) -> None:
    for version in (7, 8, 9):
        step(run, version)
    lesson = learned(run)
    run.judge(run.turn(), 1)

    def back(rollout_id: int) -> Lesson:
        if by == "restored":
            run.ledger.samples.reconcile(rollout_id)
        else:
            run.ledger.decisions.record_rollback(rollout_id, 9, "10", 6000.0)
        return run.named(lesson.text)

    assert run.lessons.record_measure(ALICE, lesson.id, lesson.text, measured("9", plain=2.7)) is None
    assert back(9).reason == back(8).reason == "learned", "version 8 had learned it"
    lesson = back(7)
    assert (lesson.state, lesson.reason, lesson.without) == ("active", None, 0)
    assert [each.id for each in run.lessons.served(ALICE)] == [lesson.id]


def test_what_earlier_weights_had_learned_and_lost_is_served_again(run: Run) -> None:
    for version in (8, 9, 10):
        step(run, version)
    lesson = learned(run)
    moves = [
        run.lessons.record_measure(ALICE, lesson.id, lesson.text, measured(version, plain=plain))
        for version, plain in (("9", 1.0), ("10", 2.9))
    ]
    assert moves == ["return", "learn"]
    run.ledger.samples.reconcile(9)
    assert run.named(lesson.text).state == "active"


def test_the_number_of_an_undone_version_proves_nothing_when_it_is_used_again(run: Run) -> None:
    step(run, 8)
    lesson = learned(run)
    run.ledger.samples.record_step(9, "9", 900.0, 900.0)
    with run.ledger.transaction() as connection:
        connection.execute("UPDATE steps SET undone_at = 5500.0 WHERE rollout_id = 8")
    run.ledger.samples.record_step(8, "8", 5600.0, 5600.0)
    run.ledger.samples.reconcile(9)
    assert run.named(lesson.text).state == "active"


def test_only_a_proven_unpinned_lesson_of_these_words_rests(run: Run) -> None:
    lesson = run.born("Keep answers short.")
    assert run.lessons.record_measure(ALICE, lesson.id, lesson.text, measured(plain=3.0)) is None, "nobody liked it"
    run.judge(run.turn(read=(lesson.id,)), 1)
    assert run.lessons.record_measure(BOB, lesson.id, lesson.text, measured(plain=3.0)) is None
    assert run.lessons.record_measure(ALICE, lesson.id, "Keep answers long.", measured(plain=3.0)) is None
    run.lessons.edit(ALICE, lesson.id, pinned=True)
    assert run.lessons.record_measure(ALICE, lesson.id, lesson.text, measured(plain=3.0)) is None
    assert run.named(lesson.text).state == "active"
    assert (run.lessons.measurable_people(), len(run.lessons.measurable(ALICE))) == ([ALICE], 1)


def test_its_person_may_switch_a_learned_lesson_on_off_or_reword_it(run: Run) -> None:
    on, off, reworded = learned(run), learned(run, "No tables."), learned(run, "Answer in German.")
    assert run.lessons.edit(ALICE, on.id, on=True).pinned, "it would rest again"
    assert run.named(on.text).state == "active"
    lesson = run.lessons.edit(ALICE, off.id, on=False)
    assert (lesson.state, lesson.reason) == ("resting", "off")
    assert run.judge(run.turn(), -1, Birth(off.text)) == "unwanted"
    lesson = run.lessons.edit(ALICE, reworded.id, text="Answer in French.")
    assert (lesson.state, lesson.reason, lesson.measure) == ("trial", None, None)


def test_a_contrary_wish_replaces_a_learned_lesson_until_it_goes(run: Run) -> None:
    old = learned(run, "Use metric units.")
    new = run.born("Do not use metric units.")
    assert (run.named(old.text).state, run.named(old.text).reason) == ("resting", "replaced")
    run.lessons.remove(ALICE, new.id)
    assert run.named(old.text).state == "active"


def test_a_learned_lesson_that_replaced_another_keeps_it_at_rest(run: Run) -> None:
    old = run.born("Use metric units.")
    new = learned(run, "Do not use metric units.")
    assert run.named(old.text).reason == "replaced"
    run.lessons.edit(ALICE, new.id, on=False)
    assert run.named(old.text).state == "trial"


def test_prompts_are_the_persons_own_main_turns(run: Run) -> None:
    mine, child = run.turn(), run.turn(session="@alice/phone:s")
    run.turn(session="@bob:s")
    run.ledger.turns.record(make_turn("agent", session_id="@alice/episode-0123:s"))
    run.turn(session="at home")
    for name, more in {
        "side": {"kind": "side"},
        "long": {"prompt_ids": [1] * 100},
        "redacted": {"prompt_ids": []},
    }.items():
        run.ledger.turns.record(make_turn(name, session_id="@alice:s", **more))
    with run.ledger.transaction() as connection:
        sample = make_sample(run.ledger.turns.get(mine), 1.0)
        insert_sample(run.ledger.database, connection, mine, sample, origin="practice")
    assert [(turn.id, used) for turn, used in run.lessons.prompts(ALICE, 8, 99)] == [(child, False), (mine, True)]
    assert [turn.id for turn, _ in run.lessons.prompts(ALICE, 1, 99)] == [child]
    assert [turn.session_id for turn, _ in run.lessons.prompts(LOCAL, 8, 99)] == ["at home"]


def test_a_deleted_lesson_leaves_no_measurement(run: Run) -> None:
    lesson = learned(run)
    run.judge(run.turn(), 1)
    run.lessons.remove(ALICE, lesson.id)
    for table in ("lesson_measures", "lesson_turns"):
        assert run.ledger.database.rows(f"SELECT * FROM {table}") == []


TEXTS = st.sampled_from(
    [
        "Use metric units.",
        "Do not use metric units.",
        "Write 3 words.",
        "Write 5 words.",
        "Write 7 words.",
        "Answer in German.",
        "No tables.",
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("born"), TEXTS, st.booleans()),
    st.tuples(st.just("again"), st.sampled_from(["no_wish", None, Birth("No tables.")]), st.integers(0, 5)),
    st.tuples(st.just("add"), TEXTS, st.booleans()),
    st.tuples(st.just("read"), st.integers(-1, 1), st.booleans()),
    st.tuples(st.just("on"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("pin"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 5), st.just(True)),
    st.tuples(st.just("measure"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("age"), st.integers(0, 100), st.just(True)),
    st.tuples(st.just("forget"), st.integers(0, 3), st.just(True)),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_any_order_of_events_leaves_the_lessons_whole(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]
) -> None:
    run = Run(tmp_path_factory.mktemp("lessons") / "ledger.sqlite")
    for number, (name, what, flag) in enumerate(steps):
        lessons = run.lessons.of(ALICE)
        target = lessons[what % len(lessons)] if lessons and isinstance(what, int) else None
        if name == "born":
            run.judge(run.turn(session=f"@alice:{number % 4}"), -1, Birth(what, waits=flag))
        elif name == "again":
            said = run.ledger.database.rows("SELECT turn_id FROM lesson_turns WHERE role = 'said' ORDER BY turn_id")
            if said:
                touched = {each.id: each for each in lessons if each.touched}
                again(run, said[flag % len(said)]["turn_id"], what)
                after = {each.id: each for each in run.lessons.of(ALICE)}
                assert all(after[each].state == touched[each].state or what for each in touched)
                assert after.keys() >= {each.id for each in lessons}, "judging again deletes no lesson"
        elif name == "add":
            run.lessons.add(ALICE, what, pinned=flag)
        elif name == "read":
            served = tuple(each.id for each in run.lessons.served(ALICE))
            run.judge(run.turn(read=served), what, trains=flag)
        elif name == "age":
            run.now += what * DAY
            run.lessons.age()
        elif name == "forget":
            if f"@alice:{what}" in {each["id"] for each in run.ledger.database.rows("SELECT id FROM sessions")}:
                run.ledger.sessions.forget(f"@alice:{what}")
        elif target is not None and name == "measure":
            found = measured(str(number), plain=3.0 if flag else 0.0)
            run.lessons.record_measure(ALICE, target.id, target.text, found)
        elif target is not None and name == "remove":
            run.lessons.remove(ALICE, target.id)
        elif target is not None:
            run.lessons.edit(ALICE, target.id, **{"on" if name == "on" else "pinned": flag})
        after = run.lessons.of(ALICE)
        assert len({each.text.casefold() for each in after}) == len(after)
        by_id = {each.id: each for each in after}
        for each in after:
            assert (each.reason is None) == (each.state in ("proposed", "trial", "active"))
            assert each.replaces is None or (each.replaces in by_id and each.replaces != each.id)
            assert each.origin == "owner" or each.said, "a lesson of the judge has a source"
            if each.reason == "replaced":
                assert any(other.replaces == each.id for other in after), "it can return"
        assert not run.ledger.database.rows("PRAGMA foreign_key_check")
    run.ledger.close()
