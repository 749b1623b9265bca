"""The teacher's top K goes through the ledger with its sample, number by number, and reaches the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from openclaw_hybrid_method import Hybrid
from openclaw_opd_method import OnPolicyDistillation

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import TopK, Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from slime.backends.trainer.micro_batch import RolloutShard
from slime.rollout.train_data import convert, split_by_dp
from tests.unit.ray.test_trajectories import arguments

TOPK = TopK([[-0.1, -2.5], [-1.0 / 3.0, -1.5], [-2.5e-7, -20.0]], [[5, 9], [6, 2**31 - 1], [0, 7]])


def test_a_hinted_turn_is_a_sample_with_the_teachers_top_k(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    method = OnPolicyDistillation(RuntimeConfig())
    verdict = Verdict(hint="Write plain prose.", teacher_log_probs=(-1.0, -2.0, -3.0), teacher_topk=TOPK)
    for name in ("with", "without"):
        turn = make_turn(name)
        ledger.turns.record(turn)
        ledger.turns.record_next_state(name, USER_NEXT, 102.0)
        if name == "without":
            verdict = Verdict(hint="Write plain prose.", teacher_log_probs=(-1.0, -2.0, -3.0))
        decision = method.samples(turn, verdict)
        record_judged(ledger, name, verdict, decision.samples, decision.reason)
    with_topk, without = ledger.samples.claim(0, 2)
    assert with_topk.teacher_topk_log_probs == TOPK.log_probs
    assert with_topk.teacher_topk_indices == TOPK.ids
    assert (without.teacher_topk_log_probs, without.teacher_topk_indices) == (None, None)
    args = arguments(global_batch_size=2, max_tokens_per_gpu=1000)
    shard = RolloutShard(split_by_dp(convert(args, [with_topk, without]), 1, args)[0])
    [values] = [values for values in shard.fields["teacher_topk_log_probs"] if values is not None]
    [ids] = [ids for ids in shard.fields["teacher_topk_indices"] if ids is not None]
    torch.testing.assert_close(values, torch.tensor(TOPK.log_probs))
    assert ids.tolist() == TOPK.ids


def test_the_policys_own_top_k_goes_from_the_turn_to_the_loss(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    method, teacher = Hybrid(RuntimeConfig()), TopK([[-0.2, -2.0], [-0.4, -1.0], [-1.0, -9.0]], TOPK.ids)
    ledger.turns.record(make_turn(response_topk=TOPK))
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    [pending] = ledger.judging.pending(1)
    assert pending.turn.response_topk == TOPK
    verdict = Verdict(score=-1, hint="Write plain prose.", teacher_topk=teacher)
    decision = method.samples(pending.turn, verdict)
    record_judged(ledger, "turn-0", verdict, decision.samples, decision.reason)
    [sample] = ledger.samples.claim(0, 1)
    assert (sample.rollout_topk_log_probs, sample.teacher_topk_log_probs) == (TOPK.log_probs, teacher.log_probs)
    assert sample.teacher_topk_indices == TOPK.ids
    args = arguments(global_batch_size=1, max_tokens_per_gpu=1000)
    shard = RolloutShard(split_by_dp(convert(args, [sample]), 1, args)[0])
    [values] = shard.fields["rollout_topk_log_probs"]
    torch.testing.assert_close(values, torch.tensor(TOPK.log_probs))
    row = ledger.database.rows("SELECT length(topk_log_probs) AS v, length(topk_ids) AS i FROM turns")[0]
    assert (row["v"], row["i"]) == (3 * 2 * 8, 3 * 2 * 4), "12 K bytes per response token, no padding"


@pytest.mark.parametrize(
    ("topk", "message"),
    [
        (TopK(TOPK.log_probs[:2], TOPK.ids[:2]), "for each of 3 response tokens"),
        (TopK([[-1.0], [-1.0, -2.0], [-1.0]], [[1], [1, 2], [1]]), "one row of K tokens"),
        (TopK(TOPK.log_probs, [[5, 5], [6, 7], [0, 7]]), "one row of K tokens"),
        (TopK([[-0.1, float("nan")], *TOPK.log_probs[1:]], TOPK.ids), "not a finite number"),
    ],
)
def test_a_turn_with_another_top_k_is_not_stored(topk: TopK, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Ledger(tmp_path / "ledger.sqlite").turns.record(make_turn(response_topk=topk))


def test_the_teachers_tokens_are_the_policys() -> None:
    with pytest.raises(ValueError, match="other tokens than the policy's own top K"):
        make_sample(make_turn(), 0.0, score=None, teacher_topk=TopK([[-1.0]] * 3, [[1]] * 3), rollout_topk=TOPK)


def test_a_top_k_with_holes_is_not_stored(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    turn = make_turn()
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    sample = make_sample(turn, 0.0, score=None, teacher_topk=TopK([[-1.0], [-1.0, -2.0], [-1.0]], [[1], [1, 2], [1]]))
    with pytest.raises(ValueError, match="different lengths"):
        record_judged(ledger, turn.id, Verdict(), [sample], None)
