"""Log probabilities when each rank of a tensor-parallel group holds a slice of the vocabulary.

Rank ``r`` holds the columns ``[r V/n, (r + 1) V/n)`` of the logits. A group of None or of one rank has the whole
vocabulary: no collective runs. All ranks of the group must call together.

Guarantees: float32 from the logits on, no writes to the arguments, and one sum over ranks per quantity plus one
maximum. The gradient with respect to a rank's slice equals that of the unsplit logits: ``d log p(t) / dz_v = [v = t] -
p(v)``, ``dH / dz_v = -p(v) (log p(v) + H)``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def megatron_state() -> Any:
    """Return Megatron's ``parallel_state`` if Megatron runs in this process, else None."""
    state = sys.modules.get("megatron.core.parallel_state")
    return state if state is not None and state.model_parallel_is_initialized() else None


def tensor_parallel_group() -> Any:
    """Return Megatron's tensor-parallel group if it has more than one rank in this run, else None."""
    state = megatron_state()
    if state is None:
        return None
    group = state.get_tensor_model_parallel_group()
    return group if dist.get_world_size(group) > 1 else None


def is_split(group: Any) -> bool:
    """Return whether ``group`` has more than one rank."""
    return group is not None and group.size() > 1


def normaliser(logits: Tensor, group: Any) -> Tensor:
    """Return ``logsumexp`` over the whole vocabulary, ``[R, 1]`` float32 without gradient, from slices ``[R, V/n]``."""
    logits = logits.detach().float()
    if not is_split(group):
        return torch.logsumexp(logits, dim=-1, keepdim=True)
    largest = logits.max(dim=-1, keepdim=True).values
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    total = (logits - largest).exp().sum(-1, keepdim=True)
    dist.all_reduce(total, group=group)
    return largest + total.log()


def place(ids: Tensor, width: int, group: Any) -> tuple[Tensor, Tensor]:
    """Return each id's column in this rank's slice of ``width`` columns (0 if absent), and whether it is present.

    Raises:
        ValueError: ranks share the vocabulary and an id is on none of them.
    """
    if not is_split(group):
        return ids, torch.ones_like(ids, dtype=torch.bool)
    vocabulary = group.size() * width
    if bool(((ids < 0) | (ids >= vocabulary)).any()):
        raise ValueError(
            f"token ids {int(ids.min())} to {int(ids.max())} do not fit a vocabulary of {vocabulary} tokens; "
            "use the model's own tokenizer"
        )
    local = ids - group.rank() * width
    here = (local >= 0) & (local < width)
    return torch.where(here, local, torch.zeros_like(local)), here


class LogProbsOfIds(torch.autograd.Function):
    """``log softmax(logits)`` at ``ids`` ``[R, K]``; the backward pass allocates one tensor of this rank's logits' size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, group: Any, chunk: int) -> Tensor:
        norm = torch.cat([normaliser(rows, group) for rows in logits.split(chunk)])
        columns, here = place(ids, logits.size(-1), group)
        chosen = logits.gather(-1, columns).float() * here
        if is_split(group):
            dist.all_reduce(chosen, group=group)
        ctx.save_for_backward(logits, columns, here, norm)
        return chosen - norm

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits, columns, here, norm = ctx.saved_tensors
        [gradient] = gradients
        result = (logits - norm).exp_().mul_(-gradient.sum(-1, keepdim=True))
        result.scatter_add_(-1, columns, gradient * here)
        return result.to(logits.dtype), None, None, None


def log_probs_of_ids(logits: Tensor, ids: Tensor, group: Any = None, chunk: int = -1) -> Tensor:
    """Return log probabilities ``[R, K]`` float32 of the tokens ``ids`` ``[R, K]`` under ``logits`` ``[R, V/n]``.

    ``chunk`` rows at a time bound the memory of the forward pass; not positive: all at once. An id outside the vocabulary is
    an error: of the gather, or a ValueError that names the ids when ranks share the vocabulary.
    """
    return LogProbsOfIds.apply(logits, ids, group, chunk if chunk > 0 else max(1, len(ids)))  # pyright: ignore[reportReturnType]


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: Any) -> Tensor:
        norm = normaliser(logits, group)
        table = logits.float() - norm
        entropy = -(table.exp() * table).sum(-1, keepdim=True)
        if is_split(group):
            dist.all_reduce(entropy, group=group)
        ctx.save_for_backward(logits, norm, entropy)
        return entropy.squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, norm, entropy = ctx.saved_tensors
        table = logits.float() - norm
        result = -(table.exp() * (table + entropy)) * gradients[0].unsqueeze(-1)
        return result.to(logits.dtype), None


def entropy_of_rows(logits: Tensor, group: Any = None) -> Tensor:
    """Return the entropy ``[R]`` float32 of each row of ``logits`` ``[R, V/n]``."""
    return _Entropy.apply(logits, group)  # pyright: ignore[reportReturnType]
