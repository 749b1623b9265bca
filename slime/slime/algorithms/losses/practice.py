"""Policy loss on the turns of conversations, distillation of a teacher's K most likely tokens on practised replies.

A sample with ``teacher_topk_log_probs`` is a practised reply: its loss is the reverse KL of
`slime.algorithms.losses.topk_distillation` and nothing else, whatever its advantage. Any other sample has the policy loss
alone, with its KL to the base model and its entropy bonus. So each sample adds one of the two to the same sum of sample means,
and the step's denominator counts all of them. The metric ``entropy_loss`` is of all tokens, so that a fuse on it also sees a
policy that practice makes collapse.

The teacher's temperature is 1, and so is the student's here, whatever ``--rollout-temperature`` is.

Use: ``--loss-type custom_loss --custom-loss-function-path slime.algorithms.losses.practice.practice_loss``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.losses.custom import from_response_rows
from slime.algorithms.losses.policy_loss import log_probs_and_entropies, policy_loss, policy_loss_of_logits
from slime.algorithms.losses.reduce import Reducer
from slime.algorithms.losses.topk_distillation import topk_distillation_loss
from slime.args import Arguments
from slime.logprobs.response_rows import ResponseRows
from slime.utils.streams import TrainBatch

READS = ("teacher_topk_log_probs",)
"""Streams that not every sample has; live training refuses a method whose samples lack one."""


@from_response_rows
def practice_loss(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, sum_of_sample_mean: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its metrics, as the contract of custom losses requires."""
    taught = batch.get("teacher_topk_indices")
    if taught is None:
        return policy_loss_of_logits(args, batch, logits, sum_of_sample_mean)
    if args.custom_pg_loss_reducer_function_path or args.custom_tis_function_path:
        raise ValueError(
            "practised replies stay out of the policy loss by its own sum; remove --custom-pg-loss-reducer-function-path and "
            "--custom-tis-function-path"
        )
    lived = torch.cat(
        [torch.full_like(mask, ids is None) for mask, ids in zip(batch["loss_masks"], taught, strict=True)]
    )

    def of_turns(values: Tensor) -> Tensor:
        return sum_of_sample_mean(torch.where(lived.bool(), values, torch.zeros_like(values)))

    with torch.set_grad_enabled(torch.is_grad_enabled() and any(ids is None for ids in taught)):
        log_probs, entropies = log_probs_and_entropies(args, batch, logits)
        policy, metrics = policy_loss(args, batch, log_probs, entropies, of_turns)
    entropy = sum_of_sample_mean(torch.cat(entropies).detach())
    distillation, own = topk_distillation_loss(args, batch, logits, sum_of_sample_mean)
    loss = policy + distillation
    return loss, {**metrics, **own, "entropy_loss": entropy, "loss": loss.detach()}
