"""A checkpoint before the first step holds the moments that this step starts from, whichever optimizer is inside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from slime.backends.megatron_utils.state import start_moments


class Fused(torch.optim.SGD):
    """As Transformer Engine's AdamW: none of torch's, with a step for all parameters beside the moments."""


def init_state(optimizer: torch.optim.Optimizer, config: Any) -> None:
    """As Megatron-core's for that optimizer."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}


def test_every_optimizer_gets_what_its_first_step_starts_from() -> None:
    adam, fused, moved = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    parts = [
        SimpleNamespace(optimizer=torch.optim.AdamW([adam]), init_state_fn=init_state, config=None),
        SimpleNamespace(optimizer=Fused([fused, moved]), init_state_fn=init_state, config=None),
        SimpleNamespace(optimizer=Fused([moved]), init_state_fn=None, config=None),
        SimpleNamespace(optimizer=None, init_state_fn=None, config=None),
    ]
    parts[1].optimizer.state[moved] = {"exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    start_moments(SimpleNamespace(chained_optimizers=parts))
    assert set(parts[0].optimizer.state[adam]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(parts[1].optimizer.state[fused]) == {"exp_avg", "exp_avg_sq"}
    assert parts[1].optimizer.state[moved]["exp_avg"].all(), "what steps have made stays"
    assert not parts[2].optimizer.state


def test_a_first_step_of_adamw_is_the_same_with_and_without() -> None:
    ends = []
    for prepared in (False, True):
        parameter = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 5))
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        if prepared:
            start_moments(SimpleNamespace(optimizer=optimizer))
        for _ in range(2):
            parameter.grad = parameter.detach() ** 2
            optimizer.step()
        ends.append(parameter.detach())
    assert torch.equal(*ends)
