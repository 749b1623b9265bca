"""The plugins that the rollout manager calls itself: log functions, rewards, conversion, the length of an epoch."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.exceptions import EngineError, PluginError
from slime.ray import rollout
from slime.ray.placement import ReservedPlacement
from slime.ray.rollout import RolloutManager
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import DataSource, number_of_prompts
from slime.rollout.foreign_data_source import marks, with_optional_methods
from slime.rollout.rm_hub import async_rm, batched_async_rm
from slime.utils.types import Sample
from slime.weight_sync.remote_engine import RemoteEngine
from tests.helpers import recording_plugins
from tests.helpers.recording_plugins import CALLS
from tests.unit.ray.test_trajectories import arguments

PLUGINS = recording_plugins.__name__


def answered(args: Arguments, rollout_id: int, source: Any, evaluation: bool = False) -> Any:
    if evaluation:
        data = {"held_out": {"rewards": [0.0, 1.0], "truncated": [False, True]}}
        return RolloutFnEvalOutput(data=data, metrics={"eval/extra": 3.0})
    samples = [Sample(group_index=0, index=i, tokens=[1, 2, 3], response_length=2, reward=float(i)) for i in range(2)]
    return RolloutFnTrainOutput(samples=[samples], metrics={"rollout/extra": 1.0})


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> RolloutManager:
    CALLS.clear()
    monkeypatch.setattr(rollout.ray, "put", lambda shard: shard)
    args = arguments(
        load_debug_rollout_data=None,
        save_debug_rollout_data=None,
        rollout_num_gpus=1,
        reward_key=None,
        rewards_normalization=False,
        eval_function_path=None,
        rollout_function_path=f"{__name__}.answered",
        data_source_path=f"{__name__}.Plain",
        use_fault_tolerance=False,
    )
    args.skip_default_logging = False
    return RolloutManager(args, ReservedPlacement(Placement((0,), (), ()), None, ()))


def test_a_log_function_adds_to_the_default_logging_or_replaces_it(manager: RolloutManager) -> None:
    manager.args.custom_rollout_log_function_path = f"{PLUGINS}.log_rollout"
    metrics = manager.generate(5)["metrics"]
    assert CALLS == [("log_rollout", (5, 2, {"rollout/extra": 1.0}, True))]
    assert metrics["rollout/extra"] == 1.0
    assert metrics["rollout/raw_reward"] == 0.5
    manager.args.skip_default_logging = True
    assert set(manager.generate(6)["metrics"]) == {"perf/rollout_time"}


def test_an_evaluation_log_function_does_too(manager: RolloutManager) -> None:
    manager.args.custom_eval_rollout_log_function_path = f"{PLUGINS}.log_eval"
    metrics = manager.eval(5)
    assert (metrics["eval/extra"], metrics["eval/held_out"], metrics["eval/held_out-truncated_ratio"]) == (
        3.0,
        0.5,
        0.5,
    )
    assert CALLS == [("log_eval", (5, ["held_out"], {"eval/extra": 3.0}))]
    manager.args.skip_default_logging = True
    assert manager.eval(6) == {}


def test_after_a_broken_push_to_one_engine_only_that_one_is_held(
    manager: RolloutManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, str]] = []

    def handle(index: int) -> RemoteEngine:
        def refused() -> Any:
            calls.append((index, "hold"))
            future: Future[None] = Future()
            future.set_exception(EngineError("refused"))
            return SimpleNamespace(future=lambda: future)

        def killed() -> Any:
            calls.append((index, "kill"))
            future: Future[None] = Future()
            future.set_result(None)
            return SimpleNamespace(future=lambda: future)

        hold, kill = SimpleNamespace(remote=refused), SimpleNamespace(remote=killed)
        return RemoteEngine(SimpleNamespace(hold_after_failed_update=hold, kill=kill))

    monkeypatch.setattr(manager.engines, "handles", lambda: [handle(0), handle(1)])
    manager.hold_engines()
    assert calls == [(0, "hold"), (1, "hold"), (0, "kill"), (1, "kill")]
    calls.clear()
    manager.hold_engines(True)
    assert calls == [(1, "hold"), (1, "kill")]


def test_rewards_are_post_processed(manager: RolloutManager) -> None:
    manager.args.custom_reward_post_process_path = f"{PLUGINS}.halve_rewards"
    [shard] = manager.generate(0)["shards"]
    assert (sorted(shard["rewards"]), sorted(shard["raw_reward"])) == ([0.0, 0.5], [0.0, 1.0])
    assert CALLS == [("halve_rewards", 2)]


def test_samples_are_converted_by_a_plugin(manager: RolloutManager) -> None:
    manager.args.custom_convert_samples_to_train_data_path = f"{PLUGINS}.convert_twice_as_good"
    [shard] = manager.generate(0)["shards"]
    assert sorted(shard["rewards"]) == [0.0, 2.0]
    assert shard["total_lengths"] == [3, 3]
    assert CALLS == [("convert", 2)]


def test_an_evaluation_is_no_batch(manager: RolloutManager) -> None:
    manager._batches._generate = lambda *values, evaluation: RolloutFnEvalOutput(data={})
    with pytest.raises(PluginError, match="returned an evaluation; return samples instead"):
        manager.generate(0)


def test_a_source_that_saves_what_is_under_way_is_told_of_once(
    manager: RolloutManager, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[int] = []
    manager._source_hooks = with_optional_methods(SimpleNamespace(save=saved.append))
    manager.generate(4)
    manager.save(4)  # as train.py does it: nothing was taken since
    assert not caplog.messages
    for rollout_id in (5, 6, 7):
        manager.generate(rollout_id)
        manager.save(rollout_id - 1)
    assert saved == [4, 4, 5, 6]
    [message] = caplog.messages
    assert "no mark(rollout_id)" in message
    assert "position for rollout 4 may include prompts of rollout 5" in message
    marking = SimpleNamespace(save=saved.append, mark=lambda rollout_id: None)
    manager._told_of_mark, manager._source_hooks = False, with_optional_methods(marking)
    manager.save(6)
    assert len(caplog.messages) == 1


class Plain:
    """A data source of another family, with two of the optional methods."""

    def __init__(self, args: Arguments | None = None) -> None:
        self.heard: list[Any] = []

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        return [[Sample(index=index)] for index in range(num_samples)]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        self.heard.append(len(samples))

    def save(self, rollout_id: int) -> None:
        self.heard.append(("save", rollout_id))

    def load(self, rollout_id: int | None = None) -> None:
        self.heard.append(("load", rollout_id))

    def mark(self, rollout_id: int) -> None:
        self.heard.append(("mark", rollout_id))

    def dispose(self) -> None:
        self.heard.append("dispose")


def test_a_foreign_data_source_gets_the_optional_methods_it_lacks(manager: RolloutManager) -> None:
    plain = manager._data_source
    assert marks(manager._source_hooks)
    given: list[Any] = []

    def generate(args: Arguments, rollout_id: int, source: Any, evaluation: bool = False) -> Any:
        given.append(source)
        return answered(args, rollout_id, source, evaluation)

    manager._batches._generate = generate
    manager.generate(3)
    manager.on_weights_live(3, "4")
    manager.before_rollouts()
    manager.save(3)
    manager.load(3)
    manager._source_hooks.check()
    manager._source_hooks.add_samples(manager._source_hooks.get_samples(2))
    manager._source_hooks.dispose()
    assert given == [plain]
    assert plain.heard == [("mark", 3), ("save", 3), ("load", 3), 2, "dispose"]


def test_a_derived_data_source_is_called_directly() -> None:
    class Derived(Plain, DataSource):
        mark = DataSource.mark

    derived = Derived()
    assert with_optional_methods(derived) is derived
    assert not marks(derived)


def test_an_epoch_is_as_long_as_the_source_or_its_dataset(manager: RolloutManager) -> None:
    manager.args.rollout_batch_size = 2
    manager._data_source = SimpleNamespace(dataset=[1, 2, 3, 4, 5])
    assert manager.rollouts_per_epoch() == 2
    manager.args.rollout_batch_size = 6
    with pytest.raises(ConfigError, match="5 prompts do not fill a rollout of --rollout-batch-size 6"):
        manager.rollouts_per_epoch()
    assert number_of_prompts([1, 2, 3]) == 3
    with pytest.raises(ConfigError, match="use --num-rollout N"):
        number_of_prompts(object())


class LengthReward:
    """A reward class as guides have it."""

    def compute_reward(self, prompt: str, response: str) -> float:
        return float(len(response))


async def test_a_reward_class_scores_samples_and_lists() -> None:
    args = Arguments(custom_rm_path=f"{__name__}.LengthReward", rm_type=None)
    samples = [Sample(response="ab"), Sample(response="abc")]
    assert await async_rm(args, samples[0]) == 2.0
    assert await batched_async_rm(args, samples) == [2.0, 3.0]
    args.custom_rm_path = "lab.testkit.rewards.prefer_even_ids"
    own = Sample(response="abcd", custom_rm_path=f"{__name__}.LengthReward")
    other = Sample(tokens=[2, 4], response_length=2)
    assert await batched_async_rm(args, [own, other]) == [4.0, 1.0]
