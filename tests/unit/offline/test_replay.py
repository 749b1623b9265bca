"""Replaying a run: the method makes its samples again, bit by bit, and a new run gets its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Combine
from openclaw_rl_method import BinaryRL, Config

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.store import Ledger
from openclaw.offline.replay import OF_A_SESSION, OF_PRACTICE, replay
from openclaw.replay import main
from openclaw.training.samples import make_sample

METHOD = Combine(RuntimeConfig.from_env({}))
TEACHER = (-0.1, -1e-17, -2.0 / 3.0)


@pytest.fixture
def run(tmp_path: Path) -> Ledger:
    """A run of Combine: three steps of two samples, in which ids and logprobs differ by turn."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number in range(7):
        turn = make_turn(f"t{number}", session_id=f"s{number}", response_ids=[5, 6, 7 + number])
        ledger.turns.record(turn)
        ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0 + number)
        verdict = Verdict(
            score=(-1) ** number,
            hint="Plain." if number % 2 else None,
            teacher_log_probs=TEACHER if number % 2 else None,
        )
        decision = METHOD.samples(ledger.turns.get(turn.id), verdict)
        record_judged(ledger, turn.id, verdict, decision.samples, decision.reason)
    for rollout_id in range(3):
        ledger.samples.claim(rollout_id, 2)
        ledger.samples.record_step(rollout_id, str(rollout_id), 200.0, 201.0)
    ledger.samples.mark_trained(1)
    return ledger


def test_samples_and_batches_are_reproduced(run: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    result = replay(run, METHOD)
    assert (result.same, result.different, result.batches, result.other_batches) == (7, [], 3, [])
    assert result.exact
    assert main([str(run.path), "--method", "combine"]) == 0
    assert "7 samples reproduced bit by bit, 0 different\n3 steps with the same batch" in capsys.readouterr().out


def test_a_sample_of_a_session_is_not_compared(run: Ledger) -> None:
    method = BinaryRL(RuntimeConfig(), Config(at_least_one=0.5))
    run.turns.record(make_turn("zero", session_id="z"))
    run.turns.record_next_state("zero", USER_NEXT, 120.0)
    record_judged(run, "zero", Verdict(score=0), [], "score_zero")
    run.sessions.end("z", 121.0)
    [(turn_id, sample)] = method.session_samples(run.judging.judged("z"))
    assert run.judging.close_session("z", [(turn_id, sample)], 122.0)
    assert run.samples.ready_count() == 2, "the session contributes to a batch"
    result = replay(run, METHOD)
    assert (result.exact, result.skipped) == (True, {OF_A_SESSION: 1})


def change(ledger: Ledger, table: str, turn_id: str, **columns: Any) -> None:
    with ledger.transaction() as connection:
        names = ", ".join(f"{name} = ?" for name in columns)
        key = "id" if table == "turns" else "turn_id"
        connection.execute(f"UPDATE {table} SET {names} WHERE {key} = ?", (*columns.values(), turn_id))


def last_bit(blob: bytes) -> bytes:
    return bytes([blob[0] ^ 1]) + blob[1:]


@pytest.mark.parametrize(
    ("table", "column", "field"),
    [
        ("turns", "response_logprobs", "rollout_log_probs"),
        ("turns", "response_ids", "tokens"),
        ("verdicts", "teacher_log_probs", "teacher_log_probs"),
        ("samples", "rollout_log_probs", "rollout_log_probs"),
    ],
)
def test_one_bit_is_noticed(
    run: Ledger, table: str, column: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = run.database.rows(f"SELECT {column} FROM {table} WHERE {'id' if table == 'turns' else 'turn_id'} = 't3'")
    change(run, table, "t3", **{column: last_bit(row[column])})
    result = replay(run, METHOD)
    assert result.same == 6
    assert result.different == [f"turn t3: other {field}"]
    assert main([str(run.path), "--method", "combine"]) == 1
    assert f"turn t3: other {field}" in capsys.readouterr().out


def test_another_setting_of_the_method_is_noticed(run: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_COMBINE_W_RL", "0.5")
    assert main([str(run.path), "--method", "combine"]) == 1


def test_a_copy_follows_the_recorded_batches(run: Ledger) -> None:
    change(run, "samples", "t1", rollout_id=2)
    change(run, "samples", "t5", rollout_id=0)
    result = replay(run, METHOD)
    assert (result.other_batches, result.batches) == ([], 3), "whatever the order of the ids"


def test_what_cannot_be_replayed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--method", "combine"]) == 2
    assert "no ledger in" in capsys.readouterr().err
    Ledger(tmp_path / "ledger.sqlite").close()
    assert main([str(tmp_path), "--method", "combine"]) == 1, "nothing was compared"


def test_practice_is_not_compared(run: Ledger) -> None:
    with run.transaction() as connection:
        sample = make_sample(run.turns.get("t0"), 0.0)
        insert_sample(run.database, connection, "t0", sample, origin="practice")
    run.samples.claim(3, 1, origin="practice")
    result = replay(run, METHOD)
    assert (result.exact, result.same, result.batches, result.skipped) == (True, 7, 3, {OF_PRACTICE: 1})
