"""A file that an older program wrote is brought up to date without loss; ``tests/data/ledger_v1.sqlite`` is one."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.ledger import schema
from openclaw.ledger.exceptions import TransitionError
from openclaw.ledger.schema import MIGRATIONS, VERSION, Migration, renew_conversations
from openclaw.ledger.store import Ledger
from openclaw.messages.fingerprint import conversation_digest
from openclaw.owners import LOCAL


@pytest.fixture
def old_file(repository: Path, tmp_path: Path) -> Path:
    """A copy of the version 1 file: sessions alice, bob, carol and one without an id; turns in every state."""
    path = tmp_path / "ledger.sqlite"
    shutil.copy(repository / "tests/data/ledger_v1.sqlite", path)
    return path


def contents(path: Path) -> dict[str, list[dict[str, object]]]:
    """Return the rows of the tables of version 1."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {
            table: [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1")]
            for table in ("sessions", "turns", "verdicts", "samples", "steps")
        }


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def structure(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {" ".join(row[0].split()) for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql <> ''")}


def test_versions_count_to_the_newest() -> None:
    versions = [migration.version for migration in MIGRATIONS]
    assert versions == sorted(set(versions))
    assert versions[-1] == VERSION


def test_a_new_ledger_of_a_test_is_a_copy(tmp_path: Path) -> None:
    """What conftest.py patches is what a ledger calls; else each of thousands of tests migrates one."""
    copies = schema.migrate.copies  # type: ignore[attr-defined]
    Ledger(tmp_path / "ledger.sqlite").close()
    assert schema.migrate.copies == copies + 1  # type: ignore[attr-defined]
    assert version_of(tmp_path / "ledger.sqlite") == VERSION


def test_every_row_of_version_1_survives(old_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = contents(old_file)
    assert version_of(old_file) == 1
    assert [len(rows) for rows in before.values()] == [4, 10, 6, 5, 2]
    with caplog.at_level(logging.INFO):
        ledger = Ledger(old_file)
    assert version_of(old_file) == VERSION
    after = contents(old_file)
    for table, rows in before.items():
        assert [{name: row[name] for name in old} for row, old in zip(after[table], rows, strict=True)] == rows
    backup = schema.backup_path(old_file, 1)
    assert contents(backup) == before
    assert version_of(backup) == 1
    assert str(backup) in caplog.text
    assert ledger.views.counts()["samples"] == {"dropped": 1, "leased": 1, "ready": 1, "trained": 2}
    assert ledger.turns.get("judged-0").signal is None
    logged = ledger.database.rows("SELECT turn_id, judged_at FROM verdict_log ORDER BY number")
    judged = sorted(after["verdicts"], key=lambda row: row["judged_at"])  # type: ignore[arg-type, return-value]
    assert [row["judged_at"] for row in logged] == [row["judged_at"] for row in judged]
    assert {row["turn_id"] for row in logged} == {row["turn_id"] for row in judged}


def test_a_migrated_file_goes_on_as_a_new_one(old_file: Path, tmp_path: Path) -> None:
    ledger = Ledger(old_file)
    judged_sample(ledger, "new", session_id="alice")
    ledger.turns.record_next_state("waiting", USER_NEXT, 130.0, "regenerated")
    assert ledger.turns.get("waiting").signal == "regenerated"
    assert ledger.samples.reconcile(0) == {"trained": 0, "ready": 2}
    assert ledger.samples.ready_count() == 4
    with pytest.raises(TransitionError, match="illegal deletion in samples"), ledger.transaction() as connection:
        connection.execute("DELETE FROM samples")
    Ledger(tmp_path / "new.sqlite").close()
    assert structure(old_file) == structure(tmp_path / "new.sqlite")


def test_conversations_of_old_turns_are_found(old_file: Path) -> None:
    ledger = Ledger(old_file)
    waiting = ledger.turns.get("waiting")
    digest = conversation_digest(waiting.messages, waiting.response_message)
    assert "waiting" in [node.id for node in ledger.sessions.nodes_of_conversations([digest], 5)]
    assert ledger.turns.get("side").conversation is None
    ended = ledger.turns.get("ended")
    assert ended.conversation == ledger.turns.get("judged-0").conversation, "the same words are the same conversation"
    assert ledger.sessions.nodes_of_conversations([ended.conversation or b""], 5)[0].id == "ended"


def test_digests_are_renewed_for_every_owner(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    named = {"local": "s", "alice's": "@alice:s"}
    with closing(Ledger(path)) as ledger:
        for name, session in named.items():
            ledger.turns.record(make_turn(name, session_id=session, conversation=b"of an older program"))
        ledger.turns.record(make_turn("secret", conversation=b"of the secret", reason="redacted"))
        ledger.turns.record(make_turn("none"))
        with ledger.transaction() as connection:
            renew_conversations(connection)
        turn = make_turn()
        for name, owner in (("local", LOCAL), ("alice's", "alice")):
            expected = conversation_digest(turn.messages, turn.response_message, owner)
            assert ledger.turns.get(name).conversation == expected
        assert ledger.turns.get("secret").conversation == b"of the secret"
        assert ledger.turns.get("none").conversation is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "version 7 is refused: it moves away from what owner alice liked: margin -0.05 nats/token; look",
            "version 7 is refused: it moves away from what one of the owners liked: margin -0.05 nats/token; look",
        ),
        (
            "liked replies fell away from what owner people wanted",
            "liked replies fell away from what owner people wanted",
        ),
    ],
)
def test_older_refusals_name_nobody(tmp_path: Path, before: str, after: str) -> None:
    (statements,) = [migration.statements for migration in MIGRATIONS if migration.version == 34]
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.decisions.record(7, "refused", "8", before, by_margin=True, metrics={})
        with ledger.transaction() as connection:
            for statement in schema.statements(statements):
                connection.execute(statement)
        (refusal,) = ledger.decisions.refusals()
        assert refusal.why == after


def test_a_crash_while_migrating_leaves_the_old_file(old_file: Path) -> None:
    before = contents(old_file)

    def fail(connection: sqlite3.Connection) -> None:
        raise OSError("the machine went away")

    broken = (*MIGRATIONS[:-1], Migration(VERSION, "broken", MIGRATIONS[-1].statements, fail))
    with mock.patch.object(schema, "MIGRATIONS", broken), pytest.raises(OSError, match="went away"):
        Ledger(old_file)
    assert version_of(old_file) == 1
    assert contents(old_file) == before
    assert Ledger(old_file).turns.get("waiting").conversation is not None


def test_opening_again_makes_no_second_copy(old_file: Path) -> None:
    Ledger(old_file).close()
    backup = schema.backup_path(old_file, 1)
    backup.unlink()
    Ledger(old_file).close()
    assert not backup.exists()


def test_old_first_replies_and_what_waits_are_found(old_file: Path) -> None:
    with closing(sqlite3.connect(old_file)) as connection:
        judged = connection.execute(
            "SELECT messages, weight_versions, verdict FROM turns JOIN verdicts ON turn_id = turns.id"
            " WHERE kind = 'main' AND state = 'judged' ORDER BY number"
        ).fetchall()
        ready = connection.execute("SELECT sample, created_at FROM samples WHERE state = 'ready'").fetchall()
    expected = [
        (json.loads(versions)[0]["version"], score)
        for messages, versions, verdict in judged
        if (score := json.loads(verdict)["score"]) is not None
        and all(message["role"] != "assistant" for message in json.loads(messages))
    ]
    with closing(Ledger(old_file)) as ledger:
        assert ledger.views.first_scores() == expected != []
        (person,) = [each for each in ledger.waiting.people() if each.ready]
        versions = [min(map(int, json.loads(sample)["weight_versions"])) for sample, _ in ready]
        assert (person.ready, person.ready_since) == (len(ready), min(at for _, at in ready))
        assert person.oldest_version == str(min(versions))
