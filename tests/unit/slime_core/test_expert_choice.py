"""Whose experts a router gets: its own, the recorded ones of its micro-batch, also when a layer is computed again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.backends.megatron_utils.routing_replay import ExpertChoice, Mode, RoutingReplay, packed_rows
from slime.utils.types import OWN_CHOICE

SCORES = torch.tensor([[0.1, 0.5, 0.2, 0.4], [0.9, 0.1, 0.8, 0.2]])
BEST = [[1, 3], [0, 2]]


def top(scores: Tensor, topk: int, num_groups: Any = None, group_topk: Any = None) -> tuple[Tensor, Tensor]:
    return torch.topk(scores, topk, dim=1)


def ask(choice: ExpertChoice, scores: Tensor = SCORES) -> tuple[Tensor, Tensor]:
    return choice.get_replay_topk(scores, 2, None, None, top)


def test_a_router_chooses_and_may_record() -> None:
    choice = ExpertChoice()
    assert ask(choice)[1].tolist() == BEST
    choice.start(Mode.RECORD)
    choice.begin_forward()
    assert ask(choice)[1].tolist() == BEST
    assert choice.end_forward().tolist() == BEST


def test_recorded_experts_have_the_routers_scores_and_their_gradient() -> None:
    choice, scores = ExpertChoice(), SCORES.clone().requires_grad_()
    choice.start(Mode.REPLAY)
    choice.begin_forward(torch.tensor([[2, 0], [OWN_CHOICE, OWN_CHOICE]]))
    values, experts = ask(choice, scores)
    choice.end_forward()
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
            choice.begin_forward(recorded[number])
            with torch.set_grad_enabled(not recomputed):  # as checkpointing does
                outputs.append(layer(inputs[number]))
            choice.end_forward()
        else:
            (layer(inputs[number]) if recomputed else outputs[number]).backward()
    choice.finish()
    expected = order if recomputed else [step for step in order if step[0] == "forward"]
    assert seen == [recorded[number].tolist() for _, number in expected]
    for number, one in enumerate(inputs):
        assert one.grad is not None
        assert one.grad.tolist() == torch.zeros(2, 4).scatter(1, recorded[number], 1.0).tolist()


def test_nothing_but_records_is_replayed() -> None:
    choice = ExpertChoice()
    choice.start(Mode.REPLAY_AND_REPEAT)
    with pytest.raises(RuntimeError, match="outside the micro-batches"):
        ask(choice)
    choice.begin_forward(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=r"experts \(3, 2\) are recorded for 2 tokens with 2 each"):
        ask(choice)
    choice.begin_forward(torch.tensor(BEST))
    with torch.no_grad():
        ask(choice)
    choice.end_forward()
    with pytest.raises(RuntimeError, match="did not run again for 1 micro-batches"):
        choice.finish()
    choice.start(Mode.REPLAY)  # forgets what a step that failed left
    choice.finish()
    choice.begin_forward(torch.tensor([[2, 0], [1, 3]]))
    assert ask(choice)[1].tolist() == [[2, 0], [1, 3]]


def test_a_layer_without_checkpoint_does_not_take_the_experts_that_another_micro_batch_left_to_repeat() -> None:
    choice = ExpertChoice()
    choice.start(Mode.REPLAY_AND_REPEAT)
    first, second = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0, 2], [2, 0]])
    choice.begin_forward(first)
    with torch.no_grad():
        ask(choice)
    choice.end_forward()
    choice.begin_forward(second)
    assert torch.equal(ask(choice)[1], second)
    choice.end_forward()
    assert torch.equal(ask(choice)[1], first)
    choice.finish()


@pytest.mark.parametrize("mode", [Mode.RECORD, Mode.REPLAY])
def test_a_router_that_does_not_run_is_an_error(mode: Mode) -> None:
    choice = ExpertChoice()
    choice.start(mode)
    choice.begin_forward(torch.tensor(BEST))
    ask(choice)
    choice.end_forward()
    choice.begin_forward(torch.tensor(BEST))
    with pytest.raises(RuntimeError, match="did not run in the forward pass"):
        choice.end_forward()


@pytest.fixture
def replay() -> RoutingReplay:
    """Of one router without a model, with records of two micro-batches."""
    replay = object.__new__(RoutingReplay)
    replay._from_engines, replay._choices = False, [ExpertChoice()]
    batch: Any = SimpleNamespace(input_ids=torch.zeros(1, 2))
    with replay.recording() as around:
        for number, scores in enumerate((SCORES, -SCORES)):
            with around(number, [0], batch, 2):
                ask(replay._choices[0], scores)
    return replay


def test_a_step_replays_the_records_of_its_own_micro_batches(replay: RoutingReplay) -> None:
    (choice,) = replay._choices
    batch: Any = SimpleNamespace(input_ids=torch.zeros(1, 2))
    with replay.replaying(shard([[0]], [[1]]), 1) as around, around(0, [1], batch, 2):
        assert ask(choice)[1].tolist() == torch.topk(-SCORES, 2).indices.tolist()
    assert choice.mode is Mode.CHOOSE
    with pytest.raises(RuntimeError, match="1 of 1 micro-batches whose experts are recorded did not run"):
        with replay.replaying(shard([[0]], [[1]]), 0):
            pass
    assert choice.mode is Mode.CHOOSE


@pytest.mark.parametrize("steps", [([[0]],), ([[0]], [[1]], [[2]])])
@pytest.mark.parametrize("step", [None, 0])
def test_records_of_other_micro_batches_are_an_error(replay: RoutingReplay, steps: Any, step: int | None) -> None:
    with pytest.raises(RuntimeError, match=f"experts of 2 micro-batches are recorded, but {len(steps)} run"):
        with replay.replaying(shard(*steps), step):
            pass


def test_data_without_the_engines_experts_are_an_error_before_anything_runs(replay: RoutingReplay) -> None:
    replay._from_engines = True
    with pytest.raises(ValueError, match="--use-rollout-routing-replay needs rollout_routed_experts"):
        with replay.replaying(shard([[0]], [[1]]), None):
            pass


def shard(*micro_batches: list[list[int]]) -> Any:
    """A rollout of which each argument lists the micro-batches of a step."""
    return SimpleNamespace(micro_batches=list(micro_batches), experts=None)


def test_the_rows_of_a_pack() -> None:
    first, second = (torch.arange(n * 3 * 2, dtype=torch.int16).reshape(n, 3, 2) for n in (2, 1))
    rows = packed_rows([first, second], [3, 2], [0, 2], 2)
    none = torch.full((2, 2), OWN_CHOICE)
    expected = [first[0, [0, 2]], first[1, [0, 2]], none, second[0, [0, 2]], none, none]
    assert rows.tolist() == [row.tolist() for row in expected]
    assert packed_rows([], [2], [1], 2).tolist() == [[[OWN_CHOICE] * 2]] * 3
