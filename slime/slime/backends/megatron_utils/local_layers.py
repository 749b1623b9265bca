"""Plain torch layers for Megatron's model without Transformer Engine: norm and packed attention.

Combined with Megatron's own column and row parallel linears they give a model that runs on any device, takes packed
sequences, and supports sequence parallelism.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from slime.backends.megatron_utils.context_parallel import joined_chunks
from slime.backends.megatron_utils.parallel import groups


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
        found = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale
        )
        return found[0].transpose(0, 1)


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
