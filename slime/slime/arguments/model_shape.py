"""Model-shape flags, as the files in ``slime/scripts/models`` give them.

The trainer builds the model from the checkpoint's config. These flags state what the user expects, and
`check_model_shape` reports where the two disagree. `check_trainable` refuses models that a back end cannot train,
before anything is loaded.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from groundwork.command_line import nearest
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.option import Group, Option, flag_of
from slime.utils.model_config import number_of_experts, text_config

SLIME_FOLDER = Path(__file__).resolve().parents[2]
MODEL_FOLDER = SLIME_FOLDER / "scripts" / "models"

MODEL_SHAPE = Group(
    "model shape (must agree with the checkpoint's config.json)",
    (
        Option("--swiglu", "gated SiLU MLP", bool),
        Option("--num-layers", "decoder layers", int),
        Option("--hidden-size", "model width", int),
        Option("--ffn-hidden-size", "inner width of the MLP, for one half of the gated pair", int),
        Option("--num-attention-heads", "query heads", int),
        Option("--group-query-attention", "fewer key/value heads than query heads", bool),
        Option("--num-query-groups", "key/value heads", int),
        Option("--kv-channels", "head dimension", int),
        Option("--use-rotary-position-embeddings", "RoPE", bool),
        Option("--rotary-base", "RoPE theta", float),
        Option("--disable-bias-linear", "no bias in linear layers", bool),
        Option("--add-qkv-bias", "bias on query, key and value (Qwen2.5)", bool),
        Option("--normalization", "norm type", str, None, ("LayerNorm", "RMSNorm")),
        Option("--norm-epsilon", "epsilon of the norms", float),
        Option("--qk-layernorm", "norm on query and key heads (Qwen3)", bool),
        Option("--vocab-size", "size of the embedding", int),
        Option("--untie-embeddings-and-output-weights", "the LM head does not share the embedding's weights", bool),
        Option("--rotary-percent", "fraction of the head dimension that is rotated", float),
        Option("--attention-output-gate", "gate on the attention's output (Qwen3.5)", bool),
        Option("--num-experts", "experts per layer", int),
        Option("--moe-ffn-hidden-size", "inner width of one expert", int),
        Option("--moe-router-topk", "experts per token", int),
    ),
)


VISION_LANGUAGE_TYPES = ("qwen3_vl",)
"""``model_type`` values whose vision tower ``--train-backend fsdp`` trains with the language model."""

NF4_TYPES = ("qwen2", "qwen3")
"""``model_type`` values whose base trainer and engines hold in NF4, each tested."""


def shape_named(model: str) -> str | None:
    """Return the shape of a model's name in any spelling of its letters, ``qwen3.5-4B`` for ``Qwen/Qwen3.5-4b``; None without one."""
    known = {path.stem.lower(): path.stem for path in MODEL_FOLDER.glob("*.sh")}
    return known.get(model.rpartition("/")[2].lower())


