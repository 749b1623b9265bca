"""The asynchronous rollout: no prompt is lost or trained twice, nothing runs away, nothing is left running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testkit.rollout_engine import RolloutEngine, prompt_source, rollout_args, rollout_engine
from slime.args import Arguments
from slime.rollout import fully_async_rollout
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.fully_async_rollout import generate_rollout_fully_async, stop
from slime.rollout.metrics import flatten

PLUGINS = "lab.testkit.rollout_plugins"
LIMIT = 5


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutEngine]:
    with rollout_engine(monkeypatch) as engine:
        yield engine
        stop()
        assert engine.running == 0


@pytest.fixture
def args(tiny_random_model: Path) -> Arguments:
    return rollout_args(tiny_random_model, over_sampling_batch_size=LIMIT)


@pytest.fixture
def source(args: Arguments, tmp_path: Path) -> RolloutDataSourceWithBuffer:
    return prompt_source(args, tmp_path, n_samples_per_prompt=1)


def batch(args: Arguments, rollout_id: int, source: RolloutDataSourceWithBuffer) -> tuple[list[int], dict]:
    """Group numbers and metrics of a rollout."""
    output = generate_rollout_fully_async(args, rollout_id, source)
    assert isinstance(output, RolloutFnTrainOutput)
    source.mark(rollout_id)
    return [sample.group_index or 0 for sample in flatten(output.samples)], output.metrics or {}


def test_what_is_left_over_stays_for_the_next_rollout(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    seen = []
    for rollout_id in range(6):
        numbers, metrics = batch(args, rollout_id, source)
        assert len(numbers) == args.rollout_batch_size
        seen += numbers
        assert source.sample_group_index <= len(seen) + LIMIT
        assert metrics["rollout/queued_groups"] + metrics["rollout/groups_under_way"] <= LIMIT
    assert sorted(seen) == list(range(len(seen)))
    stop()
    assert sorted(group[0].group_index or 0 for group in source.buffer) == list(
        range(len(seen), source.sample_group_index)
    )


@given(
    turns=st.lists(st.integers(0, 6), min_size=8, max_size=8),
    stops=st.lists(st.sampled_from(["go on", "crash", "stop"]), min_size=6, max_size=6),
)
@settings(max_examples=15)
def test_every_prompt_is_trained_once_whatever_ends_the_worker(
    engine: RolloutEngine, args: Arguments, tmp_path: Path, turns: list[int], stops: list[str]
) -> None:
    engine.turns = lambda number: turns[number % len(turns)]
    source = prompt_source(args, tmp_path, n_samples_per_prompt=1)
    seen: list[int] = []
    for rollout_id, end in enumerate(stops):
        seen += batch(args, rollout_id, source)[0]
        if end == "crash":  # a checkpoint, and a new process that goes on from it
            source.save(rollout_id)
            stop()
            source = prompt_source(args, tmp_path, n_samples_per_prompt=1)
            source.load(rollout_id)
        elif end == "stop":
            stop()
    stop()
    assert len(seen) == len(set(seen))
    left = [sample.group_index for sample in flatten(source.buffer)]
    assert sorted([*seen, *left]) == list(range(source.sample_group_index))


@pytest.mark.parametrize("mode", ["drop", "correct"])
def test_stale_groups_go_again_or_are_counted(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer, mode: str
) -> None:
    args.max_weight_staleness, args.stale_samples = 1, mode
    engine.holds = lambda number: number >= LIMIT + 2  # later ones wait until they are aborted
    assert batch(args, 0, source)[0] == [0, 1]
    engine.version, engine.holds = "7", lambda number: False
    numbers, metrics = batch(args, 1, source)
    dropped, corrected = metrics["rollout/dropped_stale_groups"], metrics["rollout/corrected_stale_groups"]
    if mode == "drop":
        assert (dropped >= 1, corrected) == (True, 0)
        output = generate_rollout_fully_async(args, 2, source)
        assert all(sample.weight_versions == ["7"] for sample in flatten(output.samples))  # type: ignore[union-attr]
    else:
        assert (dropped, corrected, numbers) == (0, 2, [2, 3])


class PlainSource:
    """A contributor's data source: the groups of another one, and none of the optional names."""

    def __init__(self, source: RolloutDataSourceWithBuffer) -> None:
        self.get_samples, self.add_samples = source.get_samples, source.add_samples


def test_a_source_that_cannot_save_groups_under_way_is_named_once(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    plain = PlainSource(source)
    for rollout_id in range(2):
        output = generate_rollout_fully_async(args, rollout_id, plain)
        assert len(output.samples) == args.rollout_batch_size  # type: ignore[union-attr]
    assert caplog.text.count("PlainSource has no attribute outstanding") == 1
    stop()
    caplog.clear()
    batch(args, 2, source)
    assert "outstanding" not in caplog.text


def test_a_group_that_was_aborted_goes_again(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    args.custom_generate_function_path, args.seen = f"{PLUGINS}.always_aborted", {}
    numbers, metrics = batch(args, 0, source)
    assert metrics["rollout/aborted_groups"] >= 2
    assert all(args.seen[number] == 2 for number in numbers)


def test_a_failing_plugin_fails_the_rollout(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    args.custom_rm_path = f"{PLUGINS}.failing_reward"
    with pytest.raises(RuntimeError, match="the grader is away"):
        generate_rollout_fully_async(args, 0, source)


def test_a_filter_drops_and_counts(engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer) -> None:
    args.dynamic_sampling_filter_path = f"{PLUGINS}.keep_even"
    numbers, metrics = batch(args, 0, source)
    assert numbers == [0, 2]
    assert metrics["rollout/dynamic_filter/drop_filter"] >= 1


def test_stopping_gives_everything_back_and_ends_who_waits(
    engine: RolloutEngine, args: Arguments, source: RolloutDataSourceWithBuffer
) -> None:
    args.partial_rollout = True
    engine.holds = lambda number: number >= 1
    caught: list[BaseException] = []

    def wait_for_a_batch() -> None:
        try:
            generate_rollout_fully_async(args, 0, source)
        except BaseException as error:  # noqa: BLE001  handed to the test
            caught.append(error)

    waiting = threading.Thread(target=wait_for_a_batch)
    waiting.start()
    while len(engine.requests) < LIMIT:
        waiting.join(0.01)
    generate_rollout_fully_async.dispose()  # type: ignore[attr-defined]  as the rollout manager does
    waiting.join(10)
    assert isinstance(caught[0], InterruptedError)
    assert fully_async_rollout._worker is None
    assert sorted(sample.group_index or 0 for sample in flatten(source.buffer)) == list(
        range(source.sample_group_index)
    )
    assert {sample.response_length for sample in flatten(source.buffer)} >= {1, 3}
