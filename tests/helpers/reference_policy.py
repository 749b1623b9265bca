"""The policy loss in float64, one token at a time, from the formulas in the docstrings and without the trainer's code."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments


def random_batch(
    seed: int, lengths: list[int], drift: float = 0.4
) -> tuple[dict[str, Any], list[Tensor], list[Tensor]]:
    """Return a batch of float64 streams, new log probabilities and entropies; masks have holes, the first token is kept."""
    rng = random.Random(seed)

    def streams(make) -> list[Tensor]:
        return [torch.tensor([make() for _ in range(length)], dtype=torch.float64) for length in lengths]

    def near(values: list[Tensor]) -> list[Tensor]:
        return [value + torch.tensor([rng.gauss(0.0, drift) for _ in value], dtype=torch.float64) for value in values]

    old = streams(lambda: -rng.uniform(0.1, 5.0))
    batch = {
        "log_probs": old,
        "rollout_log_probs": near(old),
        "ref_log_probs": near(old),
        "advantages": [torch.full((n,), rng.choice([-1.0, 0.5, 1.0]), dtype=torch.float64) for n in lengths],
        "loss_masks": [torch.tensor([1] + [rng.randint(0, 1) for _ in range(n - 1)]) for n in lengths],
        "response_lengths": lengths,
        "total_lengths": [n + 3 for n in lengths],
    }
    return batch, near(old), streams(rng.random)


def reference_advantages(args: Arguments, batch: dict[str, Any]) -> list[Tensor]:
    """Return float64 advantages of any estimator, with the teacher's term and the whitening."""
    rows = []
    for i, mask in enumerate(batch["loss_masks"]):
        row = [float(batch["rewards"][i])] * len(mask)
        if args.advantage_estimator == "reinforce_plus_plus":
            after, row = 0.0, []
            for reward in reversed(token_rewards(batch, i, args.kl_coef)):
                after = reward + args.gamma * after
                row.insert(0, after)
        if args.advantage_estimator == "ppo":
            rewards = token_rewards(batch, i, args.kl_coef)
            row = reference_generalized_advantages(
                rewards, batch["values"][i].tolist(), mask.tolist(), args.gamma, args.lambd
            )
        if args.advantage_estimator == "reinforce_plus_plus_baseline":
            row = [batch["rewards"][i] - args.kl_coef * kl for kl in masked_kl(batch, i)]
        if args.advantage_estimator == "on_policy_distillation":
            row = reference_teacher_term(args, batch, i)
        if args.advantage_estimator == "step_wise":
            steps = zip(batch["step_wise_step_rewards"][i], batch["step_wise_step_token_spans"][i], strict=True)
            score = {t: value for value, (start, end) in steps for t in range(start, end)}
            row = [score.get(t, 0.0) * kept for t, kept in enumerate(mask.tolist())]
        teacher = batch["teacher_log_probs"][i] if args.use_opd else None
        if teacher is not None:
            distances = reference_teacher_term(args, batch, i)
            row = [a + args.opd_kl_coef * d for a, d in zip(row, distances, strict=True)]
        rows.append(row)
    if args.normalize_advantages:
        rows = whitened(rows, [mask.tolist() for mask in batch["loss_masks"]])
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def reference_teacher_term(args: Arguments, batch: Any, i: int) -> list[float]:
    """Return the teacher's log probabilities minus those that sample ``i`` was sampled with, within ``--opd-clip``."""
    sampled = batch.get("rollout_log_probs") or batch["log_probs"]
    bound = float("inf") if args.opd_clip is None else args.opd_clip
    pairs = zip(batch["teacher_log_probs"][i].tolist(), sampled[i].tolist(), strict=True)
    return [max(-bound, min(bound, teacher - behaviour)) for teacher, behaviour in pairs]


def reference_generalized_advantages(
    rewards: list[float], values: list[float], mask: list[int], gamma: float, lambd: float
) -> list[float]:
    """Return the advantages of PPO in plain floats, backwards over the unmasked tokens."""
    result, after, advantage = [0.0] * len(mask), 0.0, 0.0
    for t in reversed(range(len(mask))):
        if mask[t]:
            advantage = rewards[t] + gamma * after - values[t] + gamma * lambd * advantage
            result[t], after = advantage, values[t]
    return result