def shape_flags(model: str | None, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return ``MODEL_ARGS`` of ``slime/scripts/models/<model>.sh``, sourced with ``environment``; empty without a model.

    Raises:
        ConfigError: there is no such file; the message names the nearest one and lists them.
    """
    if model is None:
        return ()
    file = MODEL_FOLDER / f"{model}.sh"
    if not file.is_file():
        known = sorted(path.stem for path in MODEL_FOLDER.glob("*.sh"))
        near = nearest(model, known)
        there = f"{near} There are" if near else "; there are"
        raise ConfigError(f"no model shape {model!r} in slime/scripts/models{there}: {', '.join(known)}")
    script = 'set -euo pipefail; source "$1"; printf "%s\\0" "${MODEL_ARGS[@]}"'
    words = ["bash", "-c", script, "bash", str(file)]
    output = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout
    return tuple(output.split("\0")[:-1])


def check_trainable(args: Arguments, config: dict) -> list[str]:
    """Return a line per reason why ``args.train_backend`` cannot train the model of ``config.json``."""
    text, kind = text_config(config), config.get("model_type", "")
    name = f"{args.hf_checkpoint} ({kind})"
    problems = []
    if "vision_config" in config and not kind.startswith("qwen3_5"):
        offered = ", ".join(VISION_LANGUAGE_TYPES)
        if kind not in VISION_LANGUAGE_TYPES:
            problems.append(f"{name} is a vision-language model; of these only {offered} can be trained here")
        elif args.train_backend == "megatron":
            problems.append(
                f"{name} is a vision-language model, which --train-backend megatron does not train: "
                "add --train-backend fsdp"
            )
    elif args.multimodal_keys:
        problems.append(
            f"--multimodal-keys: {name} is trained as a text-only model, which sees no pictures; remove it, or use a "
            f"checkpoint of type {', '.join(VISION_LANGUAGE_TYPES)}"
        )
    if number_of_experts(text) and args.train_backend == "fsdp":
        problems.append(f"{name} is a mixture of experts, which --train-backend fsdp does not train; use a dense model")
    if args.base_quantization == "nf4" and kind not in NF4_TYPES:
        problems.append(
            f"--base-quantization nf4 is for {' and '.join(NF4_TYPES)}, but {name} is another type; remove it"
        )
    if config.get("quantization_config"):
        problems.append(f"{name} is quantised, which no back end here can train; use the bfloat16 checkpoint")
    linear = "linear_attention" in (text.get("layer_types") or []) or kind.startswith("qwen3_5")
    if linear and args.pack_sequences and args.train_backend == "fsdp":
        problems.append(
            f"{name} has linear attention, whose state would leak from one packed sample into the next: "
            "add --no-pack-sequences"
        )
    return problems


def check_model_shape(args: Arguments, config: dict) -> list[str]:
    """Return a line per flag that contradicts ``config.json``; a key that the config lacks is not checked."""
    config = text_config(config)
    heads = config.get("num_attention_heads")
    rotary = config.get("rope_parameters") or {}
    numbers = {
        "num_layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "ffn_hidden_size": config.get("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads", heads),
        "kv_channels": config.get("head_dim"),
        "rotary_base": config.get("rope_theta") or rotary.get("rope_theta"),
        "rotary_percent": config.get("partial_rotary_factor") or rotary.get("partial_rotary_factor"),
        "norm_epsilon": config.get("rms_norm_eps"),
        "vocab_size": config.get("vocab_size"),
        "num_experts": number_of_experts(config),
        "moe_ffn_hidden_size": config.get("moe_intermediate_size"),
        "moe_router_topk": config.get("num_experts_per_tok"),
    }
    where = f"{args.hf_checkpoint}, whose config says"
    problems = [
        f"{flag_of(name)} {getattr(args, name):g} does not fit {where} {value:g}"
        for name, value in numbers.items()
        if getattr(args, name) is not None and value is not None and getattr(args, name) != value
    ]
    if args.normalization == "LayerNorm" and "rms_norm_eps" in config:
        problems.append(f"--normalization LayerNorm does not fit {where} RMSNorm")
    if args.num_layers is None:
        return problems
    return problems + _check_switches(args, config)


def _check_switches(args: Arguments, config: dict) -> list[str]:
    """Check the switches, which count only in a full shape, where a missing switch means "no"."""
    kind = config.get("model_type", "")
    groups, heads = config.get("num_key_value_heads"), config.get("num_attention_heads")
    tied = config.get("tie_word_embeddings", False)
    wanted = {
        "untie_embeddings_and_output_weights": (not tied, f"tie_word_embeddings is {tied}"),
        "swiglu": (config.get("hidden_act", "silu") == "silu", f"hidden_act is {config.get('hidden_act', 'silu')}"),
        "group_query_attention": (None if groups is None else groups != heads, f"{groups} of {heads} heads hold keys"),
        "use_rotary_position_embeddings": (True, "positions are rotary"),
        "qk_layernorm": (kind.startswith("qwen3") if kind else None, f"model_type is {kind}"),
        "attention_output_gate": (kind.startswith("qwen3_5") if kind else None, f"model_type is {kind}"),
        "add_qkv_bias": (kind.startswith("qwen2") if kind else None, f"model_type is {kind}"),
    }
    if args.disable_bias_linear and config.get("mlp_bias"):
        wanted["disable_bias_linear"] = (False, "mlp_bias is True")
    return [
        f"{'add' if value else 'remove'} {flag_of(name)}: {why} in {args.hf_checkpoint}/config.json"
        for name, (value, why) in wanted.items()
        if value is not None and getattr(args, name) != value
    ]
