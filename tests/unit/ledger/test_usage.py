"""The meters always equal what the ledger's rows say, also after a kill, an undone step, a deletion and a migration."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.inspect import main
from openclaw.ledger.copying import copy_run
from openclaw.ledger.exceptions import TransitionError
from openclaw.ledger.records import STALE, Feedback, Tokens
from openclaw.ledger.schema import VERSION
from openclaw.ledger.store import Ledger
from openclaw.ledger.usage import FORGOTTEN, day_of
from openclaw.owners import LOCAL, episode_owner, metered_owner, stored_id
from openclaw.privacy.redactor import Redactor

SPENT = Tokens(prefill=3, cached=1, sampled=3)
DAY = 86400.0
LOSS = 3
"""Tokens with loss in a sample of `judged_sample`."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as opened:
        yield opened


def settled(ledger: Ledger) -> tuple[int, int]:
    """Return the tokens with loss of trained and of stale samples, read from the samples themselves."""
    records = list(ledger.views.sample_records())

    def loss(state: str, reason: str | None) -> int:
        masks = [each.sample.loss_mask or [] for each in records if (each.state, each.reason) == (state, reason)]
        return sum(map(sum, masks))

    return loss("trained", None), loss("dropped", STALE)


def metered(ledger: Ledger) -> tuple[int, int]:
    total = ledger.usage.total()
    return total.trained, total.stale


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        (LOCAL, LOCAL),
        ("alice", "alice"),
        ("alice/tests", "alice/tests"),
        (episode_owner("alice/tests", "episode-0a"), "alice/tests"),
        (episode_owner(LOCAL, "episode-0a"), LOCAL),
    ],
)
@pytest.mark.parametrize("name", ["s", "@x/episode-1:s", "a:/episode-b:c"])
def test_python_and_the_trigger_name_the_same_owner(ledger: Ledger, owner: str, whose: str, name: str) -> None:
    assert metered_owner(owner) == whose
    if "episode" in owner:  # the ledger takes no turn of an episode that it does not know
        with ledger.transaction() as connection:
            session = stored_id(owner, name)
            connection.execute("INSERT INTO sessions (id, started_at) VALUES (?, 1)", (session,))
            ledger.turns.insert(connection, make_turn("t", session_id=session))
            row = connection.execute("SELECT * FROM turns").fetchone()
            assert row["session_id"] == session
            connection.execute("INSERT INTO samples (turn_id, state, sample, tokens, created_at, person, loss_tokens)"
                " VALUES ('t', 'ready', '{}', x'', 1, 'x', 3)")  # fmt: skip
            connection.execute("UPDATE samples SET state = 'dropped', reason = 'stale'")
    else:
        judged_sample(ledger, "t", session_id=stored_id(owner, name))
        ledger.samples.drop(1, STALE, 0)
    assert [(each.owner, each.tokens.stale) for each in ledger.usage.days("", "9")] == [(whose, LOSS)]


def test_a_turn_counts_on_the_day_it_ended_for_its_owner(ledger: Ledger) -> None:
    for number, (owner, at) in enumerate([("alice", 0.0), ("alice", DAY), ("alice/tests", DAY), ("bob", DAY)]):
        turn = make_turn(f"t{number}", session_id=stored_id(owner, "s"), finished_at=at, spent=SPENT)
        ledger.turns.record(turn)
    ledger.turns.record(make_turn("of-a-log"))
    found = [(each.day, each.owner, each.tokens) for each in ledger.usage.days("1970-01-01", "1970-01-02")]
    assert found == [
        ("1970-01-01", "alice", SPENT),
        ("1970-01-02", "alice", SPENT),
        ("1970-01-02", "alice/tests", SPENT),
        ("1970-01-02", "bob", SPENT),
    ]
    assert ledger.usage.total("1970-01-02", "alice") == SPENT + SPENT, "with those of her child"
    assert ledger.usage.total("1970-01-02", "ali") == Tokens()
    assert [each.owner for each in ledger.usage.days("1970-01-02", "1970-01-02", "alice")] == ["alice", "alice/tests"]


