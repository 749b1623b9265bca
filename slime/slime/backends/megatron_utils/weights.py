"""Whole weights under Hugging Face names, one parameter at a time, and LoRA on Megatron's parallel linears.

A weight is cast before it is gathered, which gives the same bits with fewer bytes. Weights of a LoRA run are gathered
and merged in their own type and cast last, so the sum is rounded once.

Guarantees: names, shapes and values are those of the original checkpoint, without vocabulary padding, without a tied LM
head, and with LoRA merged into a copy. Every rank sees the same names in the same order, so gathering is safe as a
collective. At most one parameter is whole at a time, plus a LoRA run's adapters of one pipeline stage.

LoRA is plain torch, with adapters named after the Hugging Face modules: ``y = W x + alpha / r * B A x`` (Hu et al. 2021), with A and B in float32 and W frozen. A linear that combines several
Hugging Face modules has an A and a B for each. Tensor-parallel ranks split an adapter like its linear: a column
parallel one (query, key and value; gate and up) splits the rows of B, a row parallel one (output, down) the columns of
A. The other half is whole on every rank. Ranks exchange the hidden values ``A x``: r numbers per token.

Guarantees: any number of ranks starts with the same adapter. The base never changes. A part that is whole on every rank
has the same gradient there or, with sequence parallelism, one that Megatron sums (``sequence_parallel``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.backends.megatron_utils.config import Shape
from slime.backends.megatron_utils.load_hf import first_layer, from_megatron, recipe
from slime.backends.megatron_utils.parallel import groups
from slime.backends.trainer.trainable import MergedChange, first_lora_a, merged_weight, target_modules

# The Hugging Face modules that make up a linear, in output order.
_COLUMN = {
    "self_attention.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj"),
}
_ROW = {"self_attention.linear_proj": ("self_attn.o_proj",), "mlp.linear_fc2": ("mlp.down_proj",)}


class LinearLora(nn.Module):
    """The adapters of one Megatron linear.

    Attributes:
        prefix: prefix of a module's name in the Hugging Face checkpoint.
        targets: the Hugging Face modules with an adapter.
        is_row: whether the linear is row parallel.
        scale: ``alpha / r``.
        enabled: False while the model is its frozen base.
    """

    def __init__(self, args: Arguments, linear: Any, prefix: str, modules: tuple[str, ...], shape: Shape) -> None:
        super().__init__()
        self.prefix, self.scale, self.enabled = prefix, args.lora_alpha / args.lora_rank, True
        self.is_row = len(modules) == 1
        self._sequence_parallel = linear.config.sequence_parallel
        self._groups = shape.groups // groups().get_tensor_model_parallel_world_size() if len(modules) == 3 else 1
        rows, inner = linear.weight.shape
        heads = shape.heads // shape.groups
        shares = {1: (1,), 2: (1, 1), 3: (heads, 1, 1)}[len(modules)]
        self._rows = {name: rows * share // sum(shares) for name, share in zip(modules, shares, strict=True)}
        self.targets = [name for name in modules if name.rpartition(".")[2] in target_modules(args)]
        self.lora_A, self.lora_B = nn.ParameterDict(), nn.ParameterDict()
        for name in self.targets:
            key, device = name.rpartition(".")[2], linear.weight.device
            self.lora_A[key] = self._parameter((args.lora_rank, inner), device, split=1 if self.is_row else None)
            self.lora_B[key] = self._parameter(
                (self._rows[name], args.lora_rank), device, split=None if self.is_row else 0
            )
        self.begin(args.seed)

    def _parameter(self, size: tuple[int, int], device: torch.device, *, split: int | None) -> nn.Parameter:
        from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes

        parameter: Any = nn.Parameter(torch.zeros(size, device=device))
        if split is None:
            parameter.sequence_parallel = self._sequence_parallel
        else:
            set_tensor_model_parallel_attributes(parameter, True, split, 1)
        return parameter

    def pair(self, name: str) -> tuple[nn.Parameter, nn.Parameter]:
        """Return this rank's A and B of the Hugging Face module ``name``."""
        key = name.rpartition(".")[2]
        return self.lora_A[key], self.lora_B[key]

    @torch.no_grad()
    def begin(self, seed: int) -> None:
        """Set the values as PEFT begins them: A uniform like a linear layer's weight, drawn from ``seed``, B zero."""
        for name in self.targets:
            own_a, own_b = self.pair(name)
            rank, inner = own_a.shape
            whole = inner * (groups().get_tensor_model_parallel_world_size() if self.is_row else 1)
            self.put(name, first_lora_a((rank, whole), seed, f"{self.prefix}{name}"), None)
            own_b.zero_()

    @torch.no_grad()
    def put(self, name: str, lora_a: Tensor, lora_b: Tensor | None) -> None:
        """Set this rank's part of the adapter ``name`` from whole values; None leaves B unchanged."""
        rank, size = groups().get_tensor_model_parallel_rank(), groups().get_tensor_model_parallel_world_size()
        own_a, own_b = self.pair(name)
        own_a.copy_(lora_a.chunk(size, dim=1)[rank] if self.is_row else lora_a)
        if lora_b is not None:
            own_b.copy_(lora_b if self.is_row else lora_b.chunk(size)[rank])

    def forward(self, x: Tensor) -> Tensor:
        """Return the addition to this rank's output of the linear for this rank's input ``x``."""
        from megatron.core import tensor_parallel as tp

        pairs = {name: self.pair(name) for name in self.targets}
        hidden = nn.functional.linear(x.float(), torch.cat([lora_a for lora_a, _ in pairs.values()]))
        if self.is_row:
            summed = tp.reduce_scatter_to_sequence_parallel_region if self._sequence_parallel else _reduce
            hidden = summed(hidden)
        elif self._sequence_parallel:
            hidden = tp.gather_from_sequence_parallel_region(hidden)
        else:
            hidden = tp.copy_to_tensor_model_parallel_region(hidden)
        of_module = dict(zip(pairs, hidden.chunk(len(pairs), dim=-1), strict=True))
        outputs = [
            nn.functional.linear(of_module[name], pairs[name][1])
            if name in pairs
            else hidden.new_zeros(*hidden.shape[:-1], rows)
            for name, rows in self._rows.items()
        ]
        grouped = [output.unflatten(-1, (self._groups, -1)) for output in outputs]
        return self.scale * torch.cat(grouped, dim=-1).flatten(-2)

    def sharded_state_dict(self, prefix: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return the adapters in the form of Megatron's checkpoints."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        state = self.state_dict(keep_vars=True)
        axes = {
            name: 1 if self.is_row else 0 for name in state if name.startswith("lora_A" if self.is_row else "lora_B")
        }
        tensor_group = groups().get_tensor_model_parallel_group()
        return make_sharded_tensors_for_checkpoint(
            state, prefix, axes, tp_group=tensor_group, dp_cp_group=metadata["dp_cp_group"]
        )


def _reduce(values: Tensor) -> Tensor:
    from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region

    return reduce_from_tensor_model_parallel_region(values)


class Adapters(nn.ModuleDict):
    """All adapters of a pipeline stage, by Megatron's name of the linear with the whole model's layer index."""

    def linears(self) -> Iterator[LinearLora]:
        """Yield the adapters of each linear, layer by layer."""
        for linear in self.values():
            assert isinstance(linear, LinearLora)
            yield linear

    def sharded_state_dict(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return all adapters in the form of Megatron's checkpoints."""
        parts = [
            linear.sharded_state_dict(f"{name}.", metadata) for name, linear in zip(self, self.linears(), strict=True)
        ]
        return {key: value for part in parts for key, value in part.items()}


def add_adapters(args: Arguments, model: Any, shape: Shape) -> None:
    """Freeze the unwrapped stage ``model`` and give it ``adapters`` that add to its linears' outputs.

    Raises:
        ConfigError: the model's linears are not Megatron's own.
    """
    model.requires_grad_(False)
    adapters = Adapters()
    for number, layer in enumerate(model.decoder.layers, start=first_layer(model)):
        for name, modules in (_COLUMN | _ROW).items():
            linear = _own_linear(layer, name)
            lora = LinearLora(args, linear, f"model.layers.{number}.", modules, shape)
            if lora.targets:
                adapters[f"{number}_{name.replace('.', '_')}"] = lora
                linear.register_forward_hook(_adding(lora))
    model.adapters = adapters
    if model.pre_process:  # recomputation needs an input that requires a gradient, but the embedding is frozen
        model.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _own_linear(layer: nn.Module, name: str) -> Any:
    """Return linear ``name``; refuse Transformer Engine's, whose fused norm would give an adapter the unnormed input."""
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    linear = layer.get_submodule(name)
    if not isinstance(linear, ColumnParallelLinear | RowParallelLinear):
        raise ConfigError(
            f"--use-lora: {name} of this model is a {type(linear).__name__}, not one of Megatron's own linears; "
            "remove --spec and --custom-model-provider-path, or use --transformer-impl local layers in them"
        )
    return linear


def _adding(lora: LinearLora) -> Any:
    def hook(linear: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any] | None:
        if not lora.enabled:
            return None
        return output[0] + lora(inputs[0]).to(output[0].dtype), output[1]

    return hook


def adapters_of(model: Any) -> Adapters | None:
    """Return the adapters of the unwrapped ``model``, or None if all its weights are trained."""
    return getattr(model, "adapters", None)


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """Run the block with the frozen base of the unwrapped ``model``: the reference policy of a LoRA run."""
    linears = list(model.adapters.linears())
    for linear in linears:
        linear.enabled = False
    try:
        yield
    finally:
        for linear in linears:
            linear.enabled = True


Of = Callable[[Tensor], Tensor]


def _gathered(value: Tensor, group: Any) -> list[Tensor]:
    """Return ``value`` of every rank of ``group``, in order."""
    size = dist.get_world_size(group)
    if size == 1:
        return [value]
    parts = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts


def _stage_adapters(model: Any, of: Of) -> Iterator[tuple[str, float, Tensor, Tensor]]:
    """Yield module, scale and whole A and B of this stage's adapters; collective over tensor-parallel ranks."""
    group = groups().get_tensor_model_parallel_group()
    for linear in model.adapters.linears():
        for name in linear.targets:
            lora_a, lora_b = (of(side) for side in linear.pair(name))
            if linear.is_row:
                lora_a = torch.cat(_gathered(lora_a, group), dim=1)
            else:
                lora_b = torch.cat(_gathered(lora_b, group))
            yield linear.prefix + name, linear.scale, lora_a, lora_b


def _merged_stage(model: Any, shape: Shape, of: Of, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of :func:`_stage_weights` with adapters merged and rounded to ``dtype``, float32 without one."""
    change = MergedChange()
    adapters = {f"{name}.weight": (a, b, scale) for name, scale, a, b in _stage_adapters(model, of)}
    for name, value in _stage_weights(model, shape, of):
        if name in adapters:
            value = change.rounded(value, merged_weight(value, *adapters[name]), dtype or torch.float32)
        yield name, value
    change.log(dtype or torch.float32)


def _stage_weights(model: Any, shape: Shape, of: Of) -> Iterator[tuple[str, Tensor]]:
    """Yield this stage's Hugging Face tensors; collective over tensor and expert parallel ranks."""
    for name, parameter in model.named_parameters():
        if (name == "output_layer.weight" and shape.tied) or name.startswith("adapters."):
            continue
        value, layer = of(parameter), first_layer(model)
        if not recipe(name, shape).is_expert:
            recipes = recipe(name, shape, first_layer=layer)
            parts = _gathered(value, groups().get_tensor_model_parallel_group())
            yield from zip(recipes.names, from_megatron(recipes.kind, parts, shape), strict=True)
            continue
        parts = _gathered(value, groups().get_expert_tensor_parallel_group())
        ranks = groups().get_expert_model_parallel_world_size()
        recipes = [
            recipe(name, shape, first_layer=layer, first_expert=r * (shape.experts // ranks)) for r in range(ranks)
        ]
        whole = from_megatron(recipes[0].kind, parts, shape)
        owned = [_gathered(tensor, groups().get_expert_model_parallel_group()) for tensor in whole]
        for rank, one in enumerate(recipes):
            yield from zip(one.names, [tensors[rank] for tensors in owned], strict=True)


@torch.no_grad()
def full_weights(
    model: Any, shape: Shape, *, dtype: torch.dtype | None = None, of: Of = torch.Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, tensor)`` of every weight of the unwrapped ``model``, cast to ``dtype``; collective over all ranks.

    ``of`` selects another tensor of each parameter, of the same shape. The iterator must be exhausted.
    """
    if adapters_of(model) is not None:
        yield from _of_all_stages(model, lambda: _merged_stage(model, shape, of, dtype), dtype)
        return

    def cast(parameter: Tensor) -> Tensor:
        value = of(parameter)
        return value.to(dtype or value.dtype)

    yield from _of_all_stages(model, lambda: _stage_weights(model, shape, cast), dtype)


def begin_adapters(model: Any, seed: int) -> None:
    """Set all adapters of the unwrapped ``model`` to their first values, see `LinearLora.begin`."""
    for linear in model.adapters.linears():
        linear.begin(seed)


@torch.no_grad()
def adapter_weights(model: Any, *, of: Of = torch.Tensor.detach) -> dict[str, Tensor]:
    """Return the adapters of the unwrapped ``model`` under PEFT's file names, whole, on the CPU; collective over all ranks."""

    def stage() -> Iterator[tuple[str, Tensor]]:
        for name, _, lora_a, lora_b in _stage_adapters(model, of):
            yield f"base_model.model.{name}.lora_A.weight", lora_a
            yield f"base_model.model.{name}.lora_B.weight", lora_b

    return {name: value.cpu() for name, value in _of_all_stages(model, stage, None)}


def _of_all_stages(
    model: Any, stage_tensors: Callable[[], Iterator[tuple[str, Tensor]]], dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``stage_tensors`` of each pipeline stage in turn, cast to ``dtype``; collective over all ranks."""
    group = groups().get_pipeline_model_parallel_group()
    mine = groups().get_pipeline_model_parallel_rank()
    for stage in range(dist.get_world_size(group)):
        if dist.get_world_size(group) == 1:
            for name, tensor in stage_tensors():
                yield name, tensor.to(dtype or tensor.dtype)
            continue
        source = dist.get_global_rank(group, stage)
        device = next(model.parameters()).device
        own = stage_tensors() if stage == mine else iter(())
        while True:
            item = next(own, None) if stage == mine else None
            header = [None if item is None else (item[0], item[1].shape, dtype or item[1].dtype)]
            dist.broadcast_object_list(header, src=source, group=group)
            if header[0] is None:
                break
            name, size, kind = header[0]
            tensor = torch.empty(size, dtype=kind, device=device) if item is None else item[1].to(kind).contiguous()
            dist.broadcast(tensor, src=source, group=group)
            yield name, tensor
