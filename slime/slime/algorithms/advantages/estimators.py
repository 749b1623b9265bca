"""The advantage estimators, one function each, with formula and source.

An estimator is ``(args, rollout) -> list of [R_i]``. :mod:`slime.algorithms.advantages` describes ``rollout``.
Guarantee: an error names every stream that the estimator needs and the rollout lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.advantages.returns import discounted_returns, token_rewards
from slime.algorithms.advantages.terms import teacher_terms
from slime.args import Arguments


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

    ``r_t`` are the token rewards of :func:`slime.algorithms.advantages.returns.token_rewards`, ``delta_t = r_t +
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
    :mod:`slime.rollout.step_wise` has already standardised the scores, so this function does not whiten them again.
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
    within ``--opd-clip`` (:func:`slime.algorithms.advantages.terms.teacher_terms`).

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
        found, expected = [len(tensor) for tensor in tensors], list(rollout["response_lengths"])
        if found != expected:
            raise ValueError(f"{where} set {name} of lengths {found}, but the responses have {expected} tokens")
        results.append(tensors)
    return results[0], results[1]
