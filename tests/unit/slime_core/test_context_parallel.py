"""How context-parallel ranks share a pack: nothing is lost, nothing is held twice, and parts add up to the whole."""

from __future__ import annotations

import pytest
import torch

from lab.testkit import trainer
from slime.algorithms.losses.custom import contract_batch
from slime.algorithms.losses.reduce import make_reducer
from slime.arguments.placement import padded_length
from slime.backends.megatron_utils.context_parallel import joined_chunks, own_part, share_of
from slime.backends.trainer.micro_batch import RolloutShard, build
from slime.logprobs import packed_logits as loss
from slime.logprobs.context_parallel import held_positions
from slime.rollout.train_data import split_by_dp
from tests.helpers.gradient_cases import data_of
from tests.helpers.tolerance import assert_near

CPU = torch.device("cpu")
RANKS = [1, 2, 3]
# Tokens and response of samples, some with fewer tokens than a group has chunks.
LENGTHS = [(2, 1), (3, 0), (5, 4), (12, 5), (13, 12)]
SAMPLES = [list(range(100 * n, 100 * n + total)) for n, (total, _) in enumerate(LENGTHS)]


def batch_of_lengths():
    return build(SAMPLES, [response for _, response in LENGTHS], packed=True, device=CPU)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9])
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_hold_every_position_once_and_as_many_each(length: int, ranks: int) -> None:
    held = [held_positions(length, rank, ranks) for rank in range(ranks)]
    assert len({len(positions) for positions in held}) == 1
    whole = torch.cat(held)
    assert sorted(whole.tolist()) == list(range(padded_length(length, ranks)))
    assert joined_chunks(torch.stack(held)).tolist() == list(range(len(whole)))
    assert all(positions.tolist() == sorted(positions.tolist()) for positions in held)


@pytest.mark.parametrize("ranks", [2, 3])
def test_causal_attention_is_the_same_work_for_every_rank(ranks: int) -> None:
    seen = [int((held_positions(24, rank, ranks) + 1).sum()) for rank in range(ranks)]
    assert len(set(seen)) == 1


@pytest.mark.parametrize("ranks", RANKS)
def test_every_response_token_is_predicted_on_one_rank_from_the_token_before_it(ranks: int) -> None:
    batch = batch_of_lengths()
    owners: list[int] = []
    for rank in range(ranks):
        share = share_of(batch, rank, ranks)
        assert share.input_ids.shape == share.position_ids.shape
        assert share.input_ids.size(1) * ranks == sum(share.padded_lengths)
        assert (share.input_ids[0, share.rows] + 1).tolist() == batch.targets[share.owned].tolist()
        owners += share.owned.tolist()
    assert sorted(owners) == list(range(len(batch.targets)))


def test_a_filler_is_shared_too() -> None:
    share = share_of(build([], [], packed=True, device=CPU), 1, 2)
    assert (share.input_ids.tolist(), share.rows.tolist(), share.padded_lengths) == ([[0, 0]], [], [4])


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_what_the_parts_of_a_custom_loss_reduce_to_adds_up(ranks: int, per_token: bool) -> None:
    args = trainer.trainer_args("none", custom_loss_function_path="slime.algorithms.losses.topk_distillation.x")
    [data] = split_by_dp(data_of(args), 1, trainer.trainer_args("none", global_batch_size=5))
    shard = RolloutShard(data)
    shard.set_computed("advantages", [torch.rand(n) for n in shard.fields["response_lengths"]])
    batch = shard.batch(list(range(shard.num_samples)), CPU)

    def reduced(part: dict) -> torch.Tensor:
        lengths = [len(mask) for mask in part["loss_masks"]]
        reduce = make_reducer(per_token, lengths, part["loss_masks"], part.get("rollout_mask_sums"))
        return reduce(torch.cat(part["advantages"]))

    parts = [own_part(batch, rank, ranks) for rank in range(ranks)]
    assert_near(torch.stack([reduced(part) for part in parts]).sum(), reduced(batch))
    for name in ("teacher_topk_log_probs", "teacher_topk_indices", "rollout_log_probs"):
        assert sum(len(values) for part in parts for values in part[name]) == sum(map(len, batch[name]))


@pytest.mark.parametrize("ranks", [2, 3])
def test_tokens_and_masks_of_a_part_lie_where_its_logits_do(ranks: int) -> None:
    whole = batch_of_lengths()
    batch = {
        "unconcat_tokens": [torch.tensor(ids) for ids in SAMPLES],
        "total_lengths": [total for total, _ in LENGTHS],
        "response_lengths": [response for _, response in LENGTHS],
        "loss_masks": [torch.ones(response, dtype=torch.int64) for _, response in LENGTHS],
        "teacher_log_probs": [None] * len(LENGTHS),
    }
    for rank in range(ranks):
        part = contract_batch(own_part(batch, rank, ranks))
        share = share_of(whole, rank, ranks)
        assert torch.equal(part["tokens"], share.input_ids)
        assert part["full_loss_masks"][0].nonzero().squeeze(1).tolist() == share.rows.tolist()
        assert part["teacher_log_probs"] == batch["teacher_log_probs"]


@pytest.mark.parametrize("ranks", RANKS)
def test_helpers_give_the_part_that_the_logits_predict(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    args = trainer.trainer_args("none")
    tokens = [torch.tensor(ids) % 7 for ids in SAMPLES]
    given = {
        "args": args,
        "unconcat_tokens": tokens,
        "total_lengths": [total for total, _ in LENGTHS],
        "response_lengths": [response for _, response in LENGTHS],
    }
    logits = torch.randn(1, sum(given["total_lengths"]), 7)
    whole = torch.cat(loss.get_log_probs_and_entropy(logits, **given)[1]["log_probs"])
    packed = build(
        [list(range(1, total + 1)) for total, _ in LENGTHS], given["response_lengths"], packed=True, device=CPU
    )
    starts = torch.tensor([0, *given["total_lengths"]]).cumsum(0)
    found = torch.zeros(len(whole))
    for rank in range(ranks):
        monkeypatch.setattr(loss, "own_place", lambda rank=rank: (rank, ranks))
        share = share_of(packed, rank, ranks)
        samples = torch.cat(
            [
                torch.full((padded // ranks,), float(start))
                for padded, start in zip(share.padded_lengths, starts, strict=False)
            ]
        ).long()
        sources = samples + share.input_ids[0] - 1
        held = torch.where((share.input_ids[0] > 0)[:, None], logits[0, sources.clamp(min=0)], 0.0)
        pieces = loss.get_log_probs_and_entropy(held.unsqueeze(0), **given)[1]["log_probs"]
        found[share.owned] = torch.cat(pieces)
    assert_near(found, whole)


def test_a_micro_batch_has_the_tokens_that_all_its_ranks_hold() -> None:
    data = trainer.train_data(count=12, longest=12)
    longest = {}
    for ranks in (1, 2):
        args = trainer.trainer_args("none", max_tokens_per_gpu=24, context_parallel_size=ranks)
        [shard] = trainer.shards(args, data, 1)
        sums = [sum(len(shard["tokens"][i]) for i in batch) for step in shard["micro_batch_indices"] for batch in step]
        longest[ranks] = max(sums)
    assert longest[1] <= 24 < longest[2] <= 48
