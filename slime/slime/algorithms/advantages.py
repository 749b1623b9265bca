"""Compute a rollout's advantages: an estimator, then terms that work with every one.

To add an estimator, write a function ``(args, rollout) -> list of [R_i]`` and add a line to :data:`ESTIMATORS`.
``rollout`` maps names to per-sample lists, among them:

* ``rewards``, ``response_lengths``, ``loss_masks``, ``teacher_log_probs``
* ``log_probs`` of the old policy, ``kl`` of the old policy to the reference
* ``values`` of the critic

gspo and cispo use GRPO's advantages and differ in the loss. `slime.rollout.rewards` compares the rewards of a group
before. Masked tokens earn nothing. The KL in a reward carries no gradient, unlike the KL *loss* of ``--use-kl-loss``.

Guarantee: an error names every stream that the estimator needs and the rollout lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.utils.misc import load_function
from slime.utils.ppo_utils import compute_approx_kl


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return ``G`` ``[R]`` with ``G_t = r_t + gamma G_{t+1}``, in ``log2(R)`` tensor operations.

    Uses ``1 + x + x^2 + ... = (1 + x)(1 + x^2)(1 + x^4)...``, where the operator ``x`` shifts by one and multiplies by
    ``gamma``.
    """
    returns, shift = rewards.clone(), 1
    while shift < len(rewards):
        returns = torch.cat([returns[:-shift] + gamma**shift * returns[shift:], returns[-shift:]])
        shift *= 2
    return returns


