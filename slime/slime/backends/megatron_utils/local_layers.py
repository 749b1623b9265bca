"""Layers of plain torch for Megatron's model where Transformer Engine is not used: norm and packed attention.

With Megatron's own column and row parallel linears they give a model that runs on any device, takes packed sequences, and
knows sequence parallelism.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Norm(nn.RMSNorm):
    """RMSNorm (Zhang & Sennrich 2019) whose gradient Megatron sums over the ranks that split the sequence."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]


class PackedAttention(nn.Module):
    """Causal attention inside each sample of a pack, one call of PyTorch's scaled dot product attention per sample."""

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
        """Return ``[T, H D]`` for ``query`` ``[T, H, D]`` and ``key``, ``value`` ``[T, G, D]``."""
        ends = packed_seq_params.cu_seqlens_q
        lengths = (ends[1:] - ends[:-1]).tolist()
        key, value = (tensor.repeat_interleave(self.repeats, dim=1) for tensor in (key, value))
        pieces = [tensor.transpose(0, 1).split(lengths, dim=1) for tensor in (query, key, value)]
        outputs = [
            nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=self.scale)[0]
            for q, k, v in zip(*pieces, strict=True)
        ]
        return torch.cat(outputs, dim=1).transpose(0, 1).flatten(1)


def local_layer_spec(config: Any) -> Any:
    """Return the specification of a decoder layer made of these and Megatron's parallel linears."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    if config.num_moe_experts:
        from megatron.core.transformer.moe import moe_utils

        # Megatron-core 0.16.1 asks for this name, which it defines with Transformer Engine only.
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
