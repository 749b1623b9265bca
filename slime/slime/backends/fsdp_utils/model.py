"""The policy, a Hugging Face causal language model that returns log probabilities, and how to build and shard it (FSDP2).

Guarantees: only rank 0 reads the checkpoint into memory and sends the others their shards. Every value, including
non-persistent buffers, equals the checkpoint's on every rank. Master weights are float32; frozen base weights of a LoRA
run have the compute dtype. The training rank owns the parameters.

Images: one fills exactly as many placeholder tokens as it has merged patches, directly after a start token, so a
placeholder that the policy itself sampled stays a token. Positions are the model's own, per sample (three axes, Wang et
al., "Qwen2-VL", 2024). A micro-batch without images still runs the tower, on one blank image of weight zero, because all
ranks gather the tower's shards together.

LoRA adapters live in the modules, injected with PEFT. The base weights are frozen and never change, not even by merging.

Whole weights, under Hugging Face names, come one at a time, in the same order on every rank, so gathering is safe as a
collective; a tied LM head appears once, as the embedding. A weight is cast before it is gathered, which gives the same bits with
fewer bytes, because a cast is elementwise. One that needs no gathering is left to who packs it, which casts many in one launch. Weights with an adapter are gathered and merged in float32, into a copy, and cast last,
so the sum is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from groundwork.exceptions import ConfigError
from groundwork.processors import without_own_code
from slime.args import Arguments
from slime.arguments.model_shape import VISION_LANGUAGE_TYPES
from slime.backends.fsdp_utils.attention import PACKED, attention_arguments, check_heads_of_cudnn, resolve_attention
from slime.backends.fsdp_utils.layers import compile_layers, set_checkpointing, use_liger
from slime.backends.fsdp_utils.one_rank import compute_in
from slime.backends.trainer.micro_batch import Images, MicroBatch
from slime.backends.trainer.trainable import (
    MergedChange,
    choose_trainable,
    first_lora_a,
    lora_config,
    merged_weight,
    write_adapter,
)
from slime.checkpoints.all_ranks import on_rank_zero
from slime.logprobs.response_rows import HeadPairs, Kernel, ResponseRows, kernel_on
from slime.utils.hf_checkpoint import DTYPES
from slime.utils.nf4 import Nf4Linear, quantise_layers, whole

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer


def has_tower(base: nn.Module) -> bool:
    """Return whether ``base`` is a language model with a vision tower."""
    return hasattr(base, "visual") and hasattr(base, "language_model")


def text_layers(base: Any) -> list[nn.Module]:
    """Return the decoder layers of a language model, with or without a tower."""
    return list(base.language_model.layers if has_tower(base) else base.layers)


def tower_blocks(base: Any) -> list[nn.Module]:
    """Return the blocks of the vision tower, if any."""
    return list(base.visual.blocks) if has_tower(base) else []


def vision_hidden_states(base: Any, batch: MicroBatch, attention: dict[str, Any]) -> Tensor:
    """Return the last hidden states of ``batch``, which has ``images``, in its input's shape plus the width.

    ``attention`` are the language model's keyword arguments for packed samples.

    Raises:
        ValueError: the model has no vision tower, or an image has no place in its sample's tokens.
    """
    assert batch.images is not None
    if not has_tower(base):
        raise ValueError(
            f"a sample has images, but {type(base).__name__} has no vision tower; use a vision-language model"
        )
    kinds = [token_kinds(base.config, *sample) for sample in zip(batch.images.tokens, batch.images.grids, strict=True)]
    features, deep = _features(base, batch.images, batch.input_ids.device)
    embeddings = base.get_input_embeddings()(batch.input_ids)
    arguments: dict[str, Any] = {"position_ids": _positions(base, batch, kinds).to(batch.input_ids.device)}
    if batch.images.pixels is None:
        nothing = sum((part.sum() for part in deep), features.sum()) * 0.0
        embeddings = embeddings + nothing.to(embeddings.dtype)
    else:
        places = _laid_out(batch, kinds).to(batch.input_ids.device) == 1
        embeddings = embeddings.masked_scatter(places.unsqueeze(-1), features.to(embeddings.dtype))
        arguments |= {"visual_pos_masks": places, "deepstack_visual_embeds": deep}
    output = base.language_model(inputs_embeds=embeddings, use_cache=False, **arguments, **attention)
    return output.last_hidden_state


def token_kinds(config: Any, tokens: Sequence[int], grids: Tensor) -> Tensor:
    """Return ``[L]``: 1 for tokens that are part of an image, 0 for all others.

    Raises:
        ValueError: an image of ``grids`` is missing or out of order.
    """
    merged = config.vision_config.spatial_merge_size**2
    start, part = config.vision_start_token_id, config.image_token_id
    sizes = (grids.prod(dim=-1) // merged).tolist()
    starts = iter([place for place, token in enumerate(tokens) if token == start] if sizes else [])
    kinds = torch.zeros(len(tokens), dtype=torch.int64)
    for number, size in enumerate(sizes, start=1):
        first = next((at + 1 for at in starts if list(tokens[at + 1 : at + 1 + size]) == [part] * size), None)
        if first is None:
            raise ValueError(
                f"image {number} of {len(sizes)} of a sample has no place: there are no {size} tokens {part} behind a "
                f"token {start} for it"
            )
        kinds[first : first + size] = 1
    return kinds


def _features(base: Any, images: Images, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Run the tower; return ``[merged patches, H]`` for the embeddings and for each DeepStack text layer."""
    if images.pixels is None:
        vision = base.config.vision_config
        side = vision.spatial_merge_size
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels, grids = torch.zeros(side * side, width, device=device), torch.tensor([[1, side, side]], device=device)
    else:
        pixels, grids = images.pixels, torch.cat(images.grids).to(device)
    image_features = base.get_image_features(pixels, grids, return_dict=True)
    return torch.cat(image_features.pooler_output), [torch.cat(part) for part in image_features.deepstack_features]


