"""Turns of an agent that are merged train as one sample per turn would: the same tokens, the same gradient, fewer tokens read.

Two episodes of ten turns, of one group. Their samples go the way of a run's samples: `convert`, `split_by_dp`, and a step of
the FSDP trainer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from groundwork.network import find_available_port
from lab.testkit import trainer
from slime.backends.fsdp_utils import backend
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.rollout.segments import SampledTurn, Segment, alone, merge
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.types import Sample
from tests.helpers import trainer_ranks

TURNS = 10
REWARDS = (1.0, 0.0)
REPLIES = ((6, 8), (1, 3))
"""Lengths of the replies of an episode: from, to."""
VOCABULARY = 600
TOLERANCE = 1e-5
"""Of any element of a gradient, as a share of the largest element of all gradients."""
GROUP: dict[str, Any] = {
    "dynamic_history": True,
    "n_samples_per_prompt": len(REWARDS),
    "use_rollout_logprobs": True,
    "max_tokens_per_gpu": 512,
    "clip_grad": 1e9,
}


def episode(number: int) -> list[SampledTurn]:
    """Return turns whose prompts extend each other."""
    chance = random.Random(number)

    def some(least: int, most: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(chance.randint(least, most))]

    turns, prompt = list[SampledTurn](), some(20, 30)
    for version in range(TURNS):
        reply = some(*REPLIES[number])
        log_probs = [-6.4 + chance.uniform(-0.1, 0.1) for _ in reply]
        turns.append(SampledTurn(list(prompt), reply, log_probs, [(str(version), 0, len(reply))]))
        prompt += [*reply, *some(5, 10)]
    return turns


def samples(segments: Sequence[Sequence[Segment]]) -> list[Sample]:
    """Return the samples of a group of episodes; each episode is one rollout."""
    made = list[Sample]()
    for number, episode_segments in enumerate(segments):
        for segment in episode_segments:
            made.append(segment.sample(group_index=0, index=number, rollout_id=number, reward=REWARDS[number]))
    return made


def trained(data: dict[str, Any]) -> Counter[tuple[int, int, float]]:
    """Return each trained token: its position in the sequence, its id, its log-probability when it was sampled."""
    found = Counter[tuple[int, int, float]]()
    for tokens, mask, log_probs in zip(data["tokens"], data["loss_masks"], data["rollout_log_probs"], strict=True):
        start = len(tokens) - len(mask)
        found.update(
            (start + place, tokens[start + place], log_probs[place]) for place, trains in enumerate(mask) if trains
        )
    return found


@pytest.fixture(scope="module")
def actor(tiny_random_model: Path) -> Iterator[FSDPTrainActor]:
    """A trainer whose weights stay as they are: its learning rate is 0."""
    args = trainer.trainer_args(tiny_random_model, lr=0.0, weight_decay=0.0, **GROUP)
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    yield actor
    actor.shutdown()


def gradients(
    actor: FSDPTrainActor, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Train one step on all samples; return its metrics and the gradient of each parameter."""
    captured, original = dict[str, Tensor](), backend.apply_gradients

    def capture(*given: Any, **hold: Any) -> Any:
        captured.update(trainer_ranks.full_parameters(actor, lambda parameter: parameter.grad))
        return original(*given, **hold)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "apply_gradients", capture)
        metrics = actor.train(0, split_by_dp(data, 1, actor.args)[0])
    return metrics, captured


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference of an element, as a share of the largest element."""
    assert one
    assert one.keys() == other.keys()
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    assert largest > 0
    return max(float((one[name] - other[name]).abs().max()) for name in one) / largest


def test_merged_turns_train_like_a_sample_per_turn(actor: FSDPTrainActor, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [episode(number) for number in range(len(REWARDS))]
    merged = convert(actor.args, samples([merge(turns) for turns in episodes]))
    per_turn = convert(actor.args, samples([alone(turns) for turns in episodes]))
    assert (len(merged["tokens"]), len(per_turn["tokens"])) == (len(REWARDS), len(REWARDS) * TURNS)
    assert sum(merged["total_lengths"]) <= sum(per_turn["total_lengths"]) / 3
    assert trained(merged) == trained(per_turn)
    assert trained(merged).total() == sum(len(turn.response_ids) for turns in episodes for turn in turns)
    assert len(set(merged["rewards"])) == 2  # otherwise there is nothing to learn, and every gradient is 0

    (said, gradient), (said_per_turn, gradient_per_turn) = (
        gradients(actor, data, monkeypatch) for data in (merged, per_turn)
    )
    assert difference(gradient, gradient_per_turn) <= TOLERANCE
    assert said["train/loss"] == pytest.approx(said_per_turn["train/loss"], rel=TOLERANCE, abs=1e-7)


def test_a_denominator_per_turn_would_be_another_gradient(
    actor: FSDPTrainActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above can fail: a sample that is a rollout of its own weighs its tokens in another way."""
    episodes = [episode(number) for number in range(len(REWARDS))]
    merged = convert(actor.args, samples([merge(turns) for turns in episodes]))
    lone = convert(actor.args, samples([alone(turns) for turns in episodes]))
    lone["rollout_mask_sums"] = [sum(mask) * TURNS for mask in lone["loss_masks"]]
    _, gradient = gradients(actor, merged, monkeypatch)
    _, other = gradients(actor, lone, monkeypatch)
    assert difference(gradient, other) > 100 * TOLERANCE
