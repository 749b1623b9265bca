"""Each sample says whose it is and what it is of, and a batch can be of one person and one origin."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.ledger_records import judged_sample, make_turn
from openclaw.ledger.commands import salvage
from openclaw.ledger.feedback import as_next_state
from openclaw.ledger.records import Feedback, Origin
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.schema import OWNERS_PERSON
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL, episode_owner, owner_of, root, stored_id
from openclaw.training.samples import make_sample

ALICE = "alice"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def add(ledger: Ledger, turn_id: str, origin: Origin) -> None:
    """Add a sample of a stored turn."""
    sample = make_sample(ledger.turns.get(turn_id), 0.0)
    with ledger.transaction() as connection:
        insert_sample(ledger.database, connection, turn_id, sample, origin=origin)


def test_a_child_key_is_its_parents_person(ledger: Ledger) -> None:
    for name, owner in {"l": LOCAL, "a": "alice", "b": "alice/agent", "c": "bob"}.items():
        judged_sample(ledger, name, session_id=stored_id(owner, "s"))
    turn = make_turn("e", session_id=stored_id(episode_owner(LOCAL, "episode-1"), "s"))
    ledger.turns.record(turn)
    with ledger.transaction() as connection:
        insert_sample(ledger.database, connection, "e", make_sample(turn, 1.0), episode="episode-1")
    people = {s.metadata["turn_id"]: (s.metadata["person"], s.metadata["origin"]) for s in ledger.samples.claim(0, 9)}
    assert people == {
        "l": (LOCAL, "live"),
        "e": (LOCAL, "live"),
        "a": ("alice", "live"),
        "b": ("alice", "live"),
        "c": ("bob", "live"),
    }


@given(st.text(st.sampled_from("@/:a\u00e9"), max_size=8) | st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_the_ledger_knows_whose_a_session_is(name: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        found = connection.execute(f"SELECT {OWNERS_PERSON} FROM (SELECT ? AS session_id)", (name,)).fetchone()
    assert found == (root(owner_of(name)),)


QUESTIONS: dict[str, Callable[[Ledger], object]] = {
    "serving": lambda ledger: ledger.decisions.serving(ALICE),
    "refusals": lambda ledger: ledger.decisions.offer(1, ALICE),
    "certificate": lambda ledger: ledger.decisions.last_certified(ALICE),
    "window": lambda ledger: ledger.decisions.probe_window(9, ALICE),
    "judge": lambda ledger: ledger.decisions.judge_answers(ALICE),
    "scores": lambda ledger: ledger.decisions.accepted_scores(9, ALICE),
    "last batch": lambda ledger: ledger.decisions.last_batch(ALICE),
    "batch of version": lambda ledger: ledger.decisions.batch_of_version(ALICE, "1"),
    "live": lambda ledger: ledger.samples.live_update(ALICE),
    "ready": lambda ledger: ledger.samples.ready_count(ALICE),
    "draw": lambda ledger: [ledger.probes.becomes_probe(make_turn(session_id=f"@alice:{n}"), 0.5) for n in range(9)],
    "candidates": lambda ledger: ledger.probes.candidates(0, 9, 9, 9, ALICE),
    "newest": lambda ledger: ledger.probes.newest_turns(9, 99, ALICE),
    "degenerate": lambda ledger: ledger.views.degenerate_share(("truncated",), ALICE),
    "practice": lambda ledger: ledger.practices.prompts(ALICE, ["lesson"], 4, 99),
    "under way": lambda ledger: ledger.practices.under_way(ALICE, "series"),
    "measure": lambda ledger: ledger.lessons.prompts(ALICE, 9, 99),
    "lessons": lambda ledger: ledger.lessons.of(ALICE),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_about_one_person_reads_everybodys_rows(ledger: Ledger, question: str) -> None:
    """It would hold the ledger's lock, for which replies wait, the longer the more others talk."""
    for owner in (ALICE, "bob"):
        judged_sample(ledger, owner, session_id=stored_id(owner, "s"))
    asked: list[str] = []
    ledger.database.connection.set_trace_callback(asked.append)
    QUESTIONS[question](ledger)
    ledger.database.connection.set_trace_callback(None)
    reads = [sql for sql in asked if sql.startswith(("SELECT", "DELETE"))]
    assert reads
    plans = {sql: [row["detail"] for row in ledger.database.rows(f"EXPLAIN QUERY PLAN {sql}")] for sql in reads}
    everybodys = re.compile(r"SCAN (turns|samples|steps|decisions|verdicts|probe_scores|lesson_turns|feedback)\b")
    assert [(sql, plan) for sql, plan in plans.items() if any(map(everybodys.match, plan))] == []
    by_state = [sql for sql, plan in plans.items() if any("turns_by_state" in each for each in plan)]
    assert by_state == [], "all turns in a state are everybody's, too"


