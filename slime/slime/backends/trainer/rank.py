"""A training rank of the policy or of the critic, for any back end. The trainer makes Ray actors of the classes.

A rank is composed: `RankProcess` is its place among the others, a `Backend` its model and optimizer, `Snapshot` the
state that refused steps go back to, `HostMemory` what leaves the device, `Versions` and `Pushes` the way to the
engines. With ``--adapter-per-person`` `People` says whose adapter is in the model, and `Publishing` is the way to the engines. Unless stated otherwise, all methods are collective over the ranks of a role.

Policy: one forward pass over the whole rollout before the first optimizer step computes the old log probabilities. This
is exact for any number of steps. ``--use-rollout-logprobs`` uses the engine's instead and saves the pass.

Critic: the order for a rollout is ``values``, then the policy's ``prepare`` with them, then ``step`` with the resulting
returns. The steps of policy and critic do not wait for each other. The critic has its own learning rate, warm-up and
checkpoints, and shares all other trainer settings. ``save`` gives a checkpoint its final name. A run resumes from it
once the policy's checkpoint of the same rollout is published; ``publish`` then deletes older ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.distributed as dist

from groundwork.checkpoint_names import PEOPLE
from groundwork.start_timeline import TRAINER, Step, mark
from slime.algorithms.advantages import compute_advantages
from slime.algorithms.losses.named_values import load_custom_loss
from slime.args import READ, Arguments, required
from slime.backends.trainer.backend import (
    Backend,
    CriticBackend,
    MakeCritic,
    MakePolicy,
    PolicyBackend,
)
from slime.backends.trainer.host_memory import HostMemory, Snapshot
from slime.backends.trainer.metrics import Clock, MemoryHistory, mean_of_steps, means_of_streams, speeds_of
from slime.backends.trainer.micro_batch import Metrics, RolloutShard, postprocess
from slime.backends.trainer.people import People, Publishing, versions_in
from slime.backends.trainer.probing import answers_of
from slime.backends.trainer.process import RankProcess
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.trainable import PATTERNS, check_same_adapters, check_same_parameters, shape_of_adapters
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.all_ranks import on_rank_zero
from slime.checkpoints.checkpoint_folder import export_hf
from slime.checkpoints.versions import superseded, superseded_of_critic
from slime.exceptions import CheckpointError, TrainerError
from slime.observability.metric_utils import STEPS
from slime.utils.hf_checkpoint import DTYPES
from slime.utils.probes import Answer, Probe
from slime.weight_sync import Sent
from slime.weight_sync.pushes import Pushes, Versions
from slime.weight_sync.remote_engine import RemoteEngine

logger = logging.getLogger(__name__)

B = TypeVar("B", bound=Backend)


class TrainRank(Generic[B]):
    """What policy and critic share: start and end, undoing steps, memory, and checkpoints. Call ``init`` first."""

    role: ClassVar[str]
    args: Arguments
    backend: B
    device: torch.device
    clock: Clock
    snapshot: Snapshot
    memory: HostMemory | None = None

    def __init__(self, world_size: int, rank: int, master_addr: str, master_port: int = 0) -> None:
        """``master_addr`` is rank 0's machine; its port is ``master_port``, or chosen by :meth:`open_rendezvous`."""
        self.rank = rank
        self.process = RankProcess(world_size, rank, master_addr, master_port)
        self._is_offloaded = False

    def open_rendezvous(self) -> int:
        """Listen for the other ranks and return the port, by default a free one; rank 0 only."""
        return self.process.open_rendezvous()

    def meet_at(self, port: int) -> None:
        """Set rank 0's port, before ``init``."""
        self.process.meet_at(port)

    def _begin(self, args: Arguments) -> None:
        """Set the arguments, join the group, and create the parts that need no model."""
        default_dtype = "bfloat16" if args.device == "cuda" else "float32"
        self.args = args.changed(train_dtype=args.train_dtype or default_dtype)
        self._mark(Step.LOADED)
        logging.basicConfig(level=logging.INFO, format=f"[rank {self.rank}] %(levelname)s %(name)s: %(message)s")
        self.device = self.process.join(self.args)
        self.clock = Clock(self.args, self.rank)
        self.memory = HostMemory(self.device)
        self.snapshot = Snapshot(self.device)

    def _mark(self, step: Step) -> None:
        """Note a step of the run's start; the policy's rank 0 speaks for all."""
        if self.rank == 0 and self.role == "policy":
            mark(self.args.run_dir, TRAINER, step)

    def shutdown(self) -> None:
        """Leave the process groups."""
        if "backend" in vars(self):
            self.backend.close()
        if self.memory is not None:
            self.memory.close()
            self.snapshot.close()
        self.process.leave()

    def _steps(self, data: RolloutShard, rollout_id: int, passes: int) -> list[Metrics]:
        """Take the steps on ``data`` ``passes`` times and return the metrics of each; a pass with a skipped step is the last."""
        steps: list[Metrics] = []
        for _ in range(passes):
            taken = [self.backend.optimizer_step(data, rollout_id, n) for n in range(len(data.micro_batches))]
            steps += taken
            if any(metrics["skipped_steps"] for metrics in taken):
                break
        return steps

    def options_read(self) -> frozenset[str]:
        """Return the names of the arguments that this rank has read."""
        return frozenset(READ)

    # Undoing a rollout's steps

    def take_snapshot(self) -> None:
        """Copy to the host what the next steps change; then :meth:`keep_steps` or :meth:`undo_steps` follows."""
        self._check_memory()
        self.snapshot.take(self.backend.changing())

    def keep_steps(self) -> None:
        """Keep what was trained since :meth:`take_snapshot`; its host memory is used again."""
        self.snapshot.keep()

    def undo_steps(self) -> None:
        """Go back to the state at :meth:`take_snapshot`, bit for bit; a no-op without one that is open."""
        if self.snapshot.is_open:
            self.snapshot.put(self.backend.changing())

    # Memory

    def offload(self) -> None:
        """Move this rank's device memory to the host; until :meth:`onload` only weight pushes work."""
        if self._is_offloaded:
            return
        assert self.memory is not None, "call init first"
        with self.clock.timed("offload"):
            moved = self.memory.take(*self.backend.device_tensors())
        self._is_offloaded = self.memory.is_used
        logger.info("%.2f GB are on the host, %.3f s", moved / 1e9, self.clock.seconds["offload"])

    def onload(self) -> None:
        """Move this rank's memory back to its device."""
        assert self.memory is not None, "call init first"
        with self.clock.timed("onload"):
            self.memory.give_back()
        self._is_offloaded = False

    def _check_memory(self) -> None:
        """Raise TrainerError while offloaded, because tensors have no storage then."""
        if self._is_offloaded:
            raise TrainerError("the memory of this rank is on the host: call onload first")

    # Checkpoints

    def restore(self, iteration: int) -> None:
        """Go back to the run's own checkpoint after ``iteration`` rollouts."""
        self._check_memory()
        self._restore(checkpoint_folder.folder_of(self._save_folder(), iteration))

    def _save_folder(self) -> Path:
        """Return the root of this role's checkpoints."""
        raise NotImplementedError

    def _restore(self, folder: Path) -> dict[str, Any]:
        """Load model, optimizer, schedule and random state of a checkpoint and return its metadata."""
        meta = checkpoint_folder.read_meta(folder)
        if meta.get("role", self.role) != self.role:
            raise CheckpointError(
                f"{folder} is a checkpoint of the {meta['role']}: name one of the {self.role}, or a Hugging Face folder"
            )
        if PEOPLE in meta:
            raise CheckpointError(f"{folder} is of an adapter for each person: add --adapter-per-person")
        check_same_parameters(self.args, meta)
        check_same_adapters(self.args, meta)
        meta = self.backend.read(folder)
        everything = self.args.use_checkpoint_lr_scheduler
        self.backend.schedule.load_state_dict(meta["schedule"], everything=everything)
        logger.info("continuing from %s", folder)
        return meta

    def _meta(self, rollout_id: int) -> dict[str, Any]:
        return {
            "role": self.role,
            "rollout_id": rollout_id,
            "schedule": self.backend.schedule.state_dict(),
            "world_size": self.process.world_size,
            "lora": bool(self.args.use_lora),
            "adapters": shape_of_adapters(self.args),
            "hf_checkpoint": str(self.args.hf_checkpoint),
            **{name: getattr(self.args, name) for name in PATTERNS},
        }