def test_a_turn_that_is_not_kept_whole_counts_whole(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite", redaction=Redactor("secrets"))) as ledger:
        secret = [{"role": "user", "content": "OPENAI_API_KEY=q8Zr7Wb1Xk2Lm9Np4Tv6"}]
        ledger.turns.record(make_turn("secret", messages=secret, spent=SPENT))
        assert ledger.turns.get("secret").prompt_ids == []
        ledger.sessions.forget("session")
        assert ledger.turns.record(make_turn("too-late", spent=SPENT)) is None
        assert ledger.usage.total() == SPENT + SPENT


def test_a_failed_commit_counts_nothing(ledger: Ledger) -> None:
    with suppress(RuntimeError), ledger.transaction():
        ledger.turns.record(make_turn(spent=SPENT))
        ledger.usage.add("alice", Tokens(judged=5))
        raise RuntimeError
    assert ledger.usage.days("", "9") == []


@pytest.mark.parametrize("seed", range(4))
def test_samples_count_exactly_while_they_are_trained_or_stale(ledger: Ledger, seed: int) -> None:
    """Random moves of samples; the reference reads every sample anew."""
    chance = random.Random(seed)
    rollout = made = 0
    for _ in range(60):
        move = chance.choice(["judge", "judge", "claim", "train", "stale", "undo", "refuse", "correct"])
        if move == "judge":
            judged_sample(ledger, f"t{made}", session_id=stored_id(chance.choice("ab"), f"s{made}"))
            made += 1
        elif move == "claim":
            rollout += 1
            ledger.samples.claim(rollout, chance.randint(1, 3))
        elif move == "train":
            ledger.samples.mark_trained(chance.randint(0, rollout))
        elif move == "stale" and made:
            with suppress(TransitionError):
                ledger.samples.drop(chance.randint(1, made), STALE, rollout)
        elif move == "undo":
            ledger.samples.reconcile(chance.randint(-1, rollout))
        elif move == "refuse":
            ledger.samples.drop_leased(rollout, "quarantine")
        elif move == "correct" and made:
            turn_id = f"t{chance.randrange(made)}"
            if all(each.reason != STALE for each in ledger.views.sample_records(turn_id)):  # else it loses this reason
                ledger.feedback.record(Feedback(turn_id=turn_id, created_at=1.0, thumbs="down"), USER_NEXT)
        assert metered(ledger) == settled(ledger), move
    before = metered(ledger)
    for session_id in ledger.views.session_ids():
        ledger.sessions.forget(session_id)
    assert metered(ledger) == before, "what was trained stays counted"


def test_a_deleted_persons_tokens_lose_their_name_and_stay_in_the_sum(ledger: Ledger) -> None:
    for number, owner in enumerate(["alice", "alice/tests", "alices", "bob"]):
        ledger.turns.record(make_turn(f"t{number}", session_id=stored_id(owner, "s"), spent=SPENT))
    total = ledger.usage.total()
    ledger.sessions.forget_person("alice")
    assert ledger.usage.total() == total
    assert [each.owner for each in ledger.usage.days("", "9")] == [FORGOTTEN, "alices", "bob"]
    assert ledger.usage.total(None, FORGOTTEN) == SPENT + SPENT
    assert ledger.usage.total(None, LOCAL) == Tokens(), "nobody owns them"


def test_nobody_gets_rid_of_a_quota_by_deleting_themselves(tmp_path: Path) -> None:
    now = [1_000_000.0]
    with closing(Ledger(tmp_path / "ledger.sqlite", clock=lambda: now[0])) as ledger:
        today = day_of(now[0])
        ledger.usage.add("alice", Tokens(sampled=500))
        ledger.usage.add("alice/kid", Tokens(sampled=5))
        ledger.sessions.forget_person("alice")
        assert ledger.usage.total(today, "alice").sampled == 505
        assert ledger.usage.total(today, "bob").sampled == 0
        assert [(each.owner, each.tokens.sampled) for each in ledger.usage.days("", "9")] == [(FORGOTTEN, 505)]
        now[0] += DAY
        assert ledger.usage.total(day_of(now[0]), "alice").sampled == 0
        ledger.sessions.forget_person("bob")
        with ledger.transaction() as connection:
            assert [row["owner"] for row in connection.execute("SELECT owner FROM usage")] == [FORGOTTEN]


def test_what_ends_after_its_person_was_deleted_brings_no_name_back(ledger: Ledger) -> None:
    first, later = (make_turn(name, session_id=stored_id("alice", "s"), spent=SPENT) for name in ("one", "two"))
    ledger.turns.record(first)
    ledger.sessions.forget_person("alice")
    assert ledger.turns.record(later) is None
    ledger.usage.add_to_turn("one", "alice", Tokens(judged=7))
    assert {each.owner for each in ledger.usage.days("", "9")} == {FORGOTTEN}
    assert ledger.usage.total().judged == 7


def test_a_copied_run_counts_what_it_does_itself(ledger: Ledger, tmp_path: Path) -> None:
    for name in ("trained", "stale"):
        judged_sample(ledger, name)
    ledger.samples.claim(0, 1)
    ledger.samples.mark_trained(0)
    ledger.samples.drop(2, STALE, 0)
    assert metered(ledger) == (LOSS, LOSS)
    with closing(Ledger(tmp_path / "copy.sqlite")) as copy:
        assert copy_run(ledger, copy, ["session"]).samples == {"ready": 1, STALE: 1}
        assert copy.usage.days("", "9") == []
        copy.samples.claim(0, 1)
        copy.samples.mark_trained(0)
        assert metered(copy) == (LOSS, 0)


def spend_until_killed(path: Path, reports: Connection) -> None:
    ledger = Ledger(path)
    number = 0
    while True:
        with ledger.transaction():
            judged_sample(ledger, f"t{number}")
            ledger.usage.add(LOCAL, Tokens(judged=1))
        ledger.turns.record(make_turn(f"u{number}", spent=SPENT))
        ledger.samples.claim(number, 1)
        ledger.samples.mark_trained(number)
        reports.send(number)
        number += 1


def test_a_kill_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=spend_until_killed, args=(path, theirs), daemon=True)
    child.start()
    for _ in range(3):
        assert ours.poll(60.0)
        ours.recv()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(60.0)
    with closing(Ledger(path)) as ledger:
        names = [record.turn.id for record in ledger.views.turn_records()]
        judged, served = (sum(name.startswith(kind) for name in names) for kind in "tu")
        assert judged >= 3
        total = ledger.usage.total()
        assert (total.judged, total.sampled, total.prefill, total.cached) == (judged, 3 * served, 3 * served, served)
        assert metered(ledger) == settled(ledger)


