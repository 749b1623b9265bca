"""Flags of the model's shape: each is compared with the checkpoint's ``config.json``, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.model_shape import MODEL_SHAPE
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

# What config.json says of a mixture of experts, and the flag that repeats it.
NUMBERS = {
    "--num-layers": ("num_hidden_layers", 36),
    "--hidden-size": ("hidden_size", 2560),
    "--ffn-hidden-size": ("intermediate_size", 9728),
    "--num-attention-heads": ("num_attention_heads", 32),
    "--num-query-groups": ("num_key_value_heads", 8),
    "--kv-channels": ("head_dim", 128),
    "--rotary-base": ("rope_theta", 5000000),
    "--rotary-percent": ("partial_rotary_factor", 0.25),
    "--norm-epsilon": ("rms_norm_eps", 1e-6),
    "--vocab-size": ("vocab_size", 151936),
    "--num-experts": ("num_experts", 128),
    "--moe-ffn-hidden-size": ("moe_intermediate_size", 768),
    "--moe-router-topk": ("num_experts_per_tok", 8),
}
# A flag that a description of the model needs, and the model whose description it belongs to.
SWITCHES = {
    "--swiglu": {},
    "--group-query-attention": {},
    "--use-rotary-position-embeddings": {},
    "--qk-layernorm": {},
    "--untie-embeddings-and-output-weights": {"tie_word_embeddings": False},
    "--add-qkv-bias": {"model_type": "qwen2"},
    "--attention-output-gate": {"model_type": "qwen3_5_text"},
}
# Flags that are wrong for every model that is trained here, and what makes them so.
CONTRADICTIONS = {
    "--normalization LayerNorm": ({}, "--normalization LayerNorm does not fit"),
    "--disable-bias-linear": ({"mlp_bias": True}, "remove --disable-bias-linear: mlp_bias is True"),
}
DESCRIPTION = (
    "--num-layers 36 --swiglu --group-query-attention --use-rotary-position-embeddings --normalization RMSNorm"
)


def command(folder: Path, words: str, **config: object) -> list[str]:
    model = config_only(folder / "model", **config)
    start = f"--hf-checkpoint {model} --rollout-batch-size 4 --num-rollout 1 --device cpu --train-backend"
    # Megatron takes experts, FSDP2 the rest
    return [*start.split(), "megatron" if "num_experts" in config else "fsdp", *words.split()]


def described(flag: str, config: dict[str, object]) -> tuple[list[str], list[str]]:
    """The switches that a full description of ``config`` has besides ``flag``, and all of them."""
    kind = str(config.get("model_type", "qwen3"))
    own = {"qwen2": ["--add-qkv-bias"], "qwen3": ["--qk-layernorm"]}
    others = own.get(kind, ["--qk-layernorm", "--attention-output-gate", "--no-pack-sequences"])
    untied = ["--untie-embeddings-and-output-weights"] if config.get("tie_word_embeddings") is False else []
    words = [*DESCRIPTION.split(), *others, *untied]
    return [word for word in words if word != flag], words


def test_the_tables_hold_every_flag_of_the_shape() -> None:
    named = {*NUMBERS, *SWITCHES, *(words.split()[0] for words in CONTRADICTIONS)}
    assert named == {option.flag for option in MODEL_SHAPE.options}


@pytest.mark.parametrize("flag", NUMBERS)
def test_a_number_is_the_checkpoints(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, value = NUMBERS[flag]
    config: dict[str, object] = {key: value}
    switches = "" if flag != "--num-layers" else f"{DESCRIPTION} --qk-layernorm"
    assert parse_args(command(tmp_path, f"{switches} {flag} {value}", **config)).hf_checkpoint
    wrong = value / 2 if isinstance(value, float) else value + 2
    text = refusal(capsys, command(tmp_path, f"{switches} {flag} {wrong}", **config))
    assert f"{flag} {wrong:g} does not fit" in text
    assert f"whose config says {value:g}" in text


@pytest.mark.parametrize("flag", SWITCHES)
def test_a_switch_belongs_to_the_description_or_not(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SWITCHES[flag]
    without, whole = described(flag, config)
    assert parse_args(command(tmp_path, " ".join(whole), **config)).num_layers == 36
    assert f"add {flag}: " in refusal(capsys, command(tmp_path, " ".join(without), **config))


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_what_no_model_here_has_is_refused(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, says = CONTRADICTIONS[words]
    switches = [*DESCRIPTION.split(), "--qk-layernorm"]
    assert says in refusal(capsys, command(tmp_path, " ".join([*switches, words]), **config))
