"""Log probabilities and entropies of logits that nothing else reads, computed in the memory of the logits.

``z = logits / temperature - max``, ``s = sum_v exp(z_v)``: ``log p(t) = z_t - log s``, ``H = log s - sum_v exp(z_v) z_v / s``; with
``p = exp(z) / s`` the gradients are ``d log p(t) / d logits_v = ([v = t] - p_v) / temperature`` and
``dH / d logits_v = -p_v (log p_v + H) / temperature``. Guarantee: besides float32 logits themselves only a block of rows exists
in the forward pass, and with a gradient through the log probabilities alone nothing in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.utils.vocab_parallel import is_split, place

# Float32 bytes of the rows that are worked on at once: what a CPU's cache holds, and on a GPU enough for few launches.
CPU_BLOCK_BYTES, GPU_BLOCK_BYTES = 2**20, 2**26


class _OwnLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, temperature: float, entropy_grad: bool, group: Any
    ) -> tuple[Tensor, Tensor]:
        table = logits.detach().float()  # the memory of the logits where they are float32
        columns, here = place(ids, table.size(-1), group)
        if temperature != 1.0:
            table.div_(temperature)
        largest = table.amax(-1, keepdim=True)
        if is_split(group):
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        sums = table.new_empty(3, len(table))  # exp(z), exp(z) z, and the z of the token
        for start in range(0, len(table), rows := _block_rows(table)):
            part = slice(start, start + rows)
            z = table[part].sub_(largest[part])
            sums[2, part] = z.gather(-1, columns[part].unsqueeze(-1)).squeeze(-1) * here[part]
            weights = z.exp()
            sums[0, part] = weights.sum(-1)
            sums[1, part] = z.mul_(weights).sum(-1)
            z.copy_(weights)
        if is_split(group):
            dist.all_reduce(sums, group=group)
        total, weighted, chosen = sums
        log_total = total.log()
        entropy = log_total - weighted / total
        ctx.save_for_backward(table, columns, here, total, entropy)
        ctx.temperature, ctx.entropy_grad, ctx.dtype = temperature, entropy_grad, logits.dtype
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return chosen - log_total, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        table, columns, here, total, entropy = ctx.saved_tensors
        of_token, of_entropy = ((gradient / ctx.temperature).unsqueeze(-1) for gradient in gradients)
        if ctx.entropy_grad:
            p = table.div_(total.unsqueeze(-1))
            by_entropy = torch.xlogy(p, p).addcmul_(p, entropy.unsqueeze(-1)).mul_(of_entropy)
            p.mul_(-of_token).sub_(by_entropy)
        else:
            table.mul_(-of_token / total.unsqueeze(-1))
        table.scatter_add_(-1, columns.unsqueeze(-1), of_token * here.unsqueeze(-1))
        return table.to(ctx.dtype), None, None, None, None


def _block_rows(table: Tensor) -> int:
    limit = CPU_BLOCK_BYTES if table.device.type == "cpu" else GPU_BLOCK_BYTES
    return max(1, limit // (4 * table.size(-1)))


def log_probs_of_own_logits(
    logits: Tensor, ids: Tensor, *, temperature: float = 1.0, entropy_grad: bool = False, group: Any = None
) -> tuple[Tensor, Tensor]:
    """Return the log probability of each of ``ids`` ``[R]`` and the entropy of each row, ``[R]`` float32 each.

    Args:
        logits: ``[R, V]``, or this rank's columns ``[R, V/n]`` with a ``group`` of n ranks that all call together. Float32
            logits are overwritten: neither the caller nor the operation that made them may read them afterwards (autograd
            raises where it would).
        temperature: divisor of the logits.
        entropy_grad: whether the entropy carries a gradient.
    """
    return _OwnLogits.apply(logits, ids, temperature, entropy_grad, group)  # pyright: ignore[reportReturnType]
