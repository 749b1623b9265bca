"""What an engine must do through weight updates: one body for an engine on a CPU and one on a GPU.

The CPU's runs are in `tests/integration/test_engine_live.py`, those on a GPU in `tests/gpu/test_engine_gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.weight_receiver import local_handle
from groundwork.network import find_available_port
from lab.testkit.trainer import shards
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.trainer.micro_batch import RolloutShard
from tests.helpers.engine_streams import Stream, Tolerance, errors, prompts, stream, wait_for_some, within

STREAMS = 8
VERSIONS = ("1", "2", "3", "4")


def check_streams_through_updates(
    engine: SGLangEngine, update: Callable[[str], None], references: list[Any], tolerance: Tolerance, *, new_tokens: int
) -> torch.Tensor:
    """Stream eight requests, call ``update`` with each of `VERSIONS` meanwhile, and return all tokens' errors.

    Every token must be that of the version it names; the last version is even, whose weights ``references[0]`` has.
    """
    results = [Stream(prompt) for prompt in prompts(STREAMS)]
    with ThreadPoolExecutor(len(results)) as pool:
        done = [pool.submit(stream, engine.url(), result.prompt, new_tokens, result) for result in results]
        for version in VERSIONS:
            for result, running in zip(results, done, strict=True):
                wait_for_some(result, running)
                result.some.clear()
            update(version)
            assert engine.get_weight_version() == version
        finished = [future.result() for future in done]
    for result in finished:
        assert len(result.ids) == new_tokens
        ends = [span["end"] for span in result.spans]
        assert [span["start"] for span in result.spans] == [0, *ends[:-1]], "a token has no version, or two"
        assert ends[-1] == new_tokens
        known = [-1 if span["version"] == "default" else int(span["version"]) for span in result.spans[1:]]
        assert known == sorted(set(known)), "an older version came after a newer one"
    assert max(len(result.spans) for result in finished) >= 3
    found = torch.cat([errors(result, references) for result in finished])
    assert within(found, tolerance), f"{float(found.max())}, on average {float(found.mean())}"
    # The prefix cache holds nothing of the old weights.
    again = errors(stream(engine.url(), results[0].prompt, 10), references)
    assert within(again, tolerance), f"after the last update: {float(again.max())}"
    return found


@dataclass(frozen=True)
class Agreement:
    """Differences of log probabilities per token, in nats: engine to trainer before and after a push, and what the step moved."""

    before: torch.Tensor
    after: torch.Tensor
    moved: torch.Tensor


def check_the_trainer_agrees(engine: SGLangEngine, args: Arguments, tolerance: Tolerance) -> Agreement:
    """Sample, take an optimizer step on the samples, push, sample again; the trainer must score both as the engine did.

    ``args``: the trainer's, at the engine's temperature; the engine has version 1 afterwards.
    """
    actor = FSDPTrainActor(1, 0, "127.0.0.1", find_available_port())
    actor.init(args)
    try:
        actor.connect_rollout_engines([local_handle(engine)])
        assert actor.update_weights() == "0"
        first = sampled(engine)
        old = scored(actor, args, first)
        before = _differences(first, old)
        assert within(before, tolerance), f"before: {float(before.max())}, on average {float(before.mean())}"
        actor.train(0, shards(args, as_training_data(first), 1)[0])
        assert actor.update_weights() == "1"
        assert engine.get_weight_version() == "1"
        second = sampled(engine)
        assert all(span["version"] == "1" for result in second for span in result.spans)
        after = _differences(second, scored(actor, args, second))
        assert within(after, tolerance), f"after: {float(after.max())}, on average {float(after.mean())}"
        new = scored(actor, args, first)
        moved = torch.cat([(a - b).abs() for a, b in zip(new, old, strict=True)])
        return Agreement(before, after, moved)
    finally:
        actor.shutdown()


def sampled(engine: SGLangEngine, count: int = 4, new_tokens: int = 40) -> list[Stream]:
    """Return answers of ``new_tokens`` to ``count`` prompts, sampled at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda prompt: stream(engine.url(), prompt, new_tokens), prompts(count)))


def as_training_data(results: Sequence[Stream]) -> dict[str, Any]:
    """Return the streams as training data, rewarded by turns."""
    return {
        "tokens": [result.prompt + result.ids for result in results],
        "total_lengths": [len(result.prompt) + len(result.ids) for result in results],
        "response_lengths": [len(result.ids) for result in results],
        "loss_masks": [[1] * len(result.ids) for result in results],
        "rewards": [1.0 if number % 2 else -1.0 for number in range(len(results))],
        "rollout_log_probs": [result.logprobs for result in results],
    }


def scored(actor: FSDPTrainActor, args: Arguments, results: Sequence[Stream]) -> list[torch.Tensor]:
    """Return the trainer's log probabilities of each stream's tokens."""
    shard = RolloutShard(shards(args, as_training_data(results), 1)[0])
    values = dict(zip(shard.partition, actor.backend.policy_pass(shard)[0], strict=True))
    return [values[position] for position in range(len(results))]


def _differences(results: Sequence[Stream], values: Sequence[torch.Tensor]) -> torch.Tensor:
    pairs = zip(results, values, strict=True)
    return torch.cat([(torch.tensor(result.logprobs) - value.float().cpu()).abs() for result, value in pairs])
