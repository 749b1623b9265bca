"""From a rollout's training data to what a service trains on, with the gradient that a trainer of our own would have.

A service sums its loss over tokens. Ours is ``1/N sum_i 1/D_i sum_t m_it L(A_it)``, for N rollouts of a step with D_i unmasked tokens
each. `ppo`, `importance_sampling` and `cispo` are linear in a positive factor of the advantage, so the advantages that are sent are
``A_it m_it / (N D_i)``: the sum has our loss's value and gradient. Prompt tokens have advantage 0.

Guarantees: ids and log probabilities are those that were sampled; nothing is padded, cut or made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slime.algorithms.advantages import compute_advantages, on_one_rank
from slime.args import Arguments
from slime.backends.trainer.micro_batch import RolloutShard
from slime.utils.metric_names import LARGEST
from slime.utils.ppo_utils import bounded_ratio

if TYPE_CHECKING:
    from tinker import Datum

Metrics = dict[str, float]


def with_advantages(args: Arguments, data: RolloutShard, base_log_probs: Sequence[Tensor] | None) -> None:
    """Set the samples' advantages ``[R_i]``; ``base_log_probs`` ``[R_i]`` of the model as it was, for a penalty on leaving it.

    The penalty is ``kl_loss_coef (log pi_old - log pi_base)`` per token, the k1 estimate of the KL divergence as a part of the reward.
    """
    if "rollout_log_probs" not in data.fields:
        raise ValueError(
            "a service learns from the log probabilities that replies were sampled with, and there are none"
        )
    data.set_computed("log_probs", data.fields["rollout_log_probs"])
    advantages, returns = compute_advantages(args, data.fields, on_one_rank)
    if base_log_probs is not None:
        streams = zip(advantages, data.fields["log_probs"], base_log_probs, strict=True)
        advantages = [a - args.kl_loss_coef * (old - base) for a, old, base in streams]
    data.set_computed("advantages", advantages)
    data.set_computed("returns", returns)


@dataclass(frozen=True)
class StepData:
    """The datums of one optimizer step, and for its metrics what they were made of, in their order.

    Attributes:
        datums: one per sample.
        samples: numbers of the samples in the rollout's data.
        weights: ``m_it / (N D_i)`` ``[R_i]``.
    """

    datums: list[Datum]
    samples: list[int]
    weights: list[Tensor]

    @property
    def tokens(self) -> int:
        """Tokens that the service trains on."""
        return sum(datum.model_input.length for datum in self.datums)


def step_data(args: Arguments, data: RolloutShard, step: int) -> StepData:
    """Return the datums of optimizer step number ``step`` of a rollout; samples without a token that teaches are left out."""
    fields, total = data.fields, float(data.global_batch_sizes[step])
    if args.calculate_per_token_loss:
        total = float(data.global_token_counts[step])
    result = StepData([], [], [])
    for number in (number for batch in data.micro_batches[step] for number in batch):
        mask = fields["loss_masks"][number].float()
        own = 1.0 if args.calculate_per_token_loss else max(1.0, float(fields["rollout_mask_sums"][number]))
        weights = mask / (own * max(1.0, total))
        advantages = fields["advantages"][number].float() * weights
        if not bool((advantages != 0).any()):
            continue
        result.datums.append(datum_of(data.tokens[number], fields["log_probs"][number], advantages))
        result.samples.append(number)
        result.weights.append(weights)
    return result


def datum_of(tokens: Sequence[int], log_probs: Tensor, advantages: Tensor) -> Datum:
    """Return the datum of one sample: its tokens, and of the reply at their end the log probabilities and advantages ``[R]``."""
    from tinker import Datum, ModelInput, TensorData

    before = len(tokens) - 1 - len(log_probs)
    if before < 0 or len(log_probs) != len(advantages):
        raise ValueError(f"a reply of {len(log_probs)} tokens does not fit into {len(tokens)}, with a prompt before it")
    if not bool(torch.isfinite(log_probs).all() & torch.isfinite(advantages).all()):
        raise ValueError("a log probability or an advantage is not a finite number")
    prompt = torch.zeros(before)
    return Datum(
        model_input=ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": TensorData.from_torch(torch.tensor(tokens[1:], dtype=torch.int64)),
            "logprobs": TensorData.from_torch(torch.cat([prompt, log_probs.float()])),
            "advantages": TensorData.from_torch(torch.cat([prompt, advantages])),
        },
    )


def loss_config(args: Arguments) -> dict[str, float]:
    """Return the bounds of the service's loss."""
    if args.tinker_loss == "importance_sampling":
        return {}
    return {"clip_low_threshold": 1.0 - args.eps_clip, "clip_high_threshold": 1.0 + args.eps_clip_high}


def rollout_metrics(data: RolloutShard) -> Metrics:
    """Return what a certificate asks of a rollout: its tokens with loss, and the share of samples with something to learn."""
    masks, advantages = data.fields["loss_masks"], data.fields["advantages"]
    signals = [bool(((a * m) != 0).any()) for a, m in zip(advantages, masks, strict=True)]
    flat = torch.cat([a[m.bool()] for a, m in zip(advantages, masks, strict=True)])
    return {
        "rollout/loss_tokens": float(sum(float(mask.sum()) for mask in masks)),
        "rollout/tokens": float(sum(map(len, data.tokens))),
        "rollout/signal_share": sum(signals) / max(1, len(signals)),
        **({"rollout/advantages": float(flat.mean())} if len(flat) else {}),
    }


def step_metrics(args: Arguments, data: RolloutShard, step: StepData, outputs: Sequence[Mapping[str, Any]]) -> Metrics:
    """Return the metrics of a step from the log probabilities that the service found before it took it.

    Raises:
        ValueError: the service answered for other tokens.
    """
    found = Metrics()
    values: dict[str, float] = {}
    largest = 0.0
    if len(outputs) != len(step.datums):
        raise ValueError(f"the service answered for {len(outputs)} of {len(step.datums)} samples")
    low, high = 1.0 - args.eps_clip, 1.0 + args.eps_clip_high
    for number, weights, output in zip(step.samples, step.weights, outputs, strict=True):
        old = data.fields["log_probs"][number]
        new = torch.as_tensor(output["logprobs"].tolist(), dtype=torch.float32)
        if len(new) != len(data.tokens[number]) - 1:
            raise ValueError(f"the service answered for {len(new)} of {len(data.tokens[number]) - 1} tokens")
        new = new[len(new) - len(old) :]
        difference = new - old
        ratio = bounded_ratio(difference)
        kept = weights > 0
        largest = max(largest, float(difference[kept].abs().max()) if bool(kept.any()) else 0.0)
        per_token = {
            "train_rollout_logprob_abs_diff": difference.abs(),
            "train_rollout_kl": ratio - 1.0 - difference,
            "ppo_kl": -difference,
            "entropy_loss": -new,  # an estimate from the sampled tokens, because the service gives no entropy
            "pg_clipfrac": ((ratio < low) | (ratio > high)).float(),
        }
        for name, value in per_token.items():
            values[name] = values.get(name, 0.0) + float((value * weights).sum())
    found |= values
    found[f"train_rollout_logprob_diff{LARGEST}"] = largest
    return found