def reference_kl(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return masked KL estimates ``[R_i]`` per sample.

    They are zero with ``--kl-coef 0``, which needs no reference model.
    """
    masks = rollout["loss_masks"]
    if args.kl_coef == 0:
        return [torch.zeros(len(mask), dtype=torch.float32) for mask in masks]
    streams = zip(rollout["log_probs"], rollout["ref_log_probs"], masks, strict=True)
    return [compute_approx_kl(old, ref, args.kl_loss_type) * mask for old, ref, mask in streams]


def token_rewards(args: Arguments, reward: float, kl: Tensor, mask: Tensor) -> Tensor:
    """Return the token rewards ``[R]`` float64 of a sample.

    Token t earns ``- kl_coef * KL_t``. The last unmasked token also earns ``reward``. A sample without an unmasked token
    does not get its reward.

    ``KL_t`` compares the old policy to the reference with an estimator of :func:`slime.utils.ppo_utils.compute_approx_kl`
    (Ouyang et al., "Training language models to follow instructions with human feedback", 2022). It carries no gradient,
    unlike the KL *loss* of ``--use-kl-loss``. Masked tokens have ``KL_t = 0``.
    """
    rewards = -args.kl_coef * kl.double()
    kept = mask.nonzero()
    if len(kept):
        rewards[kept[-1]] += float(reward)
    return rewards


def teacher_terms(rollout: Mapping[str, Any], clip: float | None) -> list[Tensor | None]:
    """Return ``clip(log pi_teacher(a_t) - log pi_behaviour(a_t), -C, C)`` ``[R_i]`` per sample; None without a teacher.

    From ``teacher_log_probs`` and the log probabilities that the tokens were sampled with: ``rollout_log_probs``, or
    ``log_probs`` if the rollout has none. Recomputed log probabilities would add the policy's drift since then. One
    unlikely token has an unbounded term, which would outweigh the rewards of a whole batch; ``clip`` is ``--opd-clip``,
    None leaves the terms as they are.
    """
    teacher = rollout.get("teacher_log_probs")
    sampled = rollout.get("rollout_log_probs")
    behaviour = rollout["log_probs"] if sampled is None else sampled
    if teacher is None:
        return [None] * len(behaviour)
    return [None if t is None else _bounded(t - b.to(t.device), clip) for t, b in zip(teacher, behaviour, strict=True)]


def _bounded(values: Tensor, clip: float | None) -> Tensor:
    return values if clip is None else values.clamp(-clip, clip)


def add_opd_term(
    advantages: list[Tensor], rollout: Mapping[str, Any], coef: float, clip: float | None = None
) -> list[Tensor]:
    """Return new advantages ``[R_i]`` that include the teacher's term.

    ``A_t += coef * clip(log pi_teacher(a_t) - log pi_behaviour(a_t))``, see `teacher_terms`. A sample without a teacher
    keeps its advantage. This combines reward and on-policy distillation (OpenClaw-RL, arXiv 2603.10165, ``A_t = w_rl r +
    w_opd (log pi_T - log pi_old)``).
    """
    if rollout.get("teacher_log_probs") is None:
        return list(advantages)
    terms = teacher_terms(rollout, clip)
    return [a if term is None else a + coef * term for a, term in zip(advantages, terms, strict=True)]


_EPSILON = 1e-8

SumOverRanks = Callable[[Tensor], Tensor]


def on_one_rank(values: Tensor) -> Tensor:
    """Return ``values``: the sum over the ranks of a single-rank run."""
    return values


def whiten(advantages: Sequence[Tensor], masks: Sequence[Tensor], sum_over_ranks: SumOverRanks) -> list[Tensor]:
    """Return advantages ``[R_i]`` float32 with mean zero and variance one.

    ``A_t <- (A_t - mean) / sqrt(var + 1e-8)``, with the unbiased variance (``n - 1``). Mean and variance are taken over the
    unmasked tokens of the rollout on all ranks; masked tokens are shifted and scaled too. Equal advantages become zero.
    With fewer than two unmasked tokens the values stay unchanged.

    Guarantees: every rank gets the same statistics, whatever samples it holds. Sums are float64, and a second pass
    computes the variance around the mean.

    ``sum_over_ranks`` sums a float64 tensor over the data-parallel ranks. Collective.
    """
    pairs = [(values.double(), mask.double()) for values, mask in zip(advantages, masks, strict=True)]
    sums = [torch.stack([(values * mask).sum(), mask.sum()]) for values, mask in pairs]
    totals = sum_over_ranks(torch.stack([torch.zeros(2, dtype=torch.float64), *sums]).sum(0))
    total, count = float(totals[0]), float(totals[1])
    mean = total / max(count, 1.0)
    squares = [((values - mean).square() * mask).sum() for values, mask in pairs]
    deviation = float(sum_over_ranks(torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum()))
    if count < 2:
        return list(advantages)
    scale = (deviation / (count - 1) + _EPSILON) ** -0.5
    return [((values - mean) * scale).float() for values, _ in pairs]


def grpo(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards`` and ``response_lengths``.

    GRPO: each response token's advantage is its sample's (normalised) reward.

    ``A_t = r`` (Shao et al. 2024, outcome supervision). The rollout has already normalised the rewards within their groups.
    """
    pairs = zip(rollout["rewards"], rollout["response_lengths"], strict=True)
    return [torch.full((length,), float(reward), dtype=torch.float32) for reward, length in pairs]


def reinforce_plus_plus(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards``, ``kl`` and ``loss_masks``.

    REINFORCE++: discounted returns of a per-token reward, whitened over the whole batch instead of within groups.

    ``r_t = - kl_coef * KL_t``, plus the sample's reward on its last unmasked token; ``A_t = sum_{s >= t} gamma^(s -
    t) r_s`` (Hu, "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", 2025). ``s - t``
    counts response tokens, masked ones too. This estimator requires ``--normalize-advantages``, which does the whitening.
    A sample without an unmasked token has advantage zero.
    """
    streams = zip(rollout["rewards"], rollout["kl"], rollout["loss_masks"], strict=True)
    return [discounted_returns(token_rewards(args, *stream), args.gamma).float() for stream in streams]


def reinforce_plus_plus_baseline(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from the centred ``rewards`` and ``kl``.

    REINFORCE++ with a group baseline: ``A_t = (r - mean of the group) - kl_coef * KL_t``, whitened over the whole
    batch.

    (Hu, "REINFORCE++", 2025, the variant for several replies per prompt.) The rollout has already subtracted the mean; a
    group of one keeps its reward. This estimator requires ``--normalize-advantages``, which does the whitening.
    """
    return [float(reward) - args.kl_coef * kl for reward, kl in zip(rollout["rewards"], rollout["kl"], strict=True)]


def ppo(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards``, ``kl``, ``values`` and ``loss_masks``.

    PPO with a critic: generalized advantage estimation over the response's tokens.

    ``r_t`` are the token rewards of :func:`slime.algorithms.advantages.token_rewards`, ``delta_t = r_t +
    gamma V_{t+1} - V_t`` with ``V = 0`` after the last token, and ``A_t = sum_{s >= t} (gamma lambd)^(s - t)
    delta_s`` (Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016;
    Ouyang et al. 2022 for the token rewards). ``V_t`` is the critic's value before token t was sampled. The policy
    chose the unmasked tokens only, so the sums skip all others: a tool's answer is part of a transition. Masked tokens
    have advantage 0.
    """
    if rollout.get("values") is None:
        raise ValueError("--advantage-estimator ppo needs the critic's values, but the rollout has none")
    advantages: list[Tensor] = []
    streams = zip(rollout["rewards"], rollout["kl"], rollout["values"], rollout["loss_masks"], strict=True)
    for reward, kl, values, mask in streams:
        kept = mask.bool()
        rewards = token_rewards(args, reward, kl, mask)
        advantage = torch.zeros_like(rewards)
        advantage[kept] = generalized_advantages(rewards[kept], values[kept].double(), args.gamma, args.lambd)
        advantages.append(advantage.float())
    return advantages


def generalized_advantages(rewards: Tensor, values: Tensor, gamma: float, lambd: float) -> Tensor:
    """Return ``A`` ``[T]`` from ``rewards`` and ``values`` ``[T]``; the episode ends after T actions."""
    following = torch.cat([values[1:], values.new_zeros(min(1, len(values)))])
    return discounted_returns(rewards + gamma * following - values, gamma * lambd)


def step_wise(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from the steps' rewards and spans; 0 under a zero mask.

    Step-wise credit: tokens of an agent's step get that step's standardised score. All other tokens get 0.

    ``A_t = (R_k - mean) / deviation`` for the tokens ``t`` of step ``k``, over the steps with the same index in the
    task group. ``R_k`` combines outcome and process reward (OpenClaw-RL, arXiv 2603.10165, general agents).
    :mod:`slime.rollout.rewards` has already standardised the scores, so this function does not whiten them again.
    """
    rewards, spans = rollout.get("step_wise_step_rewards"), rollout.get("step_wise_step_token_spans")
    if rewards is None or spans is None:
        raise ValueError(
            "--advantage-estimator step_wise needs step_wise_step_rewards and step_wise_step_token_spans in the training "
            "data; return both from the function of --custom-convert-samples-to-train-data-path"
        )
    advantages: list[Tensor] = []
    for values, places, mask in zip(rewards, spans, rollout["loss_masks"], strict=True):
        advantage = torch.zeros(len(mask), dtype=torch.float32)
        for value, (start, end) in zip(values, places, strict=True):
            advantage[start:end] = value
        advantages.append(advantage * mask)
    return advantages


def on_policy_distillation(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` per sample from ``teacher_log_probs`` and the behaviour's; every sample needs a teacher.

    On-policy distillation: a token's advantage is its log probability under the teacher minus the one it was sampled with,
    within ``--opd-clip`` (:func:`slime.algorithms.advantages.teacher_terms`).

    ``A_t = log pi_teacher(a_t) - log pi_old(a_t)``: the policy gradient of the reverse KL to the teacher (Agarwal et
    al. 2024; Lu, "On-Policy Distillation", 2025). The teacher may be the same model with a hint in its prompt.
    """
    teacher = rollout.get("teacher_log_probs")
    if teacher is None or any(values is None for values in teacher):
        missing = "all samples" if teacher is None else str([i for i, values in enumerate(teacher) if values is None])
        raise ValueError(
            f"--advantage-estimator on_policy_distillation needs teacher_log_probs, which are missing on {missing}; "
            "if only some samples have a teacher, use --advantage-estimator grpo --use-opd"
        )
    return [term for term in teacher_terms(rollout, args.opd_clip) if term is not None]


def custom_advantages(
    function: Callable[[Arguments, dict[str, Any]], None], args: Arguments, rollout: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Call ``function`` and return the advantages and returns ``[R_i]`` float32 that it set.

    The plugin ``fn(args, rollout)`` sets ``rollout["advantages"]`` and ``rollout["returns"]`` in place. ``rollout`` has every
    stream that an estimator reads, including ``kl``.

    Raises:
        ValueError: one of the two is missing or has a wrong length.
    """
    function(args, rollout)
    results: list[list[Tensor]] = []
    for name in ("advantages", "returns"):
        values = rollout.pop(name, None)
        where = f"custom advantage function {getattr(function, '__name__', repr(function))}"
        if values is None:
            raise ValueError(f'{where} did not set rollout["{name}"]')
        tensors = [torch.as_tensor(value, dtype=torch.float32) for value in values]
        result, expected = [len(tensor) for tensor in tensors], list(rollout["response_lengths"])
        if result != expected:
            raise ValueError(f"{where} set {name} of lengths {result}, but the responses have {expected} tokens")
        results.append(tensors)
    return results[0], results[1]


Estimator = Callable[[Arguments, dict[str, Any]], list[Tensor]]

ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "gspo": grpo,
    "cispo": grpo,
    "ppo": ppo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "step_wise": step_wise,
    "on_policy_distillation": on_policy_distillation,
}


def compute_advantages(
    args: Arguments, rollout: dict[str, Any], sum_over_ranks: SumOverRanks = on_one_rank
) -> tuple[list[Tensor], list[Tensor]]:
    """Return each sample's advantages and returns ``[R_i]``, and set ``rollout["kl"]``.

    The returns are the estimator's advantages, plus the critic's ``values`` if there is a critic. ``--use-opd`` then adds the
    teacher's term to the advantages, and ``--normalize-advantages`` whitens them. Whitening is collective over the ranks.
    """
    rollout["kl"] = reference_kl(args, rollout)
    if args.custom_advantage_function_path:
        advantages, returns = custom_advantages(load_function(args.custom_advantage_function_path), args, rollout)
    else:
        estimator = ESTIMATORS.get(args.advantage_estimator)
        if estimator is None:
            known = ", ".join(sorted(ESTIMATORS))
            raise ValueError(f"--advantage-estimator {args.advantage_estimator!r} is not one of: {known}")
        advantages = returns = estimator(args, rollout)
        if rollout.get("values") is not None:
            returns = [advantage + value for advantage, value in zip(advantages, rollout["values"], strict=True)]
    if args.use_opd:
        advantages = add_opd_term(advantages, rollout, args.opd_kl_coef, args.opd_clip)
    if args.normalize_advantages:
        advantages = whiten(advantages, rollout["loss_masks"], sum_over_ranks)
    return advantages, returns