class PolicyRank(TrainRank[PolicyBackend]):
    """A rank of the policy; a subclass names the back end."""

    role = "policy"
    make_backend: ClassVar[MakePolicy]
    _versions: Versions
    _people: People | None = None
    _pushes: Pushes | Publishing | None = None
    _data: RolloutShard | None = None
    _history: MemoryHistory | None = None

    def init(self, args: Arguments) -> int:
        """Build everything, load a checkpoint if given, and return the first rollout to train on."""
        self._begin(args)
        args = self.args
        if args.record_memory_history:
            self._history = MemoryHistory(args, self.rank)
        if args.loss_type == "custom_loss":
            load_custom_loss(args.custom_loss_function_path)  # report its problems before reading the model
        assert self.memory is not None
        make = type(self).make_backend
        self.backend = make(args, start_weights(args), self.device, Schedule.of_run(args), self.memory.value)
        self._mark(Step.MODEL)
        self.process.seed(args)
        self._versions = Versions()
        if args.adapter_per_person:
            self._people = People(args, self.backend, self.process, self.device, self.rank, self._meta)
        start = self._load_checkpoint()
        where = {"device": self.device, "address": self.process.address}
        self._pushes = Pushes(args, **where) if self._people is None else Publishing(args, self._people, **where)
        self._mark(Step.READY)
        return start

    def shutdown(self) -> None:
        """Leave the process groups."""
        if self._pushes is not None:
            self._pushes.close()
        if self._people is not None:
            self._people.close()
        super().shutdown()

    # Whose adapter it is

    def let_in(self, mark: str) -> str:
        """Train and ask the adapter of the person with this mark from now on; return the version that serves this person."""
        self._check_memory()
        assert self._people is not None, "there is one policy for everybody without --adapter-per-person"
        with self.clock.timed("let_in"):
            self._people.let_in(mark)
        self._versions = self._people.versions
        return str(self._versions.live)

    def restore_person(self, mark: str, name: str | None) -> None:
        """Go back to an earlier version of one person, None: to the base; the next push gives it a new version."""
        self.let_in(mark)
        assert self._people is not None
        self._people.restore(name)
        self._versions.changed()

    def offload(self) -> None:
        """Move this rank's device memory to the host."""
        if self._people is not None and not self._is_offloaded:
            self._people.settle()  # a push comes while offloaded
        super().offload()

    # One rollout

    def train(self, rollout_id: int, shard: Any, passes: int = 1) -> dict[str, Any] | None:
        """Take the optimizer steps of one rollout: :meth:`prepare`, then :meth:`step`."""
        self.prepare(rollout_id, shard)
        return self.step(rollout_id, passes=passes)

    def prepare(self, rollout_id: int, shard: Any, values: Sequence[Any] = ()) -> dict[int, torch.Tensor]:
        """Take this rank's data and compute what the loss needs.

        Args:
            rollout_id: rollout of the data.
            shard: the data, or a Ray reference to it.
            values: result of each critic rank for the rollout, or references; empty without a critic.

        Returns:
            With a critic, the returns of this rank's samples by their position in the rollout.
        """
        self._check_memory()
        self.clock.begin(rollout_id)
        with self._watched(), self.clock.timed("train"):
            with self.clock.timed("data_preprocess"):
                self._data = data = RolloutShard(fetch(shard))
            if values:
                data.set_from_positions("values", [fetch(part) for part in values])
            advantages = self.args.compute_advantages_and_returns and self.args.loss_type != "sft_loss"
            if advantages or (self.args.loss_type == "policy_loss" and self.args.use_rollout_logprobs):
                self._choose_old_log_probs(data)
            if advantages:
                self._compute_advantages(data)
            postprocess(self.args, rollout_id, data)
            if self.args.save_debug_train_data:
                data.dump(self.args.save_debug_train_data.format(rollout_id=rollout_id, rank=self.rank))
        return data.by_position("returns") if values else {}

    def step(self, rollout_id: int, learn: bool = True, passes: int = 1) -> dict[str, Any] | None:
        """Take the optimizer steps on the data of :meth:`prepare`; without ``learn`` only compute rollout metrics.

        The steps are taken ``passes`` times, see :meth:`_steps`; old log probabilities and advantages are those of the first.

        Returns:
            On rank 0 the metrics of each step in a list under ``STEPS``, their means ``train/*``, and those of the rollout;
            None elsewhere.
        """
        self._check_memory()
        data, self._data = self._data, None
        assert data is not None, "call prepare first"
        self.backend.before_steps()
        with self._watched(), self.clock.timed("train"), self.clock.timed("actor_train"):
            steps = self._steps(data, rollout_id, passes if learn else 0)
        if not all(metrics["skipped_steps"] for metrics in steps):
            self._versions.changed()
        if self._people is not None:
            self._people.stepped(rollout_id)
        if self._history is not None:
            self._history.trained()
        group = self.backend.data_group
        rollout = means_of_streams(self.args, data, group)
        if steps and self.rank == 0:
            rollout |= speeds_of(self.args, data, self.clock.seconds, group, len(steps) / len(data.micro_batches))
        rollout |= self._update_rms()
        seconds = self.clock.take()  # on every rank, because each logs its own
        self.backend.after_steps(rollout_id)
        if self.rank != 0:
            return None
        named = [{f"train/{name}": value for name, value in step.items()} for step in (*steps, mean_of_steps(steps))]
        return {STEPS: named[:-1], **named[-1], **rollout, **seconds}

    def _update_rms(self) -> Metrics:
        """Return how far the steps since :meth:`take_snapshot` moved a weight; empty without a snapshot."""
        if not self.snapshot.is_open:
            return {}
        parts: list[Any] = [None] * self.process.world_size
        dist.all_gather_object(parts, self.snapshot.moved(self.backend.changing()))
        total, count = (sum(part[place] for part in parts) for place in (0, 1))
        return {"rollout/update_rms": math.sqrt(total / max(1, count))}

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self._history is None else self._history.watched()

    def _choose_old_log_probs(self, data: RolloutShard) -> None:
        """Set ``log_probs`` of the old policy for advantages and loss: the engine's, or from a forward pass."""
        if self.args.use_rollout_logprobs:
            if "rollout_log_probs" not in data.fields:
                raise ValueError("--use-rollout-logprobs needs rollout_log_probs on every sample")
            data.set_computed("log_probs", data.fields["rollout_log_probs"])
        else:
            with self.clock.timed("log_probs"):
                log_probs, entropy = self.backend.policy_pass(data)
                data.set_computed("log_probs", log_probs)
                if entropy is not None:
                    data.set_computed("entropy", entropy)

    def _compute_advantages(self, data: RolloutShard) -> None:
        """Set the reference's log probabilities, if needed, then advantages and returns."""
        if needs_reference(self.args):
            with self.clock.timed("ref_log_probs"):
                data.set_computed("ref_log_probs", self.backend.reference_pass(data))
        advantages, returns = compute_advantages(self.args, data.fields, self._sum_over_ranks)
        data.set_computed("advantages", advantages)
        data.set_computed("returns", returns)

    def _sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total, group=self.backend.data_group)
        return total

    # Before a push

    def take_snapshot(self) -> None:
        """Copy to the host what the next steps change."""
        super().take_snapshot()
        self._versions.snapshot()

    def undo_steps(self) -> None:
        """Go back to the state at :meth:`take_snapshot`."""
        undoes = self.snapshot.is_open
        if undoes:
            self._versions.undo()
        super().undo_steps()
        if undoes and self._people is not None:
            self._people.undo()

    def restore(self, iteration: int) -> None:
        """Go back to the run's own checkpoint after ``iteration`` rollouts; the next push gives its weights a new version."""
        super().restore(iteration)
        self._versions.changed()

    @contextmanager
    def _as_served(self) -> Iterator[None]:
        """Run the block with the weights of the snapshot."""
        with self.snapshot.swapped(self.backend.changing()):
            try:
                yield
            finally:
                # Lets go of what the block gathered, or the next pass would use the snapshot's weights.
                self.backend.changing()

    def versions(self) -> tuple[str, str]:
        """Return the version that serves, and the one that the current weights get; equal if no step changed them."""
        return str(self._versions.live), str(self._versions.next())

    def ask(self, served: bool, probes: Sequence[Probe]) -> dict[int, Answer]:
        """Return this rank's answers by the number of the probe: with the weights that are ``served``, or the current ones."""
        self._check_memory()
        with self._as_served() if served and self.snapshot.is_open else nullcontext():
            return answers_of(self.args, self.backend, probes, self.device)

    # Weights

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> None:
        """Build the weight update group of rank 0 and the engines; call again after an engine restart."""
        assert self._pushes is not None
        self._pushes.connect(engines)

    def push_candidate(self) -> None:
        """Push the current weights to the canary engine alone, under the version that they get if they are accepted."""
        assert self._pushes is not None
        self._pushes.push_to_canary(self.backend.pushed_weights, str(self._versions.candidate()))

    def offer_candidate(self) -> Sent:
        """Give all engines the current weights before they are accepted; return what was sent, on rank 0."""
        assert self._pushes is not None
        with self.clock.timed("update_weights"):
            return self._pushes.offer(self.backend.pushed_weights, str(self._versions.candidate()))

    def take_candidate_back(self) -> None:
        """Push the weights that serve to the engines that have others; the candidate's steps are undone."""
        assert self._pushes is not None
        self._pushes.take_back(self.backend.pushed_weights, str(self._versions.live))

    def update_weights(self) -> str:
        """Push the current weights to the engines and return their version; works while offloaded.

        Until steps after :meth:`take_snapshot` are kept, the weights of the snapshot are pushed, under the version that serves.
        """
        assert self._pushes is not None
        if self.snapshot.is_open:
            live = str(self._versions.live)
            with self._as_served(), self.clock.timed("update_weights"):
                self._pushes.push(self.backend.pushed_weights, live)
            return live
        version = self._versions.next()
        with self.clock.timed("update_weights"):
            self._pushes.push(self.backend.pushed_weights, str(version))
        self._versions.pushed(version)
        logger.info("weights %d are live, %.3f s", version, self.clock.seconds["update_weights"])
        return str(version)

    # Checkpoints

    def save(self, rollout_id: int) -> str:
        """Write a checkpoint that contains the step of ``rollout_id`` and return its folder; see :meth:`publish`."""
        if not self.args.save:
            raise CheckpointError("there is no folder to save to: add --save DIR")
        self._check_memory()
        root, iteration = self._save_folder(), rollout_id + 1
        with self.clock.timed("save_model"):
            if self._people is None:
                folder = self.backend.write(root, iteration, self._meta(rollout_id) | self._versions.state())
            else:
                folder = self._people.write(root, iteration, self._meta(rollout_id))
            if self.args.save_hf:
                self.save_hf(self.args.save_hf.format(rollout_id=rollout_id))
        return str(folder)

    def _save_folder(self) -> Path:
        return Path(required("--save", self.args.save))

    def publish(self, rollout_id: int) -> None:
        """Mark the checkpoint of ``rollout_id`` as the latest and delete those beyond --save-keep."""
        root, iteration = self._save_folder(), rollout_id + 1

        def publish() -> None:
            old = superseded(root, iteration, self.args.save_keep)
            named = [] if self._people is None else versions_in(old)
            checkpoint_folder.publish(root, iteration, old)
            if self._people is not None:
                self._people.let_go(named)

        on_rank_zero(publish)

    def save_hf(self, path: str) -> None:
        """Write a Hugging Face checkpoint folder with the current weights, LoRA merged."""
        weights, dtype = self.backend.weights(), DTYPES[self.args.train_dtype]
        export_hf(weights, Path(self.args.hf_checkpoint), Path(path), dtype=dtype)

    def _load_checkpoint(self) -> int:
        """Load the checkpoint of --resume or --load and return the first rollout."""
        args = self.args
        root = args.save if args.resume else args.load
        folder = checkpoint_folder.find(Path(root)) if root else None
        if folder is None:
            if args.resume:
                raise CheckpointError(f"--resume found no checkpoint in {root}: start without --resume")
            if args.load and start_weights(args) != args.load:
                logger.warning("--load %s holds no checkpoint yet: starting from %s", args.load, start_weights(args))
            if self._people is not None:
                self._people.load(None)
            return args.start_rollout_id or 0
        if self._people is None:
            meta = self._restore(folder)
            self._versions.load(meta)
        else:
            meta = checkpoint_folder.read_meta(folder)
            self._people.load(meta)
        return int(meta["rollout_id"]) + 1 if args.start_rollout_id is None else args.start_rollout_id


