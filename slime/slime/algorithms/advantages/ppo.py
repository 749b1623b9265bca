"""PPO with a critic: generalized advantage estimation over the response's tokens.

``r_t`` are the token rewards of :func:`slime.algorithms.advantages.reward_kl.token_rewards`, ``delta_t = r_t + gamma V_{t+1} -
V_t`` with ``V = 0`` after the last token, and ``A_t = sum_{s >= t} (gamma lambd)^(s - t) delta_s`` (Schulman et al.,
"High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016; Ouyang et al. 2022 for the token
rewards). ``V_t`` is the critic's value before token t was sampled. The policy decided the unmasked tokens only, so the sums
run over those as if the others were not there: what a tool answered is part of a transition. Masked tokens have advantage 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.algorithms.advantages.discounted import discounted_returns
from slime.algorithms.advantages.reward_kl import token_rewards
from slime.args import Arguments


def ppo(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards``, ``kl``, ``values`` and ``loss_masks``."""
    if rollout.get("values") is None:
        raise ValueError("--advantage-estimator ppo needs the values of a critic; none came with the rollout")
    advantages = []
    streams = zip(rollout["rewards"], rollout["kl"], rollout["values"], rollout["loss_masks"], strict=True)
    for reward, kl, values, mask in streams:
        kept = mask.bool()
        rewards = token_rewards(args, reward, kl, mask)
        advantage = torch.zeros_like(rewards)
        advantage[kept] = generalized_advantages(rewards[kept], values[kept].double(), args.gamma, args.lambd)
        advantages.append(advantage.float())
    return advantages


def generalized_advantages(rewards: Tensor, values: Tensor, gamma: float, lambd: float) -> Tensor:
    """Return ``A`` ``[T]`` of an episode of ``T`` actions with ``rewards`` and ``values`` ``[T]``, which ends after the last."""
    following = torch.cat([values[1:], values.new_zeros(min(1, len(values)))])
    return discounted_returns(rewards + gamma * following - values, gamma * lambd)
