"""One rank of the policy: owns its shard, its reference model and its weight version, besides what every rank owns.

The old log probabilities are computed by one forward pass over the whole rollout before the first optimizer step, always,
unless ``--use-rollout-logprobs`` takes the engine's: exact for any number of steps, at the price of one forward pass.
The weight version counts the pushes of changed weights: a push after no successful step repeats the version.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slime.algorithms.advantages import compute_advantages
from slime.backends.fsdp_utils import checkpoint, moving_reference
from slime.backends.fsdp_utils.export import export_adapter
from slime.backends.fsdp_utils.lora import adapters_off
from slime.backends.fsdp_utils.megatron_group import group_of_one
from slime.backends.fsdp_utils.model import PolicyModel, build_policy
from slime.backends.fsdp_utils.rank import TrainRank, fetch, mean_of_steps
from slime.backends.fsdp_utils.train_step import Metrics, log_prob_pass, logprob_pass_with_entropy, optimizer_step
from slime.backends.fsdp_utils.weights import full_weights
from slime.backends.trainer.dtypes import DTYPES
from slime.backends.trainer.hf_folder import export_hf
from slime.backends.trainer.postprocess import postprocess
from slime.backends.trainer.rollout_data import RolloutShard
from slime.exceptions import CheckpointError
from slime.utils.misc import load_function
from slime.weight_sync.broadcast import BroadcastWeightSync

logger = logging.getLogger(__name__)

# Per-token streams whose means are logged; the first only with --kl-coef, without which it is all zero.
_DESCRIBED = (
    *("kl", "advantages", "returns", "values", "entropy"),
    *("log_probs", "ref_log_probs", "rollout_log_probs", "teacher_log_probs"),
)


class FSDPTrainActor(TrainRank):
    """See the module. Call ``init`` first."""

    def __init__(self, world_size: int, rank: int, master_addr: str, master_port: int) -> None:
        super().__init__(world_size, rank, master_addr, master_port)
        self._reference: PolicyModel | None = None
        self._sync: BroadcastWeightSync | None = None
        self._data: RolloutShard | None = None
        self.weight_version = 0
        self._changed_since_push = False

    @property
    def policy(self) -> PolicyModel:
        """The model that is trained."""
        return self.model

    # Start and end

    def init(self, args: Namespace) -> int:
        """Build everything, load a checkpoint if there is one to load, and return the first rollout to train on."""
        self._begin(args)
        args = self.args
        if args.loss_type == "custom_loss":
            load_function(args.custom_loss_function_path)  # what is wrong with it shows before the model is read
            group_of_one()
        self._set_model(build_policy(args, self._start_weights(), device=self.device))
        if self._needs_reference() and not args.use_lora:
            self._reference = build_policy(
                args, args.ref_load or args.hf_checkpoint, device=self.device, trainable=False
            )
        self._seed()
        start = self._load_checkpoint()
        self._sync = BroadcastWeightSync(args, device=self.device, address=self._master[0])
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
            rollout_id: whose data it is.
            shard: the data, or a Ray reference to it.
            values: what each rank of the critic gave for the rollout, or references; empty without a critic.

        Returns:
            With a critic, the returns of this rank's samples by their position in the rollout.
        """
        self._rollout_id = rollout_id
        with self._timed("train"):
            self._data = data = RolloutShard(fetch(shard))
            if values:
                data.set_from_positions("values", [fetch(part) for part in values])
            if self.args.compute_advantages_and_returns and self.args.loss_type != "sft_loss":
                self._prepare(data)
            postprocess(self.args, rollout_id, data)
            if self.args.save_debug_train_data:
                data.dump(self.args.save_debug_train_data.format(rollout_id=rollout_id, rank=self.rank))
        return data.by_position("returns") if values else {}

    def step(self, rollout_id: int, learn: bool = True) -> dict[str, Any] | None:
        """Take the optimizer steps of the data that :meth:`prepare` took; without ``learn`` only describe them.

        Returns:
            The metrics on rank 0 (means over the steps), None elsewhere.
        """
        data, self._data = self._data, None
        assert data is not None, "call prepare first"
        if self.args.reset_optimizer_states:
            self.optimizer.state.clear()
        steps = []
        with self._timed("train"), self._timed("actor_train"):
            for number in range(len(data.micro_batches) if learn else 0):
                metrics = optimizer_step(
                    self.args, self.policy, self.optimizer, self.schedule, data, number, self.device
                )
                self._changed_since_push |= not metrics["skipped_steps"]
                steps.append(metrics)
        if self._reference is not None and moving_reference.is_due(rollout_id, self.args.ref_update_interval):
            moving_reference.follow(self._reference, self.policy)
        rollout = self._describe(data)
        if self.rank != 0:
            return None
        return {f"train/{name}": value for name, value in mean_of_steps(steps).items()} | rollout | self._take_seconds()

    def _prepare(self, data: RolloutShard) -> None:
        """Old and reference log probabilities, then advantages."""
        if self.args.use_rollout_logprobs:
            if "rollout_log_probs" not in data.fields:
                raise ValueError("--use-rollout-logprobs needs rollout_log_probs on every sample")
            data.set_computed("log_probs", data.fields["rollout_log_probs"])
        else:
            with self._timed("log_probs"):
                log_probs, entropy = logprob_pass_with_entropy(self.args, self.policy, data, self.device)
                data.set_computed("log_probs", log_probs)
                if self.args.use_rollout_entropy:
                    data.set_computed("entropy", entropy)
        if self._needs_reference():
            with self._timed("ref_log_probs"):
                data.set_computed("ref_log_probs", self._reference_log_probs(data))
        advantages, returns = compute_advantages(self.args, data.fields, _sum_over_ranks)
        data.set_computed("advantages", advantages)
        data.set_computed("returns", returns)

    def _reference_log_probs(self, data: RolloutShard) -> list[torch.Tensor]:
        if self._reference is not None:
            return log_prob_pass(self.args, self._reference, data, self.device)
        with adapters_off(self.policy):
            return log_prob_pass(self.args, self.policy, data, self.device)

    def _describe(self, data: RolloutShard) -> Metrics:
        """Token-weighted means of the per-token streams and the token count, over all ranks."""
        sums: dict[str, list[float]] = {"tokens": [float(sum(data.fields["total_lengths"])), 1.0]}
        for name in _DESCRIBED if self.args.kl_coef else _DESCRIBED[1:]:
            total, count = 0.0, 0.0
            for values, mask in zip(data.fields.get(name, []), data.fields["loss_masks"], strict=False):
                if values is not None:
                    total += float((values * mask).sum())
                    count += float(mask.sum())
            sums[name] = [total, count]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, sums)
        result = {}
        for name in sums:
            total, count = (sum(rank[name][part] for rank in gathered) for part in (0, 1))
            if name == "tokens":
                result["train/tokens"] = total
            elif count:
                result[f"rollout/{name}"] = total / count
        return result

    # Weights

    def connect_rollout_engines(self, engine_handles: list[Any]) -> None:
        """Build the weight update group of rank 0 and the engines; again after an engine was started again."""
        assert self._sync is not None
        self._sync.connect(engine_handles)

    def update_weights(self) -> str:
        """Make the current weights live on the engines and return their version."""
        assert self._sync is not None
        version = self._next_version()
        with self._timed("update_weights"):
            self._sync.push(self._weights(), str(version))
        self.weight_version, self._changed_since_push = version, False
        logger.info("weights %d are live, %.3f s", version, self._seconds["update_weights"])
        return str(version)

    def _next_version(self) -> int:
        return self.weight_version + int(self._changed_since_push)

    # Checkpoints

    def save(self, rollout_id: int) -> str:
        """Write a checkpoint that contains the step of ``rollout_id`` and return its folder."""
        if not self.args.save:
            raise CheckpointError("there is nowhere to save to: add --save DIR")
        root, iteration = Path(self.args.save), rollout_id + 1
        with self._timed("save_model"):
            folder = checkpoint.save(root, iteration, self.policy, self.optimizer, self._meta(rollout_id))
            if self.args.use_lora:
                export_adapter(self.args, self.policy, folder / "adapter", device=self.device)
            if self._reference is not None and self.args.ref_update_interval is not None:
                moving_reference.save(self._reference, folder)
            if self.args.save_hf:
                self.save_hf(self.args.save_hf.format(rollout_id=rollout_id))
            if self.rank == 0:
                checkpoint.publish(root, iteration, self.args.save_keep)
            dist.barrier()
        return str(folder)

    def save_hf(self, path: str) -> None:
        """Write a Hugging Face checkpoint folder with the current weights, LoRA merged."""
        export_hf(self._weights(), Path(self.args.hf_checkpoint), Path(path), dtype=DTYPES[self.args.train_dtype])

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return full_weights(self.policy, dtype=DTYPES[self.args.train_dtype], device=self.device)

    def _meta(self, rollout_id: int) -> dict[str, Any]:
        return self._common_meta(rollout_id) | {"weight_version": self._next_version()}

    def _load_checkpoint(self) -> int:
        """Load what --resume or --load names and return the rollout to start with."""
        args = self.args
        root = args.save if args.resume else args.load
        folder = checkpoint.find(Path(root)) if root else None
        if folder is None:
            if args.resume:
                raise CheckpointError(f"--resume found no checkpoint in {root}: start without --resume")
            if args.load and self._start_weights() != args.load:
                logger.warning("--load %s holds no checkpoint yet: starting from %s", args.load, self._start_weights())
            return args.start_rollout_id or 0
        meta = self._restore(folder)
        if self._reference is not None and args.ref_update_interval is not None:
            moving_reference.load(self._reference, folder)
        self.weight_version = int(meta["weight_version"])
        return int(meta["rollout_id"]) + 1 if args.start_rollout_id is None else args.start_rollout_id


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    total = values.clone()
    dist.all_reduce(total)
    return total
