"""The rollout manager: the actor that owns the engines, the data source and the rollout function.

Guarantees: ``generate`` blocks only its own caller, so ``save``, ``on_weights_live`` and ``recover_engines`` run
meanwhile. The next health check (``--rollout-health-check-interval``) restarts a dead or hung engine, unless
``--no-use-fault-tolerance``; ``recover_engines`` counts it until the driver has noticed. Everything that the manager
started ends with it. It writes the engines' addresses into its copy of ``args``, where plugins read them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder
from slime.args import Arguments, required
from slime.arguments.placement import ENGINE_ROLES, Placement, data_parallel_size, stage_of
from slime.exceptions import PluginError
from slime.observability.metric_utils import compute_rollout_step
from slime.ray.canary_engine import CanaryEngine
from slime.ray.decisions import Decisions
from slime.ray.engines import EngineGroup, engine_groups
from slime.ray.placement import ReservedPlacement
from slime.rollout.base_types import RolloutFnEvalOutput, call_rollout_fn
from slime.rollout.custom_conversion import convert_with
from slime.rollout.data_source import Story, number_of_prompts
from slime.rollout.evaluation import PROGRESS
from slime.rollout.foreign_data_source import marks, with_optional_methods
from slime.rollout.metrics import eval_metrics, field_means, flatten, oldest_versions, rollout_metrics
from slime.rollout.train_data import TrainData, convert, split_by_dp
from slime.utils.data_files import load_data, save_data
from slime.utils.http_utils import init_http_client
from slime.utils.misc import group_by, load_function
from slime.utils.types import Sample
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine

__all__ = ["RolloutBatch", "RolloutManager", "compute_rollout_step", "create_rollout_manager"]

logger = logging.getLogger(__name__)

_MANAGER_THREADS = 16
HOLD_SECONDS = 30.0
MEMORY_SECONDS = 180.0
"""Time limit for an engine to release its memory or take it back."""


class RolloutBatch(TypedDict):
    """Result of ``generate``: one object reference per policy rank and per critic rank, and metrics."""

    shards: list[Any]
    critic_shards: list[Any]
    metrics: dict[str, Any]


class RolloutManager(Decisions, CanaryEngine):
    """The actor that :func:`create_rollout_manager` creates; see the module."""

    _newest_rollout = -1
    _told_of_mark = False
    _changing = False

    def __init__(self, args: Arguments, reserved: ReservedPlacement) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self.args = args
        self._groups = engine_groups(args, reserved)
        self._dp_size = max(1, data_parallel_size(args, len(reserved.placement.actor)))
        self._critic_size = data_parallel_size(args, len(reserved.placement.critic))
        self._engines_lock = threading.Lock()
        self._revived: list[int] = []
        self._get_weights: list[int] = []
        self._asleep = False
        self._closing = threading.Event()
        self._start_engines(reserved.placement)
        init_http_client(args)
        self._data_source = load_function(args.data_source_path)(args)
        self._source_hooks = with_optional_methods(self._data_source)
        self._generate = load_function(args.rollout_function_path)
        self._evaluate = load_function(args.eval_function_path or args.rollout_function_path)
        if args.use_fault_tolerance:
            threading.Thread(target=self._watch_engines, name="engine-monitor", daemon=True).start()

    # Engines

    def _start_engines(self, placement: Placement) -> None:
        stages = {group.role: stage_of(placement, ENGINE_ROLES[group.role]) for group in self._groups}
        for stage in sorted(set(stages.values())):
            self._start_together([group for group in self._groups if stages[group.role] == stage])

    def _start_together(self, groups: list[EngineGroup]) -> None:
        """Start the engines of ``groups`` together and wait for all of them."""
        starts = [(group, group.start()) for group in groups]
        for group, references in starts:
            address = group.finish_start(ray.get(references))
            prefix = "sglang" if group.role == "policy" else "prm"
            setattr(self.args, f"{prefix}_router_ip", address.host)
            setattr(self.args, f"{prefix}_router_port", address.port)
            logger.info("%s engines serve at http://%s:%d", group.role, address.host, address.port)

    def _watch_engines(self) -> None:
        interval = self.args.rollout_health_check_interval
        while not self._closing.wait(interval):
            try:
                self._revive_engines()
            except Exception:  # the monitor survives a failed restart and tries again
                logger.exception("an engine could not be restarted; trying again in %.0f s", interval)

    def _revive_engines(self) -> None:
        with self._engines_lock:
            if self._closing.is_set() or not self.args.use_fault_tolerance:
                return
            for group in self._groups:
                if self._asleep and group.role == "policy":
                    continue  # the trainer has the GPUs; dead engines restart once the engines have them again
                revived = group.revive()
                if group.role == "policy":
                    self._revived += revived
                    self._get_weights = [index for index in self._get_weights if index not in revived]

    def recover_engines(self) -> int:
        """Restart dead engines, and return how many policy engines were restarted since the last call.

        Restarted engines serve the start weights, so the trainer must reconnect to all engines and push its weights.
        None counts before it is awake. Also raises what the data source's ``check`` raises.
        """
        self._source_hooks.check()
        self._revive_engines()
        with self._engines_lock:
            if self._asleep:
                return 0  # a push would find no memory for the weights
            revived, self._revived = self._revived, []
            self._get_weights += revived
        return len(revived)

    def weights_arrived(self) -> None:
        """Recovered engines have current weights; let the router send them requests again."""
        engines, self._get_weights = self._get_weights, []
        engines += self.canary_lost(engines)
        for group in self._groups:
            if group.role == "policy":
                group.answers(engines)

    def engine_handles(self) -> list[RemoteEngine]:
        """Return the handles of the policy engines, by index."""
        return next((list(group.handles) for group in self._groups if group.role == "policy"), [])

    def hold_engines(self, only_last: bool = False) -> None:
        """Hold the policy engines' requests after an update whose trainer died; end an engine that does not answer.

        With ``only_last`` the update went to the last engine alone, and the others go on.
        """
        handles = self.engine_handles()[-1:] if only_last else self.engine_handles()
        for position in EngineCalls.to_all(handles, RemoteEngine.hold_after_failed_update).unanswered(HOLD_SECONDS):
            EngineCalls.to_all([handles[position]], RemoteEngine.kill).unanswered(HOLD_SECONDS)

    def sleep_engines(self) -> None:
        """Make the policy engines release their memory, and restart none until they wake.

        An engine that fails to do so is ended, which also frees its memory.
        """
        with self._engines_lock:
            self._asleep = True
            self._change_memory(lambda engines: EngineCalls.to_all(engines, RemoteEngine.sleep))

    def wake_engines(self, parts: tuple[str, ...]) -> None:
        """Restore ``parts`` of the policy engines' memory, and restart engines that died or do not wake."""
        with self._engines_lock:
            self._asleep = False
            self._change_memory(lambda engines: EngineCalls.to_all(engines, RemoteEngine.wake, parts))
        self._revive_engines()

    def end_engines(self) -> None:
        """Kill the policy engines immediately, for a run that is about to end."""
        self._closing.set()
        EngineCalls.to_all(self.engine_handles(), RemoteEngine.kill).unanswered(HOLD_SECONDS)

    def _change_memory(self, send: Callable[[list[RemoteEngine]], EngineCalls[None]]) -> None:
        handles = self.engine_handles()
        self._changing = True
        calls = send(handles)
        lost = calls.unanswered(MEMORY_SECONDS)
        self._changing = False
        if lost and not self.args.use_fault_tolerance:
            calls.values()
        for position in lost:
            logger.error("policy engine %d did not %s; ending it", position, calls.method)
            EngineCalls.to_all([handles[position]], RemoteEngine.kill).unanswered(HOLD_SECONDS)

    def addresses(self) -> dict[str, str]:
        """Return the URL of each role."""
        known = [(group.role, group.address) for group in self._groups]
        return {role: f"http://{where.host}:{where.port}" for role, where in known if where is not None}

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
        start = time.monotonic()
        if self.args.load_debug_rollout_data:
            samples, extra = self._load_debug_samples(rollout_id), {}
        else:
            self._newest_rollout = rollout_id
            output = call_rollout_fn(self._generate, self.args, rollout_id, self._data_source, evaluation=False)
            if isinstance(output, RolloutFnEvalOutput):
                raise PluginError(f"{self.args.rollout_function_path} returned an evaluation; return samples instead")
            samples, extra = flatten(output.samples), output.metrics or {}
            self._source_hooks.mark(rollout_id)
        if not samples:
            raise ValueError(f"{self.args.rollout_function_path} returned no samples for rollout {rollout_id}")
        self._save_debug_samples(rollout_id, samples)
        seconds = time.monotonic() - start
        train_data = self._train_data(samples)
        metrics = {
            **rollout_metrics(self.args, samples, seconds),
            **field_means(train_data),
            **oldest_versions(samples),
            **extra,
        }
        custom_log = self.args.custom_rollout_log_function_path
        if custom_log and load_function(custom_log)(rollout_id, self.args, samples, extra, seconds):
            metrics = {"perf/rollout_time": seconds}
        shards, critic_shards = self._shards(train_data)
        return {"shards": shards, "critic_shards": critic_shards, "metrics": metrics}

    def _train_data(self, samples: list[Sample]) -> TrainData:
        custom_convert = self.args.custom_convert_samples_to_train_data_path
        if custom_convert:
            return convert_with(load_function(custom_convert), self.args, samples)
        return convert(self.args, samples)

    def _shards(self, train_data: TrainData) -> tuple[list[Any], list[Any]]:
        """Return the training data split over the policy's ranks, and over the critic's."""
        sizes = {self._dp_size, self._critic_size} - {0}
        split = {size: [ray.put(shard) for shard in split_by_dp(train_data, size, self.args)] for size in sizes}
        return split[self._dp_size], split.get(self._critic_size, [])

    def eval(self, rollout_id: int) -> dict[str, Any]:
        """Run the evaluation function and return metrics ``eval/<dataset>``."""
        output = call_rollout_fn(self._evaluate, self.args, rollout_id, self._data_source, evaluation=True)
        if not isinstance(output, RolloutFnEvalOutput):
            raise PluginError(f"{self.args.eval_function_path} returned samples; return an evaluation instead")
        metrics = dict(output.metrics or {})
        for name, result in output.data.items():
            metrics |= eval_metrics(name, result)
        custom_log = self.args.custom_eval_rollout_log_function_path
        if custom_log and load_function(custom_log)(rollout_id, self.args, output.data, output.metrics):
            return {}
        return metrics

    def evaluation_progress(self) -> tuple[int, int]:
        """Return the finished and the requested answers of the default evaluation."""
        return PROGRESS.done, PROGRESS.total

    # State

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

    def _save_debug_samples(self, rollout_id: int, samples: list[Sample]) -> None:
        template = self.args.save_debug_rollout_data
        if not template:
            return
        path = Path(template.format(rollout_id=rollout_id))
        private_folder(path.parent)
        with open(path, "wb", opener=private) as file:
            save_data({"rollout_id": rollout_id, "samples": [sample.to_dict() for sample in samples]}, file)

    def _load_debug_samples(self, rollout_id: int) -> list[Sample]:
        path = required("--load-debug-rollout-data", self.args.load_debug_rollout_data).format(rollout_id=rollout_id)
        dump = load_data(path)
        samples = [Sample.from_dict(record) for record in dump["samples"]]
        return subsample(samples, self.args.load_debug_rollout_data_subsample)

    def dispose(self) -> None:
        """Stop the monitor, the rollout function and the data source (their ``dispose``), and the engines."""
        self._closing.set()
        if self._changing:
            self.end_engines()  # else the lock below stays held until the last engine sleeps
        if hasattr(self._generate, "dispose"):  # a rollout function may be an object that owns processes
            self._generate.dispose()
        self._source_hooks.dispose()
        with self._engines_lock:
            for group in self._groups:
                group.stop()


def create_rollout_manager(args: Arguments, reserved: ReservedPlacement) -> Any:
    """Create the manager's actor on the driver's machine; its engines are up once its first call returns.

    It requests no CPU core, because the run's GPU bundles may hold all of them.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote = ray.remote(RolloutManager).options(
        num_cpus=0, num_gpus=0, max_concurrency=_MANAGER_THREADS, scheduling_strategy=here
    )
    return remote.remote(args, reserved)


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
