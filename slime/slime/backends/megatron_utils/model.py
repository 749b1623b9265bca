"""Build this rank's Megatron GPT model, load its weights, and wrap it for data parallelism.

Guarantees: on the last pipeline stage the model returns final hidden states, so no caller holds the logits of a whole
sequence unless it requests them. The model has the checkpoint's weights on every rank.

Without Transformer Engine its norm and packed attention are plain torch. Combined with Megatron's own column and row
parallel linears they give a model that runs on any device, takes packed sequences, and supports sequence parallelism.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slime.args import Arguments
from slime.backends.megatron_utils import parallel
from slime.backends.megatron_utils.config import (
    Shape,
    padded_vocab_size,
    read_config,
    rope_theta,
    shape_of,
    transformer_config,
)
from slime.backends.megatron_utils.context_parallel import joined_chunks
from slime.backends.megatron_utils.load_hf import load_hf_weights
from slime.backends.megatron_utils.parallel import CPU, groups, model_device
from slime.utils.misc import load_function


class Norm(nn.RMSNorm):
    """RMSNorm (Zhang & Sennrich 2019) whose gradient Megatron sums over the ranks that split the sequence."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]


class PackedAttention(nn.Module):
    """Causal attention inside each sample of a pack, by PyTorch's scaled dot product attention.

    Context-parallel ranks gather the keys and values of the pack; each answers the queries of its two chunks of a sample.
    """

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.scale = softmax_scale
        self.repeats = config.num_attention_heads // config.num_query_groups

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Return ``[T, H D]`` for ``query`` ``[T, H, D]`` and ``key``, ``value`` ``[T, G, D]`` of the tokens this rank holds."""
        ends = packed_seq_params.cu_seqlens_q
        ranks = groups().get_context_parallel_world_size()
        held = ((ends[1:] - ends[:-1]) // ranks).tolist()
        queries = query.split(held)
        keys, values = (_of_all_ranks(tensor, ranks).split(held, dim=1) for tensor in (key, value))
        outputs = [
            self._sample(q, joined_chunks(k), joined_chunks(v)) for q, k, v in zip(queries, keys, values, strict=True)
        ]
        return torch.cat(outputs).flatten(1)

    def _sample(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention ``[t, H, D]`` for this rank's queries of a sample with whole keys and values."""
        if len(query) == len(key):
            return self._attend(query, key, value, mask=None)
        rank, ranks = groups().get_context_parallel_rank(), groups().get_context_parallel_world_size()
        chunk = len(query) // 2
        outputs = []
        for place, rows in zip((rank, 2 * ranks - 1 - rank), query.split(chunk), strict=True):
            seen = (place + 1) * chunk
            mask = torch.ones(chunk, seen, dtype=torch.bool, device=query.device).tril(place * chunk)
            outputs.append(self._attend(rows, key[:seen], value[:seen], mask=mask))
        return torch.cat(outputs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None) -> Tensor:
        """Return attention under ``mask`` ``[t, s]``, or causal attention without one."""
        key, value = (tensor.repeat_interleave(self.repeats, dim=1) for tensor in (key, value))
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        result = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale
        )
        return result[0].transpose(0, 1)


def _of_all_ranks(held: Tensor, ranks: int) -> Tensor:
    """Gather ``[n, T, ...]`` from the ``n`` context-parallel ranks; the backward pass sums gradients per owner."""
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    if ranks == 1:
        return held[None]
    group = groups().get_context_parallel_group()
    return gather_from_sequence_parallel_region(held, group=group).unflatten(0, (ranks, -1))


