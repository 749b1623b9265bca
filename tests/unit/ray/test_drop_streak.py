"""Rollouts that get nowhere: dropped groups in a row draw warnings, and nothing but empty lists is an error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lab.testkit.rollout_engine import PROMPT, RolloutEngine, rollout_args
from slime.args import Arguments
from slime.exceptions import PluginError
from slime.rollout import fully_async_rollout, sglang_rollout
from slime.rollout.collection import MAX_EMPTY, MAX_EMPTY_BATCHES, WARN_BATCHES, Collection, DropStreak
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.utils.types import Sample

PLUGINS = "lab.testkit.rollout_plugins"
BATCH = 5


@pytest.fixture
def args(tiny_random_model: Path) -> Arguments:
    values = rollout_args(tiny_random_model)
    values.custom_generate_function_path = f"{PLUGINS}.nothing"
    return values


def streak() -> DropStreak:
    return DropStreak(
        Arguments(
            rollout_batch_size=BATCH,
            custom_generate_function_path="mine.generate",
            dynamic_sampling_filter_path="mine.keep",
        )
    )


def test_warnings_come_at_four_batches_and_at_each_doubling(caplog: pytest.LogCaptureFixture) -> None:
    drops = streak()
    for number in range(1, 101):
        drops.add("empty" if number % 10 == 0 else "zero_std", kept=3)
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in texts] == ["20", "40", "80"]
    assert texts[0].startswith("20 groups in a row were dropped (zero_std 18, empty 2), 3 of 5 are kept; loosen")
    assert "--dynamic-sampling-filter-path mine.keep" in texts[0]
    assert "--rollout-temperature" in texts[0]


def test_a_kept_group_ends_the_streak(caplog: pytest.LogCaptureFixture) -> None:
    drops = streak()
    for number in range(1, 400):
        drops.add("empty", kept=0)
        if number % (WARN_BATCHES * BATCH - 1) == 0:
            drops.end()
    assert not caplog.records


def test_nothing_but_empty_lists_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    drops = streak()
    most = max(MAX_EMPTY, MAX_EMPTY_BATCHES * BATCH)
    for _ in range(most - 1):
        drops.add("empty", kept=0)
    assert "check --custom-generate-function-path mine.generate" in caplog.records[0].getMessage()
    with pytest.raises(
        PluginError, match=f"mine.generate returned no sample, or .* for {most} groups in a row; return at"
    ):
        drops.add("empty", kept=0)


def test_a_filter_alone_never_ends_a_run() -> None:
    drops = streak()
    for _ in range(100 * MAX_EMPTY):
        drops.add("zero_std", kept=0)


def test_kept_and_spare_groups_end_it_in_a_collection(caplog: pytest.LogCaptureFixture) -> None:
    args = Arguments(rollout_batch_size=1, dynamic_sampling_filter_path=f"{PLUGINS}.keep_first_spare_odd")
    collection = Collection(args)
    for index in (2, 4, 6, 1, 2, 4, 6, 0, 2, 4, 6):  # even: dropped, odd: spare, 0: kept
        collection.add([Sample(index=index)])
    assert not caplog.records
    collection.add([Sample(index=8)])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_the_default_rollout_ends_with_the_error(engine: RolloutEngine, args: Arguments) -> None:
    groups = iter([Sample(index=number, group_index=number, prompt=PROMPT)] for number in range(10_000))
    with pytest.raises(PluginError, match=r"returned no sample, or .* for 64 groups in a row"):
        await sglang_rollout.generate_rollout_async(args, 0, lambda count: [next(groups) for _ in range(count)])


def test_so_does_the_asynchronous_one(engine: RolloutEngine, args: Arguments, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f'{{"prompt": "{PROMPT}"}}\n' * 3)
    args.prompt_data, args.input_key, args.rollout_global_dataset = str(prompts), "prompt", True
    try:
        with pytest.raises(PluginError, match=r"returned no sample, or .* for 64 groups in a row"):
            fully_async_rollout.generate_rollout_fully_async(args, 0, RolloutDataSourceWithBuffer(args))
    finally:
        fully_async_rollout.stop()
