"""What an engine must do through weight updates: one body for an engine on a CPU and one on a GPU.

The CPU's runs are in `tests/integration/test_engine_live.py`, those on a GPU in `tests/gpu/test_engine_gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.parity_parts.errors import Errors
from benchmarks.parity_parts.sides import Answer, exact_log_probs
from benchmarks.weight_receiver import local_handle
from groundwork.network import find_available_port
from lab.testkit.trainer import shards
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.backends.fsdp_utils.model import full_weights
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.trainer.micro_batch import RolloutShard
from tests.helpers.engine_streams import (
    Stream,
    Tolerance,
    checked,
    held_to_rounding,
    prompts,
    stream,
    wait_for_some,
    within,
)

STREAMS = 8
VERSIONS = ("1", "2", "3", "4")


def check_streams_through_updates(
    engine: SGLangEngine,
    update: Callable[[str], None],
    references: list[Any],
    tolerance: Tolerance | None,
    *,
    new_tokens: int,
    last_tokens: int = 10,
) -> torch.Tensor:
    """Stream eight requests, call ``update`` with each of `VERSIONS` meanwhile, and return all tokens' errors.

    Every token must be that of the version it names; the last version is even, whose weights ``references[0]`` has. ``tolerance``: see
    :func:`checked`.
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
    found = checked(finished, references, tolerance, "updates under streams")
    # The prefix cache holds nothing of the old weights.
    checked([stream(engine.url(), results[0].prompt, last_tokens)], references, tolerance, "after the last update")
    return found


@dataclass(frozen=True)
class Agreement:
    """Differences of log probabilities per token, in nats: engine to trainer before and after a push, and what the step moved."""

    before: torch.Tensor
    after: torch.Tensor
    moved: torch.Tensor


def check_the_trainer_agrees(
    engine: SGLangEngine, args: Arguments, tolerance: Tolerance | None, *, new_tokens: int = 40
) -> Agreement:
    """Sample, take an optimizer step on the samples, push, sample again; the trainer must score both as the engine did.

    ``args``: the trainer's, at the engine's temperature; the engine has version 1 afterwards. ``tolerance``: of the difference; None:
    both round to bfloat16, and the engine's distance from float32 must be rounding beside the trainer's.
    """
    actor = FSDPTrainActor(1, 0, "127.0.0.1", find_available_port())
    actor.init(args)
    try:
        actor.connect_rollout_engines([local_handle(engine)])
        assert actor.update_weights() == "0"
        first = sampled(engine, new_tokens)
        old = scored(actor, args, first)
        before = _checked(first, old, actor, args, tolerance, "before a push")
        actor.train(0, shards(args, as_training_data(first), 1)[0])
        assert actor.update_weights() == "1"
        assert engine.get_weight_version() == "1"
        second = sampled(engine, new_tokens)
        assert all(span["version"] == "1" for result in second for span in result.spans)
        after = _checked(second, scored(actor, args, second), actor, args, tolerance, "after a push")
        new = scored(actor, args, first)
        moved = torch.cat([(a - b).abs() for a, b in zip(new, old, strict=True)])
        return Agreement(before, after, moved)
    finally:
        actor.shutdown()


def sampled(engine: SGLangEngine, new_tokens: int, count: int = 4) -> list[Stream]:
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


def _checked(
    results: Sequence[Stream],
    values: Sequence[torch.Tensor],
    actor: FSDPTrainActor,
    args: Arguments,
    tolerance: Tolerance | None,
    what: str,
) -> torch.Tensor:
    """Return the differences of the engine's log probabilities from the trainer's ``values``, and hold them to ``tolerance``."""
    sampled = torch.cat([torch.tensor(result.logprobs) for result in results])
    trained = torch.cat([value.float().cpu() for value in values])
    found = (sampled - trained).abs()
    if tolerance is not None:
        assert within(found, tolerance), f"{what}: {Errors.of(found)}"
        return found
    pushed = dict(full_weights(actor.backend.model, dtype=torch.bfloat16, device=torch.device("cpu")))
    answers = [Answer(result.prompt, result.ids) for result in results]
    truth = exact_log_probs(args.hf_checkpoint, args.device, answers, pushed)
    held_to_rounding(sampled - truth, trained - truth, what)
    return found