def _positions(base: Any, batch: MicroBatch, kinds: Sequence[Tensor]) -> Tensor:
    """Return ``[4, 1, T]`` for a pack, the first axis restarting at every sample; ``[3, B, L]`` for padded samples."""
    assert batch.images is not None
    samples = []
    for ids, kind, grids in zip(batch.images.tokens, kinds, batch.images.grids, strict=True):
        positions = torch.arange(len(ids)).expand(3, -1)
        if len(grids):
            positions = base.get_rope_index(torch.tensor([ids]), kind[None], image_grid_thw=grids)[0][:, 0]
        samples.append(positions)
    if batch.position_ids is None:
        return torch.stack([_laid_out(batch, [sample[axis] for sample in samples]) for axis in range(3)])
    return torch.cat([batch.position_ids.cpu(), torch.cat(samples, dim=1)]).unsqueeze(1)


def _laid_out(batch: MicroBatch, values: Sequence[Tensor]) -> Tensor:
    """Return per-token values in the input's shape, zero at padding."""
    result = torch.zeros(batch.input_ids.shape, dtype=torch.int64)
    result.view(-1)[batch.token_rows.cpu()] = torch.cat(list(values))
    return result


ADAPTER = "default"


def add_adapters(args: Arguments, model: nn.Module) -> None:
    """Freeze ``model`` and inject trainable float32 adapters; raise for an unknown target module."""
    from peft import inject_adapter_in_model

    from slime.backends.fsdp_utils.fused_lora import fuse_adapters

    model.requires_grad_(False)
    inject_adapter_in_model(lora_config(args), model, adapter_name=ADAPTER)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    if (args.lora_kernel or ("fused" if args.device == "cuda" else "peft")) == "fused":
        fuse_adapters(model)


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Return the layers with an adapter, by module name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