def local_layer_spec(config: Any) -> Any:
    """Return a decoder layer specification of these layers and Megatron's parallel linears."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    if config.num_moe_experts:
        from megatron.core.transformer.moe import moe_utils

        # Megatron-core 0.16.1 reads this name, but defines it only with Transformer Engine.
        if not hasattr(moe_utils, "te_general_gemm"):
            setattr(moe_utils, "te_general_gemm", None)  # noqa: B010  a name that the module does not declare
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    layers: Any = spec.submodules
    layers.input_layernorm = layers.pre_mlp_layernorm = Norm
    attention: Any = layers.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    return spec


# There is no position table, but Megatron requires a number.
_MAX_SEQUENCE_LENGTH = 4096


def layer_spec(args: Arguments, config: Any) -> Any:
    """Return the layer specification: ``--spec``, Transformer Engine's or plain torch's.

    ``--spec MODULE NAME`` is a specification, or a function of ``(args, config, vp_stage)`` that returns one.
    """
    if args.spec:
        function = load_function(".".join(args.spec))
        return function(args, config, None) if callable(function) else function
    if args.transformer_impl == "transformer_engine":
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts,
            moe_grouped_gemm=config.moe_grouped_gemm,
            qk_layernorm=config.qk_layernorm,
        )
    return local_layer_spec(config)


def _block_spec(args: Arguments, config: Any) -> Any:
    """Return this stage's layer specification; without Transformer Engine it has our final norm."""
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

    spec = layer_spec(args, config)
    if args.transformer_impl == "transformer_engine" or isinstance(spec, TransformerBlockSubmodules):
        return spec
    norm: Any = Norm
    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=norm)


def build_model(
    args: Arguments, path: str, *, device: torch.device, dtype: torch.dtype | None = None, lm_head: bool = True
) -> tuple[Any, Any]:
    """Return this stage's model with the weights of the Hugging Face folder ``path``, and its configuration.

    Without ``lm_head`` the last stage has no output layer, and the embedding is not tied.
    """
    from megatron.core.models.gpt.gpt_model import GPTModel

    hf = read_config(path)
    shape = shape_of(hf)
    stage = {
        "pre_process": groups().is_pipeline_first_stage(),
        "post_process": groups().is_pipeline_last_stage(),
    }
    with model_device(device):
        config = transformer_config(args, hf, dtype)
        if args.custom_model_provider_path:
            provider = load_function(args.custom_model_provider_path)
            extra = {"vp_stage": None} if "vp_stage" in inspect.signature(provider).parameters else {}
            model = provider(**stage, **extra)
            config = model.config
        else:
            model = GPTModel(
                config,
                _block_spec(args, config),
                vocab_size=padded_vocab_size(shape.vocab_size, args.tensor_model_parallel_size),
                max_sequence_length=_MAX_SEQUENCE_LENGTH,
                position_embedding_type="rope",
                rotary_base=rope_theta(hf),  # pyright: ignore[reportArgumentType]
                share_embeddings_and_output_weights=shape.tied and lm_head,
                **stage,
            )
        if not lm_head:
            model.share_embeddings_and_output_weights = False  # one of --custom-model-provider-path may be tied
            if model.post_process:
                del model.output_layer
        model = model.to(device)
        load_hf_weights(model, Path(path), shape)
        if config.bf16:
            from megatron.core.transformer.module import Float16Module

            model = Float16Module(config, model)
    unwrapped(model)._postprocess = _hidden_states
    return model, config


def _hidden_states(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def unwrapped(model: Any) -> Any:
    """Return the GPT model inside its wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


def data_parallel(model: nn.Module, config: Any, *, device: torch.device) -> Any:
    """Wrap ``model`` to average gradients over its copies, in one buffer that the optimizer shards."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=True,
        check_for_nan_in_grad=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    with model_device(device):
        return DistributedDataParallel(config, ddp, model)


@contextmanager
def one_rank(path: Path, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, Shape, torch.device]]:
    """Yield the unwrapped model with the weights of Hugging Face folder ``path``, its shape and its device."""
    args = Arguments(train_backend="megatron", device="cpu", transformer_impl="local")
    shape = shape_of(read_config(path))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            parallel.join(args, CPU)
            model, _ = build_model(args, str(path), device=CPU, dtype=dtype)
            yield unwrapped(model), shape, CPU
        finally:
            parallel.leave()
            dist.destroy_process_group()