def reference_value_loss(
    old: list[Tensor],
    new: list[Tensor],
    returns: list[Tensor],
    masks: list[Tensor],
    value_clip: float,
    *,
    per_token: bool = False,
) -> Tensor:
    """Return the sum over samples (or tokens) of the critic's loss, one token at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for before, now, target, mask in zip(old, new, returns, masks, strict=True):
        denominator = 1 if per_token else max(1, int(mask.sum()))
        for t in range(len(mask)):
            near = torch.minimum(torch.maximum(now[t], before[t] - value_clip), before[t] + value_clip)
            total = total + mask[t] * torch.maximum((now[t] - target[t]) ** 2, (near - target[t]) ** 2) / denominator
    return total


def token_rewards(batch: dict[str, Any], i: int, kl_coef: float) -> list[float]:
    """Return the reward of each token of sample ``i`` with k3 as the KL estimator, in plain floats."""
    mask = batch["loss_masks"][i].tolist()
    rewards = [-kl_coef * kl for kl in masked_kl(batch, i)]
    if any(mask):
        rewards[max(t for t, kept in enumerate(mask) if kept)] += batch["rewards"][i]
    return rewards


def masked_kl(batch: dict[str, Any], i: int) -> list[float]:
    """Return k3 of the old policy against the reference for each token of sample ``i``, 0 where it is masked."""
    streams = (batch[name][i].tolist() for name in ("log_probs", "ref_log_probs", "loss_masks"))
    return [(math.exp(ref - old) - 1 + old - ref) * kept for old, ref, kept in zip(*streams, strict=True)]


def whitened(values: list[list[float]], masks: list[list[int]]) -> list[list[float]]:
    """Return ``values`` less their mean over their deviation, both over the unmasked ones, in plain floats."""
    kept = [v for row, mask in zip(values, masks, strict=True) for v, m in zip(row, mask, strict=True) if m]
    mean, deviation = statistics.fmean(kept), math.sqrt(statistics.variance(kept) + 1e-8)
    return [[(value - mean) / deviation for value in row] for row in values]


def reference_policy_loss(args: Arguments, batch: dict[str, Any], new: list[Tensor], entropy: list[Tensor]) -> Tensor:
    """Return the sum over samples (or tokens) that the trainer divides by the step's denominator."""
    total = torch.zeros((), dtype=torch.float64)
    for i, masks in enumerate(batch["loss_masks"]):
        kept = masks.tolist()
        rejected = _rejected(args, batch, i, kept)
        after = [int(m and not r) for m, r in zip(kept, rejected, strict=True)]
        policy, rest = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for t in range(len(kept)):
            weight = _weight(args, batch, i, t) * _opsm(args, batch, i, t, new, kept)
            policy = policy + after[t] * weight * _surrogate(args, batch, i, t, new, kept)
            rest = rest - after[t] * args.entropy_coef * entropy[i][t]
            if args.use_kl_loss:
                rest = rest + after[t] * args.kl_loss_coef * _kl(args, batch, i, t, new)
        denominator = 1 if args.calculate_per_token_loss else max(1, sum(after))
        constant = (args.custom_pg_loss_reducer_function_path or "").endswith("constant_denominator")
        total = total + policy / (args.rollout_max_response_len if constant else denominator) + rest / denominator
    return total


def _mean(values: list[Tensor], kept: list[int]) -> Tensor:
    return sum((v * m for v, m in zip(values, kept, strict=True)), torch.zeros((), dtype=torch.float64)) / max(
        1, sum(kept)
    )


def _surrogate(args: Arguments, batch: dict[str, Any], i: int, t: int, new: list[Tensor], kept: list[int]) -> Tensor:
    old, advantage = batch["log_probs"][i], batch["advantages"][i][t]
    low, high = 1 - args.eps_clip, 1 + args.eps_clip_high
    ratio = torch.exp(new[i][t] - old[t])
    if args.advantage_estimator == "cispo":
        return -ratio.detach().clamp(low, high) * advantage * new[i][t]
    if args.advantage_estimator == "gspo":
        ratio = torch.exp(_mean([new[i][s] - old[s] for s in range(len(kept))], kept))
    objective = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if args.eps_clip_c is not None and advantage < 0:
        objective = torch.maximum(objective, args.eps_clip_c * advantage)
    return -objective


def _kl(args: Arguments, batch: dict[str, Any], i: int, t: int, new: list[Tensor]) -> Tensor:
    d = new[i][t] - batch["ref_log_probs"][i][t]
    estimate = {"k1": d, "k2": d * d / 2}.get(args.kl_loss_type, torch.exp(-d) - 1 + d)
    if args.kl_loss_type == "low_var_kl":
        estimate = estimate.clamp(-10, 10)
    return torch.exp(new[i][t] - batch["log_probs"][i][t]) * estimate if args.use_unbiased_kl else estimate


def _ratio(batch: dict[str, Any], i: int, t: int) -> float:
    return math.exp(float(batch["log_probs"][i][t] - batch["rollout_log_probs"][i][t]))


def _weight(args: Arguments, batch: dict[str, Any], i: int, t: int) -> float:
    if not args.use_tis:
        return 1.0
    ratio = _ratio(batch, i, t)
    if not args.custom_tis_function_path:
        return min(max(ratio, args.tis_clip_low), args.tis_clip)
    inside = args.tis_clip_low <= ratio <= args.tis_clip
    if args.custom_tis_function_path.endswith("sequence_rejection"):
        return min(ratio, args.tis_clip)
    return ratio if inside else 0.0


def _rejected(args: Arguments, batch: dict[str, Any], i: int, kept: list[int]) -> list[bool]:
    path = (args.custom_tis_function_path or "") if args.use_tis else ""
    ratios = [_ratio(batch, i, t) for t in range(len(kept))]
    if path.endswith("sequence_rejection"):
        mean = sum(math.log(r) * m for r, m in zip(ratios, kept, strict=True)) / max(1, sum(kept))
        ratios = [math.exp(mean)] * len(kept)
    elif not path.endswith("token_rejection"):
        return [False] * len(kept)
    return [not args.tis_clip_low <= ratio <= args.tis_clip for ratio in ratios]


def _opsm(args: Arguments, batch: dict[str, Any], i: int, t: int, new: list[Tensor], kept: list[int]) -> float:
    if not args.use_opsm or batch["advantages"][i][t] >= 0:
        return 1.0
    moved = _mean([batch["log_probs"][i][s] - new[i][s].detach() for s in range(len(kept))], kept)
    return 0.0 if moved > args.opsm_delta else 1.0