@torch.no_grad()
def begin_adapters(
    policy: PolicyModel, seed: int, *, rank: int | None = None, modules: Collection[str] | None = None
) -> None:
    """Set the adapters as PEFT begins them, A drawn from ``seed``; the same values on any number of ranks.

    Args:
        policy: has the adapters.
        seed: decides A, with the names of the layers.
        rank: rows of A that are not zero; None: all. A row of zeros gets no gradient, nor does its column of B, so this is an
            adapter of that rank.
        modules: names of the linear layers whose A is not zero; None: all. The others never learn.

    Raises:
        ConfigError: an adapter is not that of a linear layer.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for name, parameter in policy.hf.named_parameters():
        if ".lora_" not in name:
            continue
        if f".lora_A.{ADAPTER}." in name:
            whole = first_lora_a(parameter.shape, seed, name)
            layer = name.partition(".lora_A.")[0].rpartition(".")[2]
            kept = 0 if modules is not None and layer not in modules else len(whole) if rank is None else rank
            whole[kept:] = 0.0
        elif f".lora_B.{ADAPTER}." in name:
            whole = torch.zeros(parameter.shape)
        else:
            raise ConfigError(
                f"{name} has an adapter that cannot begin again; use --lora-target-modules of linear layers"
            )
        local: Any = parameter
        if isinstance(parameter, DTensor):
            shape, start = compute_local_shape_and_global_offset(
                parameter.shape, parameter.device_mesh, parameter.placements
            )
            whole = whole[tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))]
            local = parameter.to_local()
        local.copy_(whole)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Run the block with the frozen base model: the reference policy of a LoRA run."""
    layers = list(lora_layers(model).values())
    for layer in layers:
        layer._disable_adapters = True  # the public switch also changes requires_grad, which FSDP must not see
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def head_pairs(lm_head: Any, hidden: Tensor) -> HeadPairs:
    """Return inputs ``[N, H_i]`` and weights ``[V, H_i]`` whose logits ``sum_i x_i W_i^T`` are ``lm_head(hidden)``.

    Raises:
        TypeError: the head is not a linear layer.
    """
    with_adapter = hasattr(lm_head, "lora_A")
    linear = lm_head.get_base_layer() if with_adapter else lm_head
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"the LM head is a {type(linear).__name__}; only models with a linear head can be trained here")
    pairs = [(hidden, linear.weight)]
    if linear.bias is not None:
        pairs.append((hidden.new_ones(len(hidden), 1), linear.bias.unsqueeze(-1)))
    if with_adapter and not lm_head.disable_adapters:
        for name in lm_head.active_adapters:
            down, up = lm_head.lora_A[name], lm_head.lora_B[name]
            dropped: Any = lm_head.lora_dropout[name]
            rows = dropped(hidden.to(down.weight.dtype))
            pairs.append((down(rows) * lm_head.scaling[name], up.weight))
    return pairs


