"""Each sample says whose it is and what it is of, and a batch can be of one person and one origin."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.ledger_records import judged_sample, make_turn
from openclaw.ledger.commands import salvage
from openclaw.ledger.database import sessions_of
from openclaw.ledger.feedback import as_next_state
from openclaw.ledger.records import Feedback, Origin
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.schema import OWNERS_PERSON
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL, episode_owner, owner_of, root, stored_id
from openclaw.training.samples import make_sample


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


def test_a_persons_turns_are_found_by_an_index(ledger: Ledger) -> None:
    """However many others the ledger has; a scan holds the ledger's lock, for which replies wait."""
    of_person, names = sessions_of("alice")
    for end in ("AND state = 'judged' ORDER BY number DESC LIMIT 9", "AND kind = 'main' ORDER BY number DESC LIMIT 9"):
        plan = ledger.database.rows(f"EXPLAIN QUERY PLAN SELECT * FROM turns WHERE {of_person} {end}", names)
        assert [row["detail"] for row in plan] == ["SEARCH turns USING INDEX turns_by_person (<expr>=?)"]


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
