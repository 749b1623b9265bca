"""The roundings of SGLang's CUDA kernels on a dense Qwen3, in plain torch: what an engine's rounding alone does, without an engine.

Where transformers rounds more often: a norm is rounded once, and reads the sum of the residual stream before that is rounded; rotary
tables and rotation are float32; SwiGLU is rounded once (sglang-kernel 0.4: ``fused_add_rmsnorm``, ``rotary_embedding``,
``silu_and_mul``). Products and attention are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.parity_parts.errors import of_hidden


def _norm(x: Tensor, norm: Any, dtype: torch.dtype) -> Tensor:
    x = x.float()
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return (x * scale * norm.weight.float()).to(dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)


def _attention(attention: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads = (*x.shape[:2], -1, attention.head_dim)
    query, key, value = (product(x).view(heads) for product in (attention.q_proj, attention.k_proj, attention.v_proj))
    query = _rotated(_norm(query, attention.q_norm, x.dtype).transpose(1, 2), cos, sin)
    key = _rotated(_norm(key, attention.k_norm, x.dtype).transpose(1, 2), cos, sin)
    out = nn.functional.scaled_dot_product_attention(
        query, key, value.transpose(1, 2), is_causal=True, scale=attention.scaling, enable_gqa=True
    )
    return attention.o_proj(out.transpose(1, 2).flatten(2))


def _hidden(base: Any, tokens: Tensor) -> Tensor:
    stream = base.embed_tokens(tokens)
    dtype, exact = stream.dtype, stream.float()
    angles = torch.arange(tokens.size(1), device=tokens.device).float().outer(base.rotary_emb.inv_freq.float())
    cos, sin = angles.cos(), angles.sin()

    def added(more: Tensor) -> tuple[Tensor, Tensor]:
        total = stream.float() + more.float()
        return total.to(dtype), total

    for layer in base.layers:
        stream, exact = added(_attention(layer.self_attn, _norm(exact, layer.input_layernorm, dtype), cos, sin))
        x, mlp = _norm(exact, layer.post_attention_layernorm, dtype), layer.mlp
        inner = (nn.functional.silu(mlp.gate_proj(x).float()) * mlp.up_proj(x).float()).to(dtype)
        stream, exact = added(mlp.down_proj(inner))
    return _norm(exact, base.norm, dtype)


@torch.no_grad()
def log_probs(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Tensor:
    """Return the log probabilities ``[len(ids)]`` of ``ids`` after ``prompt`` by the Qwen3 ``model``, float32, on the CPU."""
    tokens = torch.tensor([[*prompt, *ids]], device=model.device)
    return of_hidden(model, _hidden(model.base_model, tokens), len(prompt), tokens, temperature)