def as_version_35(path: Path) -> None:
    """Take from a ledger what version 36 added."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TRIGGER samples_metered; DROP TABLE usage; ALTER TABLE samples DROP COLUMN loss_tokens;"
            " ALTER TABLE samples DROP COLUMN metered_on; PRAGMA user_version = 35;"
        )


def test_a_file_of_version_35_counts_what_it_holds_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    asked = "chatcmpl-" + "0" * 32
    uncached = Tokens(prefill=4, sampled=3)
    with closing(Ledger(path)) as ledger:
        for number, owner in enumerate(["alice", "alice", "bob", "bob"]):
            judged_sample(ledger, f"t{number}", session_id=stored_id(owner, f"s{number}"))
            ledger.usage.add(owner, uncached)
        ledger.turns.record(make_turn(f"{asked}.1", spent=Tokens(sampled=3)))
        ledger.turns.record(make_turn(asked, spent=uncached))
        ledger.samples.claim(0, 2)
        ledger.samples.record_step(0, "2", trained_at=10 * DAY, live_at=10 * DAY)
        ledger.samples.mark_trained(0)
        ledger.samples.drop(4, STALE, 1)
        before = {owner: ledger.usage.total(None, owner) for owner in ("alice", "bob", LOCAL)}
    as_version_35(path)
    with closing(Ledger(path)) as ledger:
        assert ledger.database.rows("PRAGMA user_version")[0][0] == VERSION
        assert {owner: ledger.usage.total(None, owner) for owner in before} == before
        trained = [each.day for each in ledger.usage.days("", "9") if each.tokens.trained]
        assert set(trained) == {day_of(10 * DAY)}, "on the day of their step"
        assert metered(ledger) == settled(ledger) == (2 * LOSS, LOSS)
        ledger.samples.reconcile(-1)
        assert metered(ledger) == settled(ledger) == (0, 0)


def test_a_quota_is_looked_up_by_the_day(ledger: Ledger) -> None:
    asked: list[str] = []
    ledger.database.connection.set_trace_callback(asked.append)
    ledger.usage.total("2026-11-29", "alice")
    ledger.database.connection.set_trace_callback(None)
    [step] = [row["detail"] for row in ledger.database.rows(f"EXPLAIN QUERY PLAN {asked[0]}")]
    assert step.startswith("SEARCH usage USING INDEX"), step
    assert "(day=?" in step


def test_inspect_shows_them(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.turns.record(make_turn(session_id=stored_id("alice", "s"), spent=SPENT))
    ledger.turns.record(make_turn("t", spent=SPENT))
    assert main([str(ledger.path), "--usage"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["day", "owner", "prefill", "cached", "sampled", "judged", "trained", "stale"]
    assert lines[1:] == [["1970-01-01", name, "3", "1", "3", "0", "0", "0"] for name in ("local", "alice")]