def test_a_batch_of_one_person_and_one_origin(ledger: Ledger) -> None:
    for number in range(3):
        for owner in ("alice", "bob"):
            judged_sample(ledger, f"{owner}-{number}", session_id=stored_id(owner, "s"))
    add(ledger, "alice-0", "practice")
    counts = (ledger.samples.ready_count(), ledger.samples.ready_count("bob"))
    assert counts == (6, 3), "practice counts for no other batch"
    assert [ledger.samples.ready_count(person, "practice") for person in (None, "alice", "bob")] == [1, 1, 0]
    drawn = ledger.samples.claim(0, 16, person="alice", origin="practice")
    assert [sample.metadata["origin"] for sample in drawn] == ["practice"]
    assert [s.metadata["turn_id"] for s in ledger.samples.claim(1, 16, person="bob")] == ["bob-0", "bob-1", "bob-2"]
    assert ledger.samples.ready_count() == 3


def test_an_opinion_takes_back_what_a_turn_gave_but_no_practice(ledger: Ledger) -> None:
    judged_sample(ledger, "turn")
    add(ledger, "turn", "practice")
    ledger.samples.claim(0, 1, origin="practice")
    feedback = Feedback(turn_id="turn", created_at=110.0, thumbs="down")
    assert ledger.feedback.record(feedback, as_next_state(feedback)).state == "pending", "the turn is judged again"
    assert ledger.views.counts()["samples"] == {"dropped": 1, "leased": 1}


def test_samples_of_before_learn_whose_they_are(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(repository / "tests/data/ledger_v1.sqlite", path)
    with closing(sqlite3.connect(path)) as connection:
        for table, column in (("sessions", "id"), ("turns", "session_id")):
            connection.execute(f"UPDATE {table} SET {column} = '@alice/agent:s' WHERE {column} = 'alice'")
        connection.commit()
    with closing(Ledger(path)) as ledger:
        rows = ledger.database.rows("SELECT session_id, person, origin FROM samples JOIN turns ON turns.id = turn_id")
    assert len(rows) == 5
    assert {row["origin"] for row in rows} == {"live"}
    people = {row["session_id"]: row["person"] for row in rows}
    assert people.pop("@alice/agent:s") == "alice"
    assert set(people.values()) == {LOCAL}


def test_rows_that_are_saved_from_an_old_file_learn_it_too(tmp_path: Path, ledger: Ledger) -> None:
    judged_sample(ledger, "a", session_id=stored_id("alice", "s"))
    with ledger.transaction() as connection:
        connection.execute("UPDATE samples SET person = NULL")
    ledger.close()
    salvage(ledger.path, tmp_path / "saved.sqlite")
    with closing(Ledger(tmp_path / "saved.sqlite")) as saved:
        assert saved.samples.ready_count("alice") == 1


def test_a_sample_of_no_other_origin_is_stored(ledger: Ledger) -> None:
    ledger.turns.record(make_turn("turn"))
    with pytest.raises(sqlite3.IntegrityError):
        add(ledger, "turn", "dream")  # type: ignore[arg-type]
