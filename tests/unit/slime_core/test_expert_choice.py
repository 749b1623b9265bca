"""Whose experts a router gets: its own, the recorded ones of its micro-batch, also when a layer is computed again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from slime.backends.megatron_utils.expert_choice import ExpertChoice, Mode
from slime.backends.megatron_utils.routing_replay import _check_distinct, packed_rows
from slime.rollout.routed_experts import OWN_CHOICE

SCORES = torch.tensor([[0.1, 0.5, 0.2, 0.4], [0.9, 0.1, 0.8, 0.2]])
BEST = [[1, 3], [0, 2]]


def top(scores: Tensor, topk: int, num_groups: Any = None, group_topk: Any = None) -> tuple[Tensor, Tensor]:
    return torch.topk(scores, topk, dim=1)


def ask(choice: ExpertChoice, scores: Tensor = SCORES) -> tuple[Tensor, Tensor]:
    return choice.get_replay_topk(scores, 2, None, None, top)


def test_a_router_chooses_and_may_record() -> None:
    choice = ExpertChoice()
    assert ask(choice)[1].tolist() == BEST
    assert choice.chosen is None
    choice.start(Mode.RECORD)
    assert ask(choice)[1].tolist() == BEST
    assert choice.chosen is not None
    assert choice.chosen.tolist() == BEST


def test_recorded_experts_have_the_routers_scores_and_their_gradient() -> None:
    choice, scores = ExpertChoice(), SCORES.clone().requires_grad_()
    choice.start(Mode.REPLAY)
    choice.experts = torch.tensor([[2, 0], [OWN_CHOICE, OWN_CHOICE]])
    values, experts = ask(choice, scores)
    assert experts.tolist() == [[2, 0], BEST[1]]
    assert values.tolist() == scores.gather(1, experts).tolist()
    values.sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[1, 0, 1, 0], [1, 0, 1, 0]]


@pytest.mark.parametrize("recomputed", [True, False])
def test_a_layer_that_runs_again_gets_the_experts_of_its_micro_batch(recomputed: bool) -> None:
    choice = ExpertChoice()
    choice.start(Mode.REPLAY_AND_REPEAT)
    seen: list[list[list[int]]] = []

    def layer(scores: Tensor) -> Tensor:
        values, experts = ask(choice, scores)
        seen.append(experts.tolist())
        return values.sum()

    recorded = [torch.tensor([[0, number], [number, 0]]) for number in (1, 2, 3)]
    outputs: list[Tensor] = []
    inputs = [SCORES.clone().requires_grad_() for _ in recorded]
    order = [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)]
    for what, number in order:  # of a pipeline: later micro-batches go forward before earlier ones go back
        if what == "forward":
            choice.experts = recorded[number]
            with torch.set_grad_enabled(not recomputed):  # as checkpointing does
                outputs.append(layer(inputs[number]))
            choice.experts = None
        else:
            (layer(inputs[number]) if recomputed else outputs[number]).backward()
    expected = order if recomputed else [step for step in order if step[0] == "forward"]
    assert seen == [recorded[number].tolist() for _, number in expected]
    for number, one in enumerate(inputs):
        assert one.grad is not None
        assert one.grad.tolist() == torch.zeros(2, 4).scatter(1, recorded[number], 1.0).tolist()


def test_nothing_but_records_is_replayed() -> None:
    choice = ExpertChoice()
    choice.start(Mode.REPLAY_AND_REPEAT)
    with pytest.raises(RuntimeError, match="outside of the micro-batches"):
        ask(choice)
    choice.experts = torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"experts \(3, 2\) are recorded for 2 tokens with 2 each"):
        ask(choice)
    with torch.no_grad():
        choice.experts = torch.tensor(BEST)
        ask(choice)
    choice.start(Mode.REPLAY)  # forgets what a step that failed left
    choice.experts = torch.tensor([[2, 0], [1, 3]])
    assert ask(choice)[1].tolist() == [[2, 0], [1, 3]]


def test_the_rows_of_a_pack() -> None:
    first, second = (torch.arange(n * 3 * 2, dtype=torch.int16).reshape(n, 3, 2) for n in (2, 1))
    rows = packed_rows([first, second], [3, 2], [0, 2], 2)
    none = torch.full((2, 2), OWN_CHOICE)
    expected = [first[0, [0, 2]], first[1, [0, 2]], none, second[0, [0, 2]], none, none]
    assert rows.tolist() == [row.tolist() for row in expected]
    assert packed_rows([], [2], [1], 2).tolist() == [[[OWN_CHOICE] * 2]] * 3


def test_an_expert_twice_is_no_choice_of_a_router() -> None:
    _check_distinct(torch.tensor([[[3, 1], [OWN_CHOICE, OWN_CHOICE]]]))
    with pytest.raises(ValueError, match=r"1 tokens have an expert twice, the first is \[0, 0\]"):
        _check_distinct(torch.tensor([[[3, 1], [0, 0]]]))