class CriticRank(TrainRank[CriticBackend]):
    """A rank of PPO's critic; a subclass names the back end. Call ``init``, then ``load_checkpoint``."""

    role = "critic"
    make_backend: ClassVar[MakeCritic]
    _data: RolloutShard | None = None

    def init(self, args: Arguments) -> None:
        """Build the critic from the backbone of --critic-load, or from the policy's start weights."""
        self._begin(critic_arguments(args))
        args = self.args
        own = args.critic_load and (Path(args.critic_load) / "config.json").exists()
        start = required("--critic-load", args.critic_load) if own else start_weights(args)
        self.backend = type(self).make_backend(args, start, self.device, Schedule.of_run(args))
        self.process.seed(args)

    def load_checkpoint(self, start_rollout_id: int) -> None:
        """Load the checkpoint of --critic-load, or with --resume that of the rollout before ``start_rollout_id``."""
        args = self.args
        if args.resume:
            folder = checkpoint_folder.folder_of(self._save_folder(), start_rollout_id)
            if not (folder / "meta.json").exists():
                raise CheckpointError(
                    f"--resume needs the critic's checkpoint {folder}: set --critic-save to its folder"
                )
        else:
            folder = checkpoint_folder.find(Path(args.critic_load)) if args.critic_load else None
        if folder is not None:
            self._restore(folder)

    def values(self, rollout_id: int, shard: Any) -> dict[int, torch.Tensor]:
        """Return the values ``[R_i]`` of this rank's samples, by their position in the rollout, before any step on it."""
        self._check_memory()
        with self.clock.timed("values"):
            self._data = data = RolloutShard(fetch(shard))
            data.set_computed("values", self.backend.value_pass(data))
        return data.by_position("values")

    def step(self, rollout_id: int, returns: Sequence[Any], passes: int = 1) -> dict[str, Any] | None:
        """Take the optimizer steps of the rollout last given to ``values``.

        Args:
            rollout_id: rollout of the data.
            returns: result of each policy rank for the rollout, or references.
            passes: how often the steps are taken.

        Returns:
            On rank 0 the metrics of each step in a list under ``STEPS``, and their means; None elsewhere.
        """
        self._check_memory()
        data, self._data = self._data, None
        assert data is not None, "call values first"
        data.set_from_positions("returns", [fetch(part) for part in returns])
        with self.clock.timed("critic_train"):
            steps = self._steps(data, rollout_id, passes)
        seconds = self.clock.take()
        if self.rank != 0:
            return None
        named = [_named_for_critic(step) for step in (*steps, mean_of_steps(steps))]
        return {STEPS: named[:-1], **named[-1], **seconds}

    def save(self, rollout_id: int) -> str:
        """Write a checkpoint that contains the step of ``rollout_id`` and return its folder."""
        self._check_memory()
        with self.clock.timed("critic_save"):
            return str(self.backend.write(self._save_folder(), rollout_id + 1, self._meta(rollout_id)))

    def _save_folder(self) -> Path:
        return Path(required("--critic-save", self.args.critic_save))

    def publish(self, rollout_id: int) -> None:
        """Mark the checkpoint of ``rollout_id`` as the latest and delete those beyond --save-keep, after the policy's."""
        root, policy, iteration = self._save_folder(), Path(required("--save", self.args.save)), rollout_id + 1

        def publish() -> None:
            old = superseded_of_critic(root, iteration, self.args.save_keep, policy)
            checkpoint_folder.publish(root, iteration, old)

        on_rank_zero(publish)


def _named_for_critic(metrics: Metrics) -> Metrics:
    return {
        f"train/{name if name.startswith('value_') else f'critic-{name}'}": value for name, value in metrics.items()
    }


def critic_arguments(args: Arguments) -> Arguments:
    """Return ``args`` with the critic's learning rate and warm-up instead of the policy's."""
    changed = {
        "lr": args.lr if args.critic_lr is None else args.critic_lr,
        "lr_warmup_iters": args.critic_lr_warmup_iters,
        "lr_warmup_fraction": None,
    }
    return args.changed(**changed)


def needs_reference(args: Arguments) -> bool:
    """Return whether the loss or the advantages compare the policy with a reference."""
    return args.loss_type != "sft_loss" and (args.use_kl_loss or args.kl_coef != 0)


def start_weights(args: Arguments) -> str:
    """Return the Hugging Face folder to start from: --load if it is one, else --ref-load, else --hf-checkpoint."""
    if args.load and (Path(args.load) / "config.json").exists():
        return args.load
    return args.ref_load or args.hf_checkpoint


def fetch(value: Any) -> Any:
    """Dereference a Ray object reference; return any other value unchanged."""
    if isinstance(value, dict):
        return value
    import ray

    return ray.get(value)
