"""The rollout manager: the actor that owns the engines, the data source and the rollout function.

Guarantees: ``generate`` blocks only its own caller, so ``save``, ``on_weights_live`` and ``recover_engines`` run
meanwhile. Everything that the manager started ends with it. It writes the engines' addresses into its copy of ``args``, where
plugins read them. `slime.ray.processes` is the driver's view.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import ray

from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder
from groundwork.start_timeline import MANAGER, Step, mark
from slime.args import READ, Arguments, required
from slime.arguments.placement import Placement, data_parallel_size
from slime.exceptions import PluginError
from slime.observability.metric_utils import compute_rollout_step
from slime.ray.engine_group import engine_groups
from slime.ray.engine_pool import EnginePool
from slime.ray.placement import ReservedPlacement
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput, call_rollout_fn
from slime.rollout.before_push import Decision
from slime.rollout.custom_conversion import convert_with
from slime.rollout.data_source import Story, number_of_prompts
from slime.rollout.evaluation import PROGRESS
from slime.rollout.foreign_data_source import marks, with_optional_methods
from slime.rollout.metrics import eval_metrics, field_means, flatten, oldest_versions, rollout_metrics
from slime.rollout.reward_plugin import load_reward_function
from slime.rollout.train_data import TrainData, convert, split_by_dp
from slime.utils.data_files import load_data, save_data
from slime.utils.http_utils import init_http_client
from slime.utils.misc import group_by, load_function
from slime.utils.types import Sample
from slime.weight_sync.remote_engine import EngineLife, RemoteEngine

__all__ = ["RolloutBatch", "RolloutManager", "compute_rollout_step"]

logger = logging.getLogger(__name__)


class RolloutBatch(TypedDict):
    """Result of ``generate``: one object reference per policy rank and per critic rank, and metrics.

    Attributes:
        person: see `RolloutFnTrainOutput`; missing: several people's.
        passes: how often the steps on the shards are repeated; missing: not at all.
    """

    shards: list[Any]
    critic_shards: list[Any]
    metrics: dict[str, Any]
    person: NotRequired[str | None]
    passes: NotRequired[int]


class BatchMaker:
    """Makes batches and evaluations of what the rollout functions return. Owned by the rollout manager."""

    def __init__(self, args: Arguments, placement: Placement) -> None:
        self._args = args
        self._dp_size = max(1, data_parallel_size(args, len(placement.actor)))
        self._critic_size = data_parallel_size(args, len(placement.critic))
        self._generate = load_function(args.rollout_function_path)
        self._evaluate = load_function(args.eval_function_path or args.rollout_function_path)
        if args.custom_rm_path:
            load_reward_function(args.custom_rm_path, args)  # report its problems before the first reply

    def generate(self, rollout_id: int, source: object, mark: Callable[[int], None]) -> RolloutBatch:
        """Run the rollout function on ``source`` and return its samples, one shard per training rank.

        ``mark`` is called once all samples are there.
        """
        start = time.monotonic()
        if self._args.load_debug_rollout_data:
            output = self._load_debug_rollout(rollout_id)
        else:
            output = call_rollout_fn(self._generate, self._args, rollout_id, source, evaluation=False)
            if isinstance(output, RolloutFnEvalOutput):
                raise PluginError(f"{self._args.rollout_function_path} returned an evaluation; return samples instead")
            mark(rollout_id)
        samples, extra = flatten(output.samples), output.metrics or {}
        if not samples:
            raise ValueError(f"{self._args.rollout_function_path} returned no samples for rollout {rollout_id}")
        self._save_debug_rollout(rollout_id, samples, output)
        seconds = time.monotonic() - start
        train_data = self._train_data(samples)
        metrics = {
            **rollout_metrics(self._args, samples, seconds),
            **field_means(train_data),
            **oldest_versions(samples),
            **extra,
        }
        custom_log = self._args.custom_rollout_log_function_path
        if custom_log and load_function(custom_log)(rollout_id, self._args, samples, extra, seconds):
            metrics = {"perf/rollout_time": seconds}
        shards, critic_shards = self._shards(train_data, whole=output.passes is not None)
        return {
            "shards": shards,
            "critic_shards": critic_shards,
            "metrics": metrics,
            "person": output.person,
            "passes": output.passes or 1,
        }

    def _train_data(self, samples: list[Sample]) -> TrainData:
        custom_convert = self._args.custom_convert_samples_to_train_data_path
        if custom_convert:
            return convert_with(load_function(custom_convert), self._args, samples)
        return convert(self._args, samples)

    def _shards(self, train_data: TrainData, *, whole: bool) -> tuple[list[Any], list[Any]]:
        """Return the training data split over the policy's ranks, and over the critic's; ``whole``: as one step."""
        sizes = {self._dp_size, self._critic_size} - {0}
        one_step = {"use_dynamic_global_batch_size": True, "num_steps_per_rollout": 1}
        args = self._args.changed(**one_step) if whole else self._args
        split = {size: [ray.put(shard) for shard in split_by_dp(train_data, size, args)] for size in sizes}
        return split[self._dp_size], split.get(self._critic_size, [])

    def eval(self, rollout_id: int, source: object) -> dict[str, Any]:
        """Run the evaluation function and return metrics ``eval/<dataset>``."""
        output = call_rollout_fn(self._evaluate, self._args, rollout_id, source, evaluation=True)
        if not isinstance(output, RolloutFnEvalOutput):
            raise PluginError(f"{self._args.eval_function_path} returned samples; return an evaluation instead")
        metrics = dict(output.metrics or {})
        for name, result in output.data.items():
            metrics |= eval_metrics(name, result)
        custom_log = self._args.custom_eval_rollout_log_function_path
        if custom_log and load_function(custom_log)(rollout_id, self._args, output.data, output.metrics):
            return {}
        return metrics

    def _save_debug_rollout(self, rollout_id: int, samples: list[Sample], output: RolloutFnTrainOutput) -> None:
        template = self._args.save_debug_rollout_data
        if not template:
            return
        path = Path(template.format(rollout_id=rollout_id))
        private_folder(path.parent)
        with open(path, "wb", opener=private) as file:
            whole = output.passes is not None or self._args.adapter_per_person
            of_one = {"person": output.person, "passes": output.passes} if whole else {}
            save_data({"rollout_id": rollout_id, "samples": [s.to_dict() for s in samples], **of_one}, file)

    def _load_debug_rollout(self, rollout_id: int) -> RolloutFnTrainOutput:
        path = required("--load-debug-rollout-data", self._args.load_debug_rollout_data).format(rollout_id=rollout_id)
        dump = load_data(path)
        samples = [Sample.from_dict(record) for record in dump["samples"]]
        chosen = subsample(samples, self._args.load_debug_rollout_data_subsample)
        return RolloutFnTrainOutput([chosen], person=dump.get("person"), passes=dump.get("passes"))

    def dispose(self) -> None:
        """End what a rollout function started that is an object with processes."""
        if hasattr(self._generate, "dispose"):
            self._generate.dispose()


class RolloutManager:
    """The actor that `create_rollout_manager` of `slime.ray.processes` creates; see the module."""

    def __init__(self, args: Arguments, reserved: ReservedPlacement) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        mark(args.run_dir, MANAGER, Step.LOADED)
        self.args = args
        self.engines = EnginePool(args, engine_groups(args, reserved))
        self.engines.start(reserved.placement)
        mark(args.run_dir, MANAGER, Step.ENGINES)
        init_http_client(args)
        self._data_source = load_function(args.data_source_path)(args)
        self._source_hooks = with_optional_methods(self._data_source)
        self._batches = BatchMaker(args, reserved.placement)
        self._newest_rollout = -1
        self._told_of_mark = False
        self.engines.watch()

    # Engines

    def addresses(self) -> dict[str, str]:
        """Return the URL of each role."""
        return self.engines.addresses()

    def engine_arguments(self) -> dict[str, Any]:
        """Return the arguments of the run that name its engines' addresses."""
        names = ("sglang_router_ip", "sglang_router_port", "prm_router_ip", "prm_router_port")
        return {name: value for name in names if (value := getattr(self.args, name)) is not None}

    def engine_handles(self) -> list[RemoteEngine]:
        """Return the handles of the policy engines, by index."""
        return self.engines.handles()

    def recover_engines(self) -> int:
        """Restart dead engines; see `EnginePool.recover`. Also raises what the data source's ``check`` raises."""
        self._source_hooks.check()
        return self.engines.recover()

    def weights_arrived(self) -> bool | None:
        """Recovered engines have current weights; see `EnginePool.weights_arrived`."""
        return self.engines.weights_arrived()

    def hold_engines(self, only_last: bool = False) -> None:
        """Hold the policy engines' requests after an update whose trainer died."""
        self.engines.hold(only_last)

    def sleep_engines(self) -> None:
        """Make the policy engines release their memory."""
        self.engines.sleep()

    def wake_engines(self, parts: tuple[str, ...]) -> None:
        """Restore ``parts`` of the policy engines' memory."""
        self.engines.wake(parts)

    def end_engines(self) -> None:
        """Kill the policy engines immediately, for a run that is about to end."""
        self.engines.end()

    def set_apart(self) -> EngineLife | None:
        """Take the last engine out of the router for a candidate; see `EnginePool.set_apart`."""
        return self.engines.set_apart()

    def rejoin(self) -> None:
        """Let the router send requests to the engine again."""
        self.engines.rejoin()

    def options_read(self) -> frozenset[str]:
        """Return the names of the arguments that this process has read."""
        return frozenset(READ)

    # Rollouts

    def rollouts_per_epoch(self) -> int:
        """Return the rollouts per epoch, for ``--num-epoch``; raise ConfigError if there is not even one."""
        prompts, batch = number_of_prompts(self._data_source), self.args.rollout_batch_size
        if prompts < batch:
            raise ConfigError(
                f"--num-epoch: {prompts} prompts do not fill a rollout of --rollout-batch-size {batch}; lower it, "
                "or use --num-rollout N"
            )
        return prompts // batch

    def generate(self, rollout_id: int) -> RolloutBatch:
        """Run the rollout function and return its samples, one shard per training rank."""
        if not self.args.load_debug_rollout_data:
            self._newest_rollout = rollout_id
        return self._batches.generate(rollout_id, self._data_source, self._source_hooks.mark)

    def eval(self, rollout_id: int) -> dict[str, Any]:
        """Run the evaluation function and return metrics ``eval/<dataset>``."""
        return self._batches.eval(rollout_id, self._data_source)

    def evaluation_progress(self) -> tuple[int, int]:
        """Return the finished and the requested answers of the default evaluation."""
        return PROGRESS.done, PROGRESS.total

    # The data source

    def save(self, rollout_id: int) -> None:
        """Save the data source's position; call it after writing the trainer's checkpoint of this rollout."""
        self._source_hooks.save(rollout_id)
        if self._newest_rollout > rollout_id and not marks(self._source_hooks) and not self._told_of_mark:
            self._told_of_mark = True
            logger.warning(
                "%s has no mark(rollout_id): its position for rollout %d may include prompts of rollout %d, which a "
                "resumed run would skip",
                type(self._data_source).__name__,
                rollout_id,
                self._newest_rollout,
            )

    def load(self, rollout_id: int | None = None) -> None:
        """Restore the data source to its state after ``rollout_id``."""
        self._source_hooks.load(rollout_id)

    def before_rollouts(self) -> Story:
        """Let the data source start what rollouts need, and return what it tells the user.

        The engines have the trainer's weights.
        """
        self._source_hooks.before_rollouts()
        return self._source_hooks.story()

    def on_weights_live(self, rollout_id: int, version: str) -> None:
        """Tell the data source that engines serve the weights that ``rollout_id`` produced."""
        self._source_hooks.weights_live(rollout_id, version)

    def on_step_refused(self, rollout_id: int, why: str) -> None:
        """Tell the data source that the batch of ``rollout_id`` was not trained, and never will be."""
        self._source_hooks.step_refused(rollout_id, why)

    def on_gate_decided(self, rollout_id: int, decision: Decision) -> None:
        """Tell the data source what ``--before-push-path`` decided."""
        self._source_hooks.gate_decided(rollout_id, decision)

    def on_step_undone(self, rollout_id: int, why: str) -> None:
        """Tell the data source that the steps of ``rollout_id`` were undone."""
        self._source_hooks.step_undone(rollout_id, why)

    def on_weights_restored(self, rollout_id: int, from_rollout_id: int, version: str) -> None:
        """Tell the data source that the weights went back on command."""
        self._source_hooks.weights_restored(rollout_id, from_rollout_id, version)

    def on_person_restored(self, person: str, to_version: str, version: str) -> None:
        """Tell the data source that one person's adapter went back on command."""
        self._source_hooks.person_restored(person, to_version, version)

    def data_source_attribute(self, name: str) -> tuple[bool, Any]:
        """Return whether an attribute of the data source is a method, and its value if it is none; for a plugin in the driver."""
        value = getattr(self._data_source, name)
        return (True, None) if callable(value) else (False, value)

    def call_data_source(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a method of the data source, for a plugin in the driver."""
        return getattr(self._data_source, name)(*arguments, **keywords)

    def dispose(self) -> None:
        """Stop the monitor, the rollout function and the data source (their ``dispose``), and the engines."""
        self.engines.close()
        self._batches.dispose()
        self._source_hooks.dispose()
        self.engines.stop()


def subsample(samples: list[Sample], share: float | None) -> list[Sample]:
    """Return about ``share`` of a dumped rollout's groups, half from each end, in order; at least one group.

    A sample without a group index is its own group. None returns all.
    """
    if share is None:
        return samples
    numbers = [-1 - place if s.group_index is None else s.group_index for place, s in enumerate(samples)]
    groups = list(group_by(range(len(samples)), key=lambda place: numbers[place]).values())
    count = max(1, int(len(groups) * share))
    head = -(-count // 2)
    kept = [*groups[:head], *groups[len(groups) - (count - head) :]]
    return [samples[place] for group in kept for place in group]
