"""A training rank for models that programs train: one base, and an adapter, optimizer and gradient for each model.

One model at a time is in the rank's model and optimizer; the others are in host memory. All that belongs to a model moves
together: adapter, moments, step counts, and the gradient that has added up since its last step. So what one program does
depends on no other, bit for bit. An adapter of a lower rank than the server's, or of fewer layers, is the server's with zeros
where it has none (`slime.backends.fsdp_utils.model.begin_adapters`), which a step leaves zero.

All methods are collective over the ranks. A rank passes over its part of the data; FSDP averages gradients over ranks, so a loss
is multiplied by their number. What arrives here has been checked: a rank that raises would leave the others in a collective.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from slime.args import Arguments
from slime.backends.fsdp_utils.backend import FSDPPolicy, start_moments
from slime.backends.fsdp_utils.model import ADAPTER, begin_adapters, lora_layers
from slime.backends.trainer.host_memory import Changing, HostCopy
from slime.backends.trainer.micro_batch import MicroBatch, build, to_cpu, to_device
from slime.backends.trainer.rank import TrainRank
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.trainable import check_same_adapters, put_adapter, shape_of_adapters
from slime.checkpoints.all_ranks import on_all_ranks, on_rank_zero
from slime.clients.losses import token_losses
from slime.clients.models import ALPHA, AdamSettings, Datum, ModelPlan, Passed
from slime.exceptions import CheckpointError
from slime.logprobs.response_rows import ResponseRows
from slime.rollout.train_data import micro_batches_of_ranks
from slime.utils.hf_checkpoint import DTYPES
from slime.weight_sync.requests import cast

STATE = "model.json"
"""What a folder of a model says of it."""


class ClientRank(TrainRank[FSDPPolicy]):
    """A rank of all programs' models."""

    role = "policy"

    def init(self, args: Arguments) -> int:
        """Build the base with an adapter that no model has yet; return the size of the vocabulary."""
        self._begin(args)
        assert self.memory is not None
        schedule = Schedule(self.args.changed(lr_decay_style="constant", lr_warmup_fraction=None), None)
        start = str(self.args.hf_checkpoint)
        self.backend = FSDPPolicy(self.args, start, self.device, schedule, self.memory.value)
        self.process.seed(self.args)
        self._trained = [value for value in self.backend.model.parameters() if value.requires_grad]
        start_moments(self.backend.optimizer)
        for parameter in self._trained:
            parameter.grad = torch.zeros_like(parameter)
        self._layers = lora_layers(self.backend.model.hf)
        self._plans: dict[str, ModelPlan] = {}
        self._away: dict[str, HostCopy] = {}
        self._here: str | None = None
        self._begun = HostCopy(self.device)
        self._begun.take(self._changing())
        return int(self.backend.model.hf.config.get_text_config().vocab_size)

    def shutdown(self) -> None:
        """Leave the process groups."""
        for copy in (*self._away.values(), self._begun):
            copy.close()
        super().shutdown()

    # Models

    def create(self, model: str, plan: ModelPlan) -> None:
        """Begin a model as exactly the base."""
        self._let_out()
        self._begun.put(self._changing())
        begin_adapters(self.backend.model, plan.seed, rank=plan.rank, modules=plan.modules)
        self._plans[model] = plan
        self._let_in(model)

    def drop(self, model: str) -> None:
        """Forget a model; a no-op if there is none."""
        self._plans.pop(model, None)
        if model == self._here:
            self._here = None
        if (copy := self._away.pop(model, None)) is not None:
            copy.close()

    def _take(self, model: str) -> None:
        """Put a model into the rank's."""
        if model == self._here:
            return
        self._let_out()
        copy = self._away.pop(model)
        copy.put(self._changing())
        copy.close()
        self._let_in(model)

    def _let_out(self) -> None:
        if self._here is None:
            return
        copy = self._away[self._here] = HostCopy(self.device)
        copy.take(self._changing())
        self._here = None

    def _let_in(self, model: str) -> None:
        self._here = model
        for layer in self._layers.values():
            layer.scaling[ADAPTER] = ALPHA / self._plans[model].rank

    def _changing(self) -> Changing:
        """Return all that belongs to a model: what a step changes, and the gradients."""
        everything = self.backend.changing()
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        return everything._replace(others=[*everything.others, *gradients])

    # Steps

    def forward_backward(self, model: str, data: Sequence[Datum], loss: str, forward_only: bool) -> Passed:
        """Add the gradient of a loss on ``data``, unless ``forward_only``; the result is whole on rank 0.

        ``data`` have all inputs of the loss (`slime.clients.models.complete`).
        """
        self._take(model)
        lengths = [len(datum.tokens) + 1 for datum in data]  # see `_inputs`
        ranks = self.process.world_size
        batches = micro_batches_of_ranks(range(len(data)), lengths, ranks, self.args)[self.rank]
        found: dict[int, Tensor] = {}
        total = torch.zeros((), dtype=torch.float64)
        with torch.set_grad_enabled(not forward_only):
            for indices in batches:
                inputs = self._inputs([data[index] for index in indices])
                log_probs = self._log_probs(inputs)
                if inputs.is_filler:
                    of_batch = log_probs.sum() * 0.0
                else:
                    values = self._values([data[index] for index in indices])
                    of_batch = token_losses(loss, log_probs, values).sum()
                    found |= dict(zip(indices, inputs.per_sample(log_probs.detach()), strict=True))
                    total += of_batch.detach().double().cpu()
                if not forward_only:
                    (of_batch * ranks).backward()
        mine = {index: value.float().numpy() for index, value in to_cpu(found).items()}
        parts: list[Any] = [None] * ranks
        dist.all_gather_object(parts, (mine, float(total)))
        if self.rank:
            return Passed([], 0.0)
        whole = {index: values for there, _ in parts for index, values in there.items()}
        return Passed([whole[index] for index in range(len(data))], math.fsum(part for _, part in parts))

    def _inputs(self, data: Sequence[Datum]) -> MicroBatch:
        """Return the model input whose rows are all tokens of ``data``, with the targets of ``data``."""
        # A token that nothing reads follows, because rows are those before a response's tokens.
        inputs = build(
            [[*datum.tokens.tolist(), 0] for datum in data],
            [len(datum.tokens) for datum in data],
            packed=self.args.pack_sequences,
            device=self.device,
        )
        if inputs.is_filler:
            return inputs
        targets = torch.from_numpy(np.concatenate([datum.targets for datum in data]).astype(np.int64))
        bounds = (int(targets.min()), int(targets.max()))
        return replace(inputs, targets=to_device([targets], self.device)[0], target_range=bounds)

    def _values(self, data: Sequence[Datum]) -> dict[str, Tensor]:
        names = list(data[0].inputs)
        joined = [torch.from_numpy(np.concatenate([datum.inputs[name] for datum in data])) for name in names]
        return dict(zip(names, to_device(joined, self.device), strict=True))

    def _log_probs(self, inputs: MicroBatch) -> Tensor:
        def of_rows(rows: ResponseRows) -> Tensor:
            ids, bounds = inputs.targets, inputs.target_range
            return rows.log_probs(ids, temperature=1.0, with_entropy=False, id_range=bounds)[0]

        return self.backend.model(inputs, temperature=1.0, chunk_size=self.args.log_probs_chunk_size, of_rows=of_rows)

    def optimizer_step(self, model: str, adam: AdamSettings) -> float:
        """Take a step with the gradient so far, and return its norm before clipping.

        A norm that is not finite takes no step. The gradient is zero afterwards in either case.
        """
        self._take(model)
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if math.isfinite(float(norm)):
            if adam.clip > 0:
                torch.nn.utils.clip_grads_with_norm_(self._trained, adam.clip, norm)
            for group in self.backend.optimizer.param_groups:
                group.update(
                    lr=adam.learning_rate,
                    betas=(adam.beta1, adam.beta2),
                    eps=adam.eps,
                    weight_decay=adam.weight_decay,
                )
            self.backend.optimizer.step()
        self.backend.optimizer.zero_grad(set_to_none=False)
        return float(norm)

    def drop_gradient(self, model: str) -> None:
        """Forget the gradient so far."""
        self._take(model)
        self.backend.optimizer.zero_grad(set_to_none=False)

    # Folders

    def write(self, model: str, folder: str) -> None:
        """Write all that belongs to a model into the existing ``folder``."""
        self._take(model)
        place, copy = Path(folder), HostCopy(self.device)
        copy.take(self._changing())
        on_all_ranks(lambda: copy.write(_training_file(place, self.rank)))
        copy.close()
        meta = {
            "plan": self._plans[model].as_json(),
            "adapters": shape_of_adapters(self.args),
            "world_size": self.process.world_size,
            "hf_checkpoint": str(self.args.hf_checkpoint),
        }

        def note() -> None:
            (place / STATE).write_text(json.dumps(meta, indent=2))

        on_rank_zero(note)

    def read(self, model: str, folder: str, what: str = "everything") -> ModelPlan:
        """Begin a model as what :meth:`write` wrote, and return its plan.

        Args:
            model: a new one.
            folder: that was written.
            what: ``everything``; ``training`` for no gradient; ``weights`` for no gradient and no moments.

        Raises:
            CheckpointError: the folder cannot be read, or is of other adapters or another number of ranks.
        """
        place, copy, found = Path(folder), HostCopy(self.device), dict[str, Any]()

        def load() -> None:
            found.update(_meta(place))
            check_same_adapters(self.args, found)
            if (then := found["hf_checkpoint"]) != str(self.args.hf_checkpoint):
                raise CheckpointError(f"{place} is of the base {then}: start the server with --hf-checkpoint {then}")
            if found["world_size"] != self.process.world_size:
                raise CheckpointError(f"{place} is of {found['world_size']} training ranks: use as many")
            copy.read(_training_file(place, self.rank))

        on_all_ranks(load)
        self._let_out()
        self.drop(model)
        copy.put(self._changing())
        copy.close()
        if what != "everything":
            self.backend.optimizer.zero_grad(set_to_none=False)
        if what == "weights":
            for state in self.backend.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self._plans[model] = plan = ModelPlan.of_json(found["plan"])
        self._let_in(model)
        return plan

    def export(self, model: str, folder: str) -> None:
        """Write a model's adapter into the existing ``folder``, as PEFT reads it, in ``--train-dtype``."""
        self._take(model)
        plan = self._plans[model]
        weights = dict(cast(self.backend.pushed_weights(), DTYPES[self.args.train_dtype]))

        def part(name: str, value: Tensor) -> Tensor:
            return (value[: plan.rank] if ".lora_A." in name else value[:, : plan.rank]).cpu().contiguous()

        tensors = {name: part(name, value) for name, value in weights.items() if _layer(name) in plan.modules}
        args = self.args.changed(lora_rank=plan.rank, lora_alpha=ALPHA, lora_target_modules=list(plan.modules))
        on_rank_zero(lambda: put_adapter(args, tensors, Path(folder)))


def _layer(name: str) -> str:
    """Return the name of the linear layer of a tensor in PEFT's file."""
    return name.partition(".lora_")[0].rpartition(".")[2]


def _training_file(folder: Path, rank: int) -> Path:
    return folder / f"training{f'-{rank}' if rank else ''}.safetensors"


def _meta(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
