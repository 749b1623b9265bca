"""Build Megatron's ``TransformerConfig`` from a checkpoint's ``config.json`` and the arguments.

``slime.arguments.model_shape`` has already checked the model-shape flags against the checkpoint, so only the checkpoint
is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.model_shape import number_of_experts
from slime.utils import model_config
from slime.utils.hf_checkpoint import DTYPES

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

MODEL_TYPES = ("qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True)
class Shape:
    """Model dimensions that weight conversion needs.

    Attributes:
        heads: query heads.
        groups: key/value heads.
        head_dim: size of a head.
        vocab_size: rows of the embedding in the checkpoint.
        tied: whether the LM head is the embedding.
        experts: number of experts; 0 for a dense model.
    """

    model_type: str
    layers: int
    heads: int
    groups: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    tied: bool
    experts: int = 0


def read_config(path: str | Path) -> dict[str, Any]:
    """Return ``config.json`` of a checkpoint that Megatron can train.

    Raises:
        CheckpointError: the file is missing or damaged.
        ConfigError: Megatron cannot train this kind of model here.
    """
    config = model_config.read_config(Path(path))
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ConfigError(
            f"{path}: --train-backend megatron trains {', '.join(MODEL_TYPES)}, not {kind}; use --train-backend fsdp"
        )
    if config.get("use_sliding_window"):
        raise ConfigError(f"{path}: sliding windows are not supported with megatron; use --train-backend fsdp")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(f"{path}: scaled RoPE is not supported with megatron; use --train-backend fsdp")
    if kind == "qwen3_moe" and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        raise ConfigError(
            f"{path}: mixed dense and expert layers are not supported with --train-backend megatron; use a model whose layers are all alike"
        )
    return config


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the shape that ``config.json`` describes."""
    heads = config["num_attention_heads"]
    return Shape(
        model_type=config["model_type"],
        layers=config["num_hidden_layers"],
        heads=heads,
        groups=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=number_of_experts(config) or 0,
    )


def padded_vocab_size(vocab_size: int, tensor_parallel: int) -> int:
    """Return Megatron's embedding rows, a multiple of the tensor-parallel size; added rows are zero and never predicted."""
    return -(-vocab_size // tensor_parallel) * tensor_parallel


def rope_theta(config: dict[str, Any]) -> float:
    """Return the base of the rotary frequencies."""
    return config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)


def transformer_config(args: Arguments, config: dict[str, Any], dtype: torch.dtype | None = None) -> TransformerConfig:
    """Return Megatron's configuration; ``dtype`` of the weights defaults to ``--train-dtype``."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    shape = shape_of(config)
    dtype = dtype or DTYPES[args.train_dtype]
    cuda = args.device == "cuda"
    engine = args.transformer_impl == "transformer_engine"
    values: dict[str, Any] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_dim,
        "ffn_hidden_size": config["intermediate_size"],
        "normalization": "RMSNorm",
        "layernorm_epsilon": config["rms_norm_eps"],
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": shape.model_type == "qwen2",
        "qk_layernorm": shape.model_type.startswith("qwen3"),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "tensor_model_parallel_size": args.tensor_model_parallel_size,
        "pipeline_model_parallel_size": args.pipeline_model_parallel_size,
        "context_parallel_size": args.context_parallel_size,
        "expert_model_parallel_size": args.expert_model_parallel_size,
        "expert_tensor_parallel_size": args.expert_tensor_parallel_size or args.tensor_model_parallel_size,
        "sequence_parallel": args.sequence_parallel and args.tensor_model_parallel_size > 1,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        # The "alltoall" dispatcher needs CUDA streams; on a CPU every rank gathers all tokens.
        "moe_token_dispatcher_type": "alltoall" if cuda or not shape.experts else "allgather",
        "use_cpu_initialization": not cuda,
        "recompute_granularity": args.recompute_granularity,
        "recompute_method": args.recompute_method,
        "recompute_num_layers": args.recompute_num_layers,
        # Fused kernels need Transformer Engine or Apex.
        "gradient_accumulation_fusion": False,
        "bias_activation_fusion": engine,
        "bias_dropout_fusion": engine,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": engine,
        "persist_layer_norm": False,
        "batch_p2p_sync": cuda,
    }
    if shape.experts:
        values |= {
            "num_moe_experts": shape.experts,
            "moe_ffn_hidden_size": config["moe_intermediate_size"],
            "moe_router_topk": config["num_experts_per_tok"],
            # Softmax over the chosen experts equals the softmax over all, divided by its sum over the chosen.
            "moe_router_pre_softmax": not config.get("norm_topk_prob", False),
            "moe_router_load_balancing_type": "none",
            "moe_router_dtype": "fp32",
            "moe_grouped_gemm": engine,
        }
    if engine:
        from megatron.core.transformer.enums import AttnBackend

        values["attention_backend"] = AttnBackend[args.attention_backend]
    result = TransformerConfig(**values)
    # Set after construction, which refuses it with "allgather"; our schedule gives the ranks equal lengths.
    result.variable_seq_lengths = args.pipeline_model_parallel_size > 1
    return result
