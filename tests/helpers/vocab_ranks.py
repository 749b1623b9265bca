"""What a rank with a slice of the vocabulary does in the tests; at module level, so that new processes can import it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses.hybrid_distillation import hybrid_loss
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.topk_distillation import topk_distillation_loss
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import group_of_one
from slime.logprobs.packed_logits import get_log_probs_and_entropy, get_responses, get_values
from slime.logprobs.response_rows import Kernel, log_probs_of_head
from slime.utils.ppo_utils import compute_log_probs
from slime.utils.vocab_parallel import log_probs_of_ids, tensor_parallel_group
from tests.helpers.float64_losses import VOCABULARY, reference_log_probs, reference_topk_kl, vocabulary_case
from tests.helpers.tolerance import FEW, assert_near

# Rows of the head at its end that pad the vocabulary; with two ranks all of them lie on the second.
PADDING = 23


def check_split_vocabulary(rank: int, world_size: int, port: int) -> None:
    """Compare log probabilities, entropies, top-K distillation and their gradients with the whole vocabulary in float64."""
    from megatron.core import parallel_state

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size, timeout=timedelta(minutes=2)
    )
    group_of_one()
    assert parallel_state.get_tensor_model_parallel_group().size() == 1
    assert tensor_parallel_group() is None
    hybrid_whole = hybrid_and_values(slice(None))
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world_size)
    group_of_one()
    group = parallel_state.get_tensor_model_parallel_group()
    case = vocabulary_case()
    width = VOCABULARY // world_size
    columns = slice(rank * width, (rank + 1) * width)
    args = Arguments(rollout_temperature=0.7, log_probs_chunk_size=3)
    layout = {name: case[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}

    whole = case["logits"].clone().requires_grad_()
    log_probs, entropy = reference_log_probs(whole, layout, args.rollout_temperature)
    sum((lp * w).sum() + (h * w).sum() for lp, h, w in zip(log_probs, entropy, case["weights"], strict=True)).backward()

    for dtype in (torch.float32, torch.bfloat16):
        local = case["logits"][..., columns].to(dtype).requires_grad_()
        before = local.detach().clone()
        _, found = get_log_probs_and_entropy(local, args=args, with_entropy=True, max_seq_lens=None, **layout)
        pairs = zip(found["log_probs"], found["entropy"], case["weights"], strict=True)
        sum((lp * w).sum() + (h * w).sum() for lp, h, w in pairs).backward()
        assert torch.equal(local.detach(), before)
        for mine, right in zip([*found["log_probs"], *found["entropy"]], [*log_probs, *entropy], strict=True):
            assert mine.dtype == torch.float32
            assert_near(mine, right, dtype=dtype)
        assert_near(local.grad, whole.grad[..., columns], dtype=dtype, roundings=FEW if dtype == torch.float32 else 1)

    check_head(columns, group)

    local = case["logits"][..., columns].float()
    for (rows, ids), right in zip(get_responses(local, args=args, **layout), log_probs, strict=True):
        assert rows.shape == (len(ids), width)
        kept = rows.clone()
        assert_near(compute_log_probs(rows, ids, group), right.unsqueeze(-1))
        assert torch.equal(rows, kept)
    for outside in (-1, VOCABULARY):
        with pytest.raises(ValueError, match=f"do not fit a vocabulary of {VOCABULARY} tokens"):
            log_probs_of_ids(local[0], torch.full((local.size(1), 2), outside), group)

    whole.grad = None
    reference_topk_kl(whole, case, temperature=1.0).backward()
    local = case["logits"][..., columns].float().requires_grad_()
    reduce = make_reducer(False, case["response_lengths"], case["loss_masks"])
    loss, _ = topk_distillation_loss(args, case, local, reduce)
    loss.backward()
    assert_near(local.grad, whole.grad[..., columns])

    columns_of_whole = [hybrid_whole[0], hybrid_whole[1][..., columns], *hybrid_whole[2:]]
    for mine, right in zip(hybrid_and_values(columns), columns_of_whole, strict=True):
        assert_near(mine, right)


def check_head_of_kernel(rank: int, world_size: int, port: int, kernel: Kernel) -> None:
    """Run :func:`check_head` on ``world_size`` ranks, each with its slice of the vocabulary."""
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size, timeout=timedelta(minutes=2)
    )
    width = VOCABULARY // world_size
    assert dist.group.WORLD is not None
    check_head(slice(rank * width, (rank + 1) * width), dist.group.WORLD, kernel)


def check_head(columns: slice, group: dist.ProcessGroup, kernel: Kernel | None = None) -> None:
    """Compare a head whose rows two ranks share with the whole head in float64; ``PADDING`` rows of it stand for no token."""
    generator = torch.Generator().manual_seed(8)
    hidden, weight = (torch.randn(n, 6, generator=generator).double() for n in (19, VOCABULARY))
    ids = torch.randint(0, VOCABULARY - PADDING, (19, 3), generator=generator)
    by_id, by_row = torch.randn(19, 3, generator=generator), torch.randn(19, generator=generator)
    whole = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    table = torch.log_softmax(whole[0] @ whole[1][: VOCABULARY - PADDING].T / 0.7, dim=-1)
    right = table.gather(-1, ids), -(table.exp() * table).sum(-1)
    ((right[0] * by_id).sum() + (right[1] * by_row).sum()).backward()
    for chunk in (1, 5, 100):
        rows, own = hidden.float().requires_grad_(), weight[columns].float().requires_grad_()
        mine = log_probs_of_head(
            [(rows, own)],
            ids,
            temperature=0.7,
            chunk=chunk,
            group=group,
            vocab_size=VOCABULARY - PADDING,
            kernel=kernel,
        )
        ((mine[0] * by_id).sum() + (mine[1] * by_row).sum()).backward()
        dist.all_reduce(rows.grad, group=group)
        pairs = zip([*mine, rows.grad, own.grad], [*right, whole[0].grad, whole[1].grad[columns]], strict=True)
        for found, expected in pairs:
            assert_near(found, expected)
    with pytest.raises(ValueError, match=f"do not fit a vocabulary of {VOCABULARY - PADDING} tokens"):
        log_probs_of_head(
            [(rows, own)], ids + VOCABULARY, temperature=1.0, chunk=1, group=group, vocab_size=VOCABULARY - PADDING
        )


def hybrid_and_values(columns: slice) -> list[torch.Tensor]:
    """Return the hybrid loss, its gradient to this rank's logits, and a critic's values, which no group splits."""
    case = vocabulary_case()
    args = trainer_args("", loss_type="custom_loss", opd_kl_coef=0.5, rollout_temperature=0.7)
    case["log_probs"] = [-weights.float().abs() for weights in case["weights"]]
    case["advantages"] = [weights.float() for weights in case["weights"]]
    case["rollout_topk_log_probs"] = [teacher * 0.9 for teacher in case["teacher_topk_log_probs"]]
    local = case["logits"][..., columns].float().requires_grad_()
    reduce = make_reducer(False, case["response_lengths"], case["loss_masks"])
    loss, _ = hybrid_loss(args, case, local, reduce)
    loss.backward()
    layout = {name: case[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    _, found = get_values(case["logits"][..., :1].float(), args=args, **layout)
    assert local.grad is not None
    return [loss.detach(), local.grad, *found["values"]]