# Configuration fields that change logits after the LM head; models that use them need support here first.
_LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """Backbone, LM head and log probabilities in one forward, so that FSDP sees one root."""

    def __init__(self, hf: Any, implementation: str, kernel: Kernel | None = None) -> None:
        super().__init__()
        self.hf = hf
        self.implementation = implementation
        self.kernel: Kernel | None = kernel

    def forward(
        self,
        batch: MicroBatch,
        *,
        temperature: float,
        chunk_size: int,
        want_logits: bool = False,
        of_rows: Callable[[ResponseRows], Any] | None = None,
    ) -> Any:
        """Return log probabilities and entropies ``[N]`` of response rows, float32 logits ``[1, T, V]``, or ``of_rows``' result.

        The logits cover all real tokens, sample after sample, without the temperature. They are not a view, which FSDP
        warns about. ``of_rows`` runs inside this forward pass, where FSDP has gathered the head's weights.
        """
        hidden = hidden_states(self.hf, self.implementation, batch)
        lm_head = self.hf.get_output_embeddings()
        if want_logits:
            return lm_head(hidden[batch.token_rows].unsqueeze(0)).float()
        rows = ResponseRows(head_pairs(lm_head, hidden[batch.rows]), chunk_size, kernel=self.kernel)
        if of_rows:
            return of_rows(rows)
        return rows.log_probs(batch.targets, temperature=temperature, id_range=batch.target_range)

    def next_ids(self, input_ids: Tensor, mask: Tensor, position_ids: Tensor, cache: Any, chunk_size: int) -> Tensor:
        """Return the most likely next token ``[B]`` of each row and extend ``cache``; a second forward for FSDP.

        Args:
            input_ids: ``[B, L]`` new tokens.
            mask: ``[B, K + L]``, 0 where the ``K`` cached or the new tokens are padding.
            position_ids: ``[B, L]`` of the new tokens.
            cache: keys and values of the ``K`` tokens before.
            chunk_size: as for :meth:`forward`.
        """
        arguments = {"input_ids": input_ids, "attention_mask": mask, "position_ids": position_ids}
        hidden = self.hf.base_model(**arguments, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        pairs = head_pairs(self.hf.get_output_embeddings(), hidden)
        return ResponseRows(pairs, chunk_size, kernel=self.kernel).most_likely()


def hidden_states(hf: Any, implementation: str, batch: MicroBatch) -> Tensor:
    """Return the last hidden states ``[T, H]`` of the flattened input of ``batch``."""
    arguments: dict[str, Any] = {}
    if batch.position_ids is not None:
        arguments = attention_arguments(implementation, batch.sequence_lengths, batch.input_ids.device)
    if batch.images is not None:
        hidden = vision_hidden_states(hf.base_model, batch, arguments)
    else:
        arguments |= {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
        hidden = hf.base_model(**arguments).last_hidden_state
    return hidden.reshape(-1, hidden.size(-1))


def build_policy(args: Arguments, path: str, *, device: torch.device, trainable: bool = True) -> PolicyModel:
    """Return the sharded model of checkpoint folder ``path``; collective over all ranks.

    With ``args.use_lora`` and ``trainable`` it has adapters. ``trainable=False`` gives a frozen reference.
    """
    from transformers import AutoModelForCausalLM

    with_lora = trainable and args.use_lora
    dtype = DTYPES[args.train_dtype] if with_lora or not trainable else torch.float32
    kernel = kernel_on(device, args.logprob_kernel)

    def construct(empty: bool) -> PolicyModel:
        hf, implementation = load_hf(args, path, AutoModelForCausalLM, dtype, empty=empty)
        if with_lora and args.base_quantization == "nf4":
            quantise_layers(text_layers(hf.base_model), device)
        if with_lora:
            add_adapters(args, hf)
        choose_trainable(args, hf)
        hf.tie_weights()
        if args.gradient_checkpointing:
            set_checkpointing(args, hf, text_layers(hf.base_model))
        return PolicyModel(hf, implementation, kernel)

    policy = sharded(args, construct, device=device, trainable=trainable)
    register_fsdp_forward_method(policy, "next_ids")
    return policy


def load_hf(args: Arguments, path: str, auto_class: Any, dtype: torch.dtype, *, empty: bool) -> tuple[Any, str]:
    """Return the unsharded model of ``path`` and its attention name; if ``empty``, on the meta device without weights.

    ``auto_class`` is one of transformers' ``AutoModel`` classes. A causal language model includes its checkpoint's
    vision tower if that is trained (``VISION_LANGUAGE_TYPES``).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    with without_own_code(path) as own_code:
        config = AutoConfig.from_pretrained(path, **own_code)
    text_config = config.get_text_config()
    changed = [name for name in _LOGIT_CHANGES if getattr(text_config, name, None)]
    if changed:
        raise ValueError(
            f"{path}: the model changes its logits by {', '.join(changed)}, which is not supported; use another model"
        )
    implementation = resolve_attention(
        args.attn_implementation, args.pack_sequences, getattr(text_config, "layer_types", None)
    )
    if args.attn_implementation == "cudnn":
        check_heads_of_cudnn(text_config)
    attention: Any = implementation
    if config.model_type in VISION_LANGUAGE_TYPES:
        auto_class = AutoModelForImageTextToText if auto_class is AutoModelForCausalLM else auto_class
        attention = {"text_config": implementation, "vision_config": _of_tower(args.attn_implementation)}
    if args.fused_kernels == "liger":
        use_liger(config.model_type)
    if empty:
        with torch.device("meta"):
            hf = auto_class.from_config(config, dtype=dtype, attn_implementation=attention)
    else:
        with without_own_code(path) as own_code:
            hf = auto_class.from_pretrained(path, dtype=dtype, attn_implementation=attention, **own_code)
    if args.fused_kernels == "compile":
        compile_layers(text_layers(hf.base_model))
    return hf, implementation


def _of_tower(implementation: str) -> str:
    """Return the attention of a vision tower, whose images are no packed samples."""
    return "sdpa" if implementation in PACKED else implementation


def sharded(
    args: Arguments, construct: Callable[[bool], Any], *, device: torch.device, trainable: bool, head: str | None = None
) -> Any:
    """Return the model from ``construct(empty)``, sharded over all ranks; collective.

    The model holds its transformers model in ``hf``. Its module ``head``, if given, computes in float32.
    """
    torch.manual_seed(args.seed)
    if dist.get_world_size() == 1:
        return _shard(args, construct(False).to(device), device, trainable, head)
    source = construct(False) if dist.get_rank() == 0 else None
    model = _shard(args, construct(True), device, trainable, head)
    model.to_empty(device=torch.device("cpu") if args.fsdp_cpu_offload else device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, source.state_dict() if source is not None else {}, options=options)
    _broadcast_buffers(model, source, device)
    return model


def _shard(args: Arguments, model: Any, device: torch.device, trainable: bool, head: str | None) -> Any:
    """Freeze a reference, then shard each decoder layer, each block of a vision tower, and the rest.

    A single rank skips FSDP2, which would only copy weights and gradients in each pass. Its weights are copied once, out of
    the checkpoint file's memory map, which cannot be released.
    """
    if not trainable:
        model.requires_grad_(False)
    compute_dtype = DTYPES[args.train_dtype]
    if dist.get_world_size() == 1 and not args.fsdp_cpu_offload:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        if compute_dtype != torch.float32:
            blocks = [*text_layers(model.hf.base_model), *tower_blocks(model.hf.base_model)]
            exact = model.get_submodule(head) if head is not None else None
            methods = [name for name in ("next_ids",) if hasattr(model, name)]
            compute_in(model, compute_dtype, blocks, exact=exact, methods=methods)
        return model.train(trainable)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy()
    if compute_dtype != torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if args.fsdp_cpu_offload else OffloadPolicy()
    for block in text_layers(model.hf.base_model):
        fully_shard(block, mesh=mesh, mp_policy=precision, offload_policy=offload)
    as_they_are = replace(precision, cast_forward_inputs=False)  # the tower's rotary angles stay float32
    for block in tower_blocks(model.hf.base_model):
        fully_shard(block, mesh=mesh, mp_policy=as_they_are, offload_policy=offload)
    if head is not None:
        exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        fully_shard(model.get_submodule(head), mesh=mesh, mp_policy=exact, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload)
    return model.train(trainable)


def _broadcast_buffers(model: nn.Module, source: nn.Module | None, device: torch.device) -> None:
    """Broadcast the buffers of rank 0's ``source``, because ``to_empty`` leaves garbage in rotary frequencies."""
    originals = dict(source.named_buffers()) if source is not None else {}
    for name, buffer in model.named_buffers():
        value = buffer.data.to(device)
        if source is not None:
            value.copy_(originals[name])
        dist.broadcast(value, src=0)
        buffer.data = value


# Whole weights


Of = Callable[[Tensor], Tensor]


def gather(parameter: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the whole tensor of a shard on ``device``, cast to ``dtype`` before gathering; collective.

    A tensor that is whole already comes as it is.
    """
    value = parameter.detach().to(device)
    if not isinstance(value, DTensor):
        return value
    shard: Any = value.to(dtype or value.dtype)
    return shard.full_tensor()


def full_weights(
    policy: PolicyModel, *, dtype: torch.dtype, device: torch.device, of: Of = torch.Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, tensor)`` of every weight, LoRA merged; collective, must be exhausted.

    What is gathered or merged is cast to ``dtype``; a weight that this rank has whole comes as it is. ``of`` returns the value of a parameter's shard. If rounding loses much of what adapters changed, a warning says so.
    """
    adapters = lora_layers(policy.hf)
    change = MergedChange() if adapters else None
    parameters = dict(policy.hf.named_parameters())
    packed = {f"{name}.weight": module for name, module in policy.hf.named_modules() if isinstance(module, Nf4Linear)}
    for name, parameter in parameters.items():
        if ".lora_" in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        merged = owner in adapters and owner != name
        value = gather(of(parameter), device, None if merged or name in packed else dtype)
        if name in packed:
            value = whole(value, packed[name].shape, torch.float32)
        if merged and change is not None:
            sides = (parameters[f"{owner}.lora_{side}.{ADAPTER}.weight"] for side in "AB")
            lora_a, lora_b = (gather(of(side), device) for side in sides)
            merged_value = merged_weight(value, lora_a, lora_b, adapters[owner].scaling[ADAPTER])
            value = change.rounded(value, merged_value, dtype)
        yield name.replace(".base_layer.", "."), value
    if change is not None:
        change.log(dtype)


def adapter_weights(policy: PolicyModel, *, device: torch.device, of: Of = torch.Tensor.detach) -> dict[str, Tensor]:
    """Return the adapter tensors under PEFT's file names, on the CPU; collective. ``of`` returns a shard's value."""
    return {
        "base_model.model." + name.replace(f".{ADAPTER}.", "."): gather(of(parameter), device).cpu()
        for name, parameter in policy.hf.named_parameters()
        if ".lora_" in name
    }


def export_adapter(args: Arguments, policy: PolicyModel, path: Path, *, device: torch.device) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them."""
    tensors = adapter_weights(policy, device=device)
    on_rank_zero(lambda: write_adapter(args, tensors, path))
