"""Partial rollout: an aborted group goes back to the data source and goes on exactly where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testkit.rollout_engine import PROMPT, RolloutEngine, prompt_source, rollout_args, rollout_engine
from slime.args import Arguments
from slime.contract.engine import logprob_of
from slime.rollout import sglang_rollout
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.fully_async_rollout import generate_rollout_fully_async, stop
from slime.rollout.metrics import flatten
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.types import Sample

REPLY = [5, 9, 2, 8, 4, 4, 7]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, args: Arguments) -> Iterator[RolloutEngine]:
    with rollout_engine(monkeypatch, REPLY) as engine:
        engine.prompt_tokens = len(GenerateState(args).tokenizer.encode(PROMPT, add_special_tokens=False))
        yield engine


@pytest.fixture
def args(tiny_random_model: Path) -> Arguments:
    return rollout_args(tiny_random_model, partial_rollout=True, over_sampling_batch_size=4)


@pytest.fixture
def source(args: Arguments, tmp_path: Path) -> RolloutDataSourceWithBuffer:
    return prompt_source(args, tmp_path)


@given(cuts=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6), mask=st.booleans())
@settings(max_examples=40)
def test_whatever_cuts_it_a_response_is_exact(
    engine: RolloutEngine, args: Arguments, cuts: list[tuple[int, bool]], mask: bool
) -> None:
    args.mask_offpolicy_in_partial_rollout = mask
    state = GenerateState(args)
    state.aborted = True  # every request that is cut comes back
    sample = Sample(prompt=PROMPT)
    version, sampled = 1, []
    engine.version = "1"

    async def attempt() -> None:
        before = sample.response_length
        await sglang_rollout.generate(args, sample, {"max_new_tokens": len(REPLY)})
        sampled.extend([str(version)] * (sample.response_length - before))

    for count, update in cuts:
        if sample.status == Sample.Status.COMPLETED or sample.response_length == len(REPLY):
            break
        engine.cut = [count]
        asyncio.run(attempt())
        if update:
            version += 1
            engine.version = str(version)
    engine.cut = []
    if sample.response_length < len(REPLY):
        asyncio.run(attempt())
    assert sample.tokens[-len(REPLY) :] == REPLY
    assert sample.rollout_log_probs == [logprob_of(position, token) for position, token in enumerate(REPLY)]
    assert [v for v, start, end in sample.weight_spans for _ in range(start, end)] == sampled
    expected = [int(not mask or version == sampled[-1]) for version in sampled]
    assert sample.loss_mask == expected
    sample.validate()


def test_aborted_groups_go_on_in_the_next_rollout(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    engine.holds = lambda number: number in (4, 5, 7)  # group 2 whole, of group 3 one sample
    engine.held_tokens = 3
    first = sglang_rollout.generate_rollout(args, 0, source)
    assert [group[0].group_index for group in first.samples] == [0, 1]  # type: ignore[union-attr]
    assert [group[0].group_index for group in source.buffer] == [2, 3]
    assert [sample.status.value for sample in flatten(source.buffer)] == ["aborted", "aborted", "completed", "aborted"]
    assert {sample.metadata["start_rollout_id"] for sample in flatten(source.buffer)} == {0}

    source.mark(0)
    source.save(0)
    resumed = RolloutDataSourceWithBuffer(source.args)
    resumed.load(0)
    engine.holds = lambda number: False
    engine.version = "5"
    asked = len(engine.requests)
    args.over_sampling_batch_size = 2
    second = sglang_rollout.generate_rollout(args, 1, resumed)
    samples = flatten(second.samples)  # type: ignore[union-attr]
    assert [sample.group_index for sample in samples] == [2, 2, 3, 3]
    assert len(engine.requests) - asked == 3  # the finished sample is not asked for again
    for sample in samples:
        assert sample.tokens[-len(REPLY) :] == REPLY
        assert sample.rollout_log_probs == [logprob_of(n, token) for n, token in enumerate(REPLY)]
        assert sample.metadata["start_rollout_id"] == 0
        assert sample.reward == 0.5
    assert samples[0].weight_spans == [["4", 0, 3], ["5", 3, 7]]
    assert samples[2].weight_spans == [["4", 0, 7]]
    assert resumed.get_samples(1)[0][0].group_index == 4


def test_what_a_plugin_had_made_of_an_aborted_sample_starts_anew(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    args.custom_generate_function_path = "lab.testkit.rollout_plugins.fan_out_until_aborted"
    engine.holds = lambda number: number >= 4
    sglang_rollout.generate_rollout(args, 0, source)
    assert [(sample.index, sample.response_length) for sample in flatten(source.buffer)] == [
        (4, 0),
        (5, 0),
        (6, 0),
        (7, 0),
    ]
    assert all(isinstance(member, Sample) for group in source.buffer for member in group)


def test_spans_of_an_update_in_the_middle_of_a_request(engine: RolloutEngine, args: Arguments) -> None:
    args.mask_offpolicy_in_partial_rollout = True
    engine.spans = [{"version": "4", "start": 0, "end": 2}, {"version": "5", "start": 2, "end": 7}]
    sample = asyncio.run(sglang_rollout.generate(args, Sample(prompt=PROMPT), {"max_new_tokens": 9}))
    assert sample.weight_versions == ["4", "5"]
    assert sample.loss_mask == [0, 0, 1, 1, 1, 1, 1]


def test_the_asynchronous_rollout_goes_on_with_what_a_partial_one_left(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    engine.holds = lambda number: number in (4, 5, 7)
    engine.held_tokens = 3
    sglang_rollout.generate_rollout(args, 0, source)
    source.mark(0)
    source.save(0)
    resumed = RolloutDataSourceWithBuffer(source.args)
    resumed.load(0)
    engine.holds = lambda number: False
    args.partial_rollout = False
    try:
        seen = []
        for rollout_id in (1, 2, 3):
            output = generate_rollout_fully_async(args, rollout_id, resumed)
            resumed.mark(rollout_id)
            seen += flatten(output.samples)  # type: ignore[union-attr]
    finally:
        stop()
    assert {sample.group_index for sample in seen} >= {2, 3}
    assert all(sample.tokens[-len(REPLY) :] == REPLY and sample.reward == 0.5 for sample in seen)
    assert len({sample.index for sample in seen}) == len(seen) == 12
