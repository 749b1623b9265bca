"""One rank of the policy, for any back end: adds the weight version to what every rank owns.

A back end implements the abstract methods: building the policy, log probabilities, a step, whole weights, and
checkpoint state.

One forward pass over the whole rollout before the first optimizer step computes the old log probabilities. This is
exact for any number of steps. ``--use-rollout-logprobs`` uses the engine's instead and saves the pass. The weight
version counts pushes of changed weights: a push after no successful step repeats the version.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slime.algorithms.advantages import compute_advantages
from slime.args import Arguments, required
from slime.backends.trainer.flops import forward_flops, speeds, step_flops
from slime.backends.trainer.micro_batch import Metrics
from slime.backends.trainer.probing import Continuation, ProbeWork, Rounds, by_whole_passes, stop_ids
from slime.backends.trainer.profiling import MemoryHistory
from slime.backends.trainer.rank import TrainRank, fetch, mean_of_steps
from slime.backends.trainer.rollout_data import RolloutShard, postprocess
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.all_ranks import on_rank_zero
from slime.checkpoints.hf_folder import export_hf
from slime.checkpoints.versions import superseded
from slime.exceptions import CheckpointError
from slime.observability.metric_utils import STEPS
from slime.utils import streams
from slime.utils.hf_checkpoint import DTYPES, read_config
from slime.utils.misc import load_function
from slime.utils.probes import Answer, Probe
from slime.weight_sync.pushes import Pushes
from slime.weight_sync.remote_engine import RemoteEngine

logger = logging.getLogger(__name__)


class TrainActor(TrainRank):
    """See the module. Call ``init`` first.

    Attributes:
        data_group: the ranks with different samples; None means all.
    """

    data_group: dist.ProcessGroup | None = None
    _canary_version = 0
    """The last version that the canary engine got before the others."""

    def __init__(self, world_size: int, rank: int, master_addr: str, master_port: int = 0) -> None:
        super().__init__(world_size, rank, master_addr, master_port)
        self._sync: Pushes | None = None
        self._data: RolloutShard | None = None
        self.weight_version = self._newest_version = 0
        self._changed_since_push = self._changed_before = False
        self._history: MemoryHistory | None = None

    @abstractmethod
    def _build(self) -> None:
        """Build policy, optimizer and, if :meth:`_needs_reference`, the reference."""

    @abstractmethod
    def _log_probs(self, data: RolloutShard, *, reference: bool) -> list[torch.Tensor]:
        """Return ``[R_i]`` log probabilities of every sample on the CPU, under the policy or the reference."""

    @abstractmethod
    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """Take a step; return metrics with ``grad_norm``, ``lr-pg_0`` and ``skipped_steps``, equal on all ranks."""

    @abstractmethod
    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole weights under Hugging Face names; every rank must exhaust it, rank 0's values count."""

    @abstractmethod
    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """Write a checkpoint and return its folder, not yet published."""

    # Start and end

    def init(self, args: Arguments) -> int:
        """Build everything, load a checkpoint if given, and return the first rollout to train on."""
        self._begin(args)
        args = self.args
        if args.record_memory_history:
            self._history = MemoryHistory(args, self.rank)
        if args.loss_type == "custom_loss":
            load_function(args.custom_loss_function_path)  # report its problems before reading the model
        self._build()
        self._seed()
        start = self._load_checkpoint()
        self._sync = Pushes(args, device=self.device, address=self._master[0])
        return start

    def _needs_reference(self) -> bool:
        return self.args.loss_type != "sft_loss" and (self.args.use_kl_loss or self.args.kl_coef != 0)

    def shutdown(self) -> None:
        """Leave the process groups."""
        if self._sync is not None:
            self._sync.close()
        super().shutdown()

    # One rollout

    def train(self, rollout_id: int, shard: Any) -> dict[str, Any] | None:
        """Take the optimizer steps of one rollout: :meth:`prepare`, then :meth:`step`."""
        self.prepare(rollout_id, shard)
        return self.step(rollout_id)

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
        self._rollout_id = rollout_id
        with self._watched(), self._timed("train"):
            with self._timed("data_preprocess"):
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

    def step(self, rollout_id: int, learn: bool = True) -> dict[str, Any] | None:
        """Take the optimizer steps on the data of :meth:`prepare`; without ``learn`` only compute rollout metrics.

        Returns:
            On rank 0 the metrics of each step in a list under ``STEPS``, their means ``train/*``, and those of the rollout;
            None elsewhere.
        """
        self._check_memory()
        data, self._data = self._data, None
        assert data is not None, "call prepare first"
        steps = []
        with self._watched(), self._timed("train"), self._timed("actor_train"):
            for number in range(len(data.micro_batches) if learn else 0):
                metrics = self._optimizer_step(data, rollout_id, number)
                self._changed_since_push |= not metrics["skipped_steps"]
                steps.append(metrics)
        if self._history is not None:
            self._history.trained()
        rollout = self._describe(data)
        if steps and self.rank == 0:
            rollout |= self._speeds(data)
        seconds = self._take_seconds()  # on every rank, because each logs its own
        if self.rank != 0:
            return None
        return {STEPS: [named(step) for step in steps], **named(mean_of_steps(steps)), **rollout, **seconds}

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self._history is None else self._history.watched()

    def _choose_old_log_probs(self, data: RolloutShard) -> None:
        """Set ``log_probs`` of the old policy for advantages and loss: the engine's, or from a forward pass."""
        if self.args.use_rollout_logprobs:
            if "rollout_log_probs" not in data.fields:
                raise ValueError("--use-rollout-logprobs needs rollout_log_probs on every sample")
            data.set_computed("log_probs", data.fields["rollout_log_probs"])
        else:
            with self._timed("log_probs"):
                log_probs, entropy = self._policy_pass(data)
                data.set_computed("log_probs", log_probs)
                if entropy is not None:
                    data.set_computed("entropy", entropy)

    def _compute_advantages(self, data: RolloutShard) -> None:
        """Set the reference's log probabilities, if needed, then advantages and returns."""
        if self._needs_reference():
            with self._timed("ref_log_probs"):
                data.set_computed("ref_log_probs", self._log_probs(data, reference=True))
        advantages, returns = compute_advantages(self.args, data.fields, self._sum_over_ranks)
        data.set_computed("advantages", advantages)
        data.set_computed("returns", returns)

    def _policy_pass(self, data: RolloutShard) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        """Return the policy's log probabilities, and its entropies with ``--use-rollout-entropy``."""
        return self._log_probs(data, reference=False), None

    def _sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total, group=self.data_group)
        return total

    def _describe(self, data: RolloutShard) -> Metrics:
        """Return token-weighted means of the per-token streams and the token count, over all ranks."""
        sums: dict[str, list[float]] = {"tokens": [float(sum(data.fields["total_lengths"])), 1.0]}
        for name in [stream.name for stream in streams.STREAMS if stream.logged]:
            if name == "kl" and not self.args.kl_coef:  # all zero
                continue
            total, count = 0.0, 0.0
            for values, mask in zip(data.fields.get(name, []), data.fields["loss_masks"], strict=False):
                if values is not None:
                    total += float((values * mask).sum())
                    count += float(mask.sum())
            sums[name] = [total, count]
        gathered: list[Any] = [None] * dist.get_world_size(self.data_group)
        dist.all_gather_object(gathered, sums, group=self.data_group)
        result = {}
        for name in sums:
            total, count = (sum(rank[name][part] for rank in gathered) for part in (0, 1))
            if name == "tokens":
                result["rollout/tokens"] = total
            elif count:
                result[f"rollout/{name}"] = total / count
        return result

    def _speeds(self, data: RolloutShard) -> Metrics:
        """Return this rank's TFLOP/s in each phase, and the tokens per second of its model copy."""
        lengths, responses = data.fields["total_lengths"], data.fields["response_lengths"]
        copy = dist.get_world_size() / dist.get_world_size(self.data_group)
        config = read_config(Path(self.args.hf_checkpoint))
        rank = self.args.lora_rank if self.args.use_lora else 0
        step = step_flops(config, lengths, responses, lora_rank=rank)
        return speeds(self._seconds, forward_flops(config, lengths, responses) / copy, step / copy, sum(lengths))

    # Before a push

    def take_snapshot(self) -> None:
        """Copy to the host what the next steps change."""
        super().take_snapshot()
        self._changed_before = self._changed_since_push

    def undo_steps(self) -> None:
        """Go back to the state at :meth:`take_snapshot`."""
        if self._undoable:
            self._changed_since_push = self._changed_before
            self._newest_version = max(self._newest_version, self._canary_version)
        super().undo_steps()

    @contextmanager
    def _as_served(self) -> Iterator[None]:
        """Run the block with the weights of the snapshot."""
        assert self._snapshot is not None
        with self._snapshot.swapped(self._changing()):
            try:
                yield
            finally:
                self._changing()  # lets go of what the block gathered, or the next pass would use the snapshot's weights

    def versions(self) -> tuple[str, str]:
        """Return the version that serves, and the one that the current weights get; equal if no step changed them."""
        return str(self.weight_version), str(self._next_version())

    @abstractmethod
    def _scores(self, data: RolloutShard) -> list[torch.Tensor]:
        """Return ``[R_i]`` log probabilities of every sample at temperature 1, on the CPU."""

    @abstractmethod
    def _next_ids(self, data: RolloutShard) -> list[int]:
        """Return the most likely token at the place of each sample's last one; all samples are one micro-batch."""

    def _greedy(self, batches: list[list[Continuation]], rounds: Rounds) -> None:
        """Complete the replies of ``batches``; here every token takes a forward pass over all tokens before it."""
        for batch in batches:
            by_whole_passes(batch, rounds, self._next_ids)

    def ask(self, served: bool, probes: Sequence[Probe]) -> dict[int, Answer]:
        """Return this rank's answers by the number of the probe: with the weights that are ``served``, or the current ones."""
        self._check_memory()
        group = self.data_group
        work = ProbeWork(self.args, probes, dist.get_rank(group), dist.get_world_size(group))
        rounds = Rounds(stop_ids(Path(self.args.hf_checkpoint)), self.device, group)
        with self._as_served() if served and self._undoable else nullcontext():
            scored = work.scores(self._scores)
            continued = work.continuations()
            self._greedy(continued, rounds)
        return work.answers(scored, continued)

    def restore(self, iteration: int) -> None:
        """Go back to the run's own checkpoint after ``iteration`` rollouts; the next push gives its weights a new version."""
        super().restore(iteration)
        self._changed_since_push = True

    # Weights

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> None:
        """Build the weight update group of rank 0 and the engines; call again after an engine restart."""
        assert self._sync is not None
        self._sync.connect(engines)

    def push_candidate(self) -> None:
        """Push the current weights to the canary engine alone, under the version that they get if they are accepted.

        If their steps are undone, the version is not used again, because tokens may carry it.
        """
        assert self._sync is not None
        self._canary_version = self._next_version()
        self._sync.push_to_canary(self._sync_weights, str(self._canary_version))

    def take_candidate_back(self) -> None:
        """Push the weights that serve to the canary engine, if it has others; the candidate's steps are undone."""
        assert self._sync is not None
        self._sync.take_back(self._sync_weights, str(self.weight_version))

    def update_weights(self) -> str:
        """Push the current weights to the engines and return their version; works while offloaded.

        Until steps after :meth:`take_snapshot` are kept, the weights of the snapshot are pushed, under the version that serves.
        """
        assert self._sync is not None
        if self._undoable:
            with self._as_served(), self._timed("update_weights"):
                self._sync.push(self._sync_weights, str(self.weight_version))
            return str(self.weight_version)
        version = self._next_version()
        with self._timed("update_weights"):
            self._sync.push(self._sync_weights, str(version))
        self.weight_version, self._changed_since_push = version, False
        logger.info("weights %d are live, %.3f s", version, self._seconds["update_weights"])
        return str(version)

    def _sync_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights that a push sends; like :meth:`_weights`."""
        return self._weights()

    def _next_version(self) -> int:
        newest = max(self.weight_version, self._newest_version)
        return newest + 1 if self._changed_since_push else self.weight_version

    # Checkpoints

    def save(self, rollout_id: int) -> str:
        """Write a checkpoint that contains the step of ``rollout_id`` and return its folder; see :meth:`publish`."""
        if not self.args.save:
            raise CheckpointError("there is no folder to save to: add --save DIR")
        self._check_memory()
        root, iteration = self._save_folder(), rollout_id + 1
        with self._timed("save_model"):
            folder = self._write(root, iteration, self._meta(rollout_id))
            if self.args.save_hf:
                self.save_hf(self.args.save_hf.format(rollout_id=rollout_id))
        return str(folder)

    def _save_folder(self) -> Path:
        return Path(required("--save", self.args.save))

    def publish(self, rollout_id: int) -> None:
        """Mark the checkpoint of ``rollout_id`` as the latest and delete those beyond --save-keep."""
        root, iteration = self._save_folder(), rollout_id + 1

        def publish() -> None:
            checkpoint_folder.publish(root, iteration, superseded(root, iteration, self.args.save_keep))

        on_rank_zero(publish)

    def save_hf(self, path: str) -> None:
        """Write a Hugging Face checkpoint folder with the current weights, LoRA merged."""
        export_hf(self._weights(), Path(self.args.hf_checkpoint), Path(path), dtype=DTYPES[self.args.train_dtype])

    def _meta(self, rollout_id: int) -> dict[str, Any]:
        versions = {"weight_version": self._next_version(), "newest_version": self._newest_version}
        return self._common_meta(rollout_id) | versions

    def _load_checkpoint(self) -> int:
        """Load the checkpoint of --resume or --load and return the first rollout."""
        args = self.args
        root = args.save if args.resume else args.load
        folder = checkpoint_folder.find(Path(root)) if root else None
        if folder is None:
            if args.resume:
                raise CheckpointError(f"--resume found no checkpoint in {root}: start without --resume")
            if args.load and self._start_weights() != args.load:
                logger.warning("--load %s holds no checkpoint yet: starting from %s", args.load, self._start_weights())
            return args.start_rollout_id or 0
        meta = self._restore(folder)
        self.weight_version = int(meta["weight_version"])
        self._newest_version = int(meta.get("newest_version", self.weight_version))
        return int(meta["rollout_id"]) + 1 if args.start_rollout_id is None else args.start_rollout_id


def named(metrics: Metrics) -> Metrics:
    """Return the metrics of the policy's steps under their logged names."""
    return {f"train/{name}": value for name, value in metrics.items()}
