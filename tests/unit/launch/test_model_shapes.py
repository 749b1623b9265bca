"""The files in ``slime/scripts/models`` against transformers' configuration classes and published parameter counts."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen3_5Config, Qwen3Config, Qwen3MoeConfig, Qwen3VLConfig

from slime.args import Arguments
from slime.arguments.model_shape import MODEL_SHAPE, check_model_shape, check_trainable
from slime.arguments.parser import build_parser

FOLDER = Path(__file__).resolve().parents[3] / "slime" / "scripts" / "models"
SHAPES = sorted(path.stem for path in FOLDER.glob("*.sh"))
# Per family: layers, hidden size, MLP width, query heads, key/value heads, tied.
QWEN2_5 = {
    "0.5B": (24, 896, 4864, 14, 2, True),
    "1.5B": (28, 1536, 8960, 12, 2, True),
    "3B": (36, 2048, 11008, 16, 2, True),
    "7B": (28, 3584, 18944, 28, 4, False),
    "14B": (48, 5120, 13824, 40, 8, False),
    "32B": (64, 5120, 27648, 40, 8, False),
    "72B": (80, 8192, 29568, 64, 8, False),
}
QWEN3 = {
    "0.6B": (28, 1024, 3072, 16, 8, True),
    "1.7B": (28, 2048, 6144, 16, 8, True),
    "4B": (36, 2560, 9728, 32, 8, True),
    "8B": (36, 4096, 12288, 32, 8, False),
    "14B": (40, 5120, 17408, 40, 8, False),
    "32B": (64, 5120, 25600, 64, 8, False),
}
QWEN3_VL = {"2B": QWEN3["1.7B"], "4B": QWEN3["4B"], "8B": QWEN3["8B"], "32B": QWEN3["32B"]}
QWEN3_5 = {
    "0.8B": (24, 1024, 3584, 8, 2, True),
    "2B": (24, 2048, 6144, 8, 2, True),
    "4B": (32, 2560, 9216, 16, 4, True),
    "9B": (32, 4096, 12288, 16, 4, False),
    "27B": (64, 5120, 17408, 24, 4, False),
}
# Parameters as the model pages count them, a tied embedding once.
PUBLISHED = {
    "qwen2.5-0.5B": 494_032_768,
    "qwen2.5-1.5B": 1_543_714_304,
    "qwen2.5-3B": 3_085_938_688,
    "qwen2.5-7B": 7_615_616_512,
    "qwen2.5-14B": 14_770_033_664,
    "qwen2.5-32B": 32_763_876_352,
    "qwen2.5-72B": 72_706_203_648,
    "qwen3-0.6B": 596_049_920,
    "qwen3-1.7B": 1_720_574_976,
    "qwen3-4B": 4_022_468_096,
    "qwen3-8B": 8_190_735_360,
    "qwen3-14B": 14_768_307_200,
    "qwen3-32B": 32_762_123_264,
    "qwen3-30B-A3B": 30_532_122_624,
}


def rope(theta: float, **more: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}, "rms_norm_eps": 1e-6}


def numbers(row: tuple[int, int, int, int, int, bool]) -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return dict(zip(names, row[:5], strict=True)) | {"tie_word_embeddings": row[5]}


@cache
def hf_config(shape: str) -> dict[str, Any]:
    """Return ``config.json`` of a shape, as transformers writes it."""
    family, _, size = shape.partition("-")
    if shape.startswith("qwen2.5"):
        big = int(float(size[:-1])) > 7
        vocabulary = 151936 if QWEN2_5[size][5] else 152064
        more = rope(1e6) | {"rms_norm_eps": 1e-5 if big else 1e-6}
        config = Qwen2Config(vocab_size=vocabulary, **numbers(QWEN2_5[size]), **more)
    elif shape == "qwen3-30B-A3B":
        row = numbers((48, 2048, 6144, 32, 4, False))
        experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        config = Qwen3MoeConfig(vocab_size=151936, head_dim=128, **row, **experts, **rope(1e6))
    elif shape.startswith("qwen3-vl"):
        row = QWEN3_VL[size.removeprefix("vl-")]
        text = {"vocab_size": 151936, "head_dim": 128, **numbers(row), **rope(5e6, mrope_section=[24, 20, 20])}
        config = Qwen3VLConfig(text_config=text, tie_word_embeddings=row[5])
    elif family == "qwen3.5":
        row = QWEN3_5[size]
        text = {"vocab_size": 248320, "head_dim": 256, **numbers(row), **rope(1e7, partial_rotary_factor=0.25)}
        config = Qwen3_5Config(text_config=text, tie_word_embeddings=row[5])
    else:
        config = Qwen3Config(vocab_size=151936, head_dim=128, **numbers(QWEN3[size]), **rope(1e6))
    return json.loads(config.to_json_string(use_diff=False))


@cache
def all_flags() -> dict[str, list[str]]:
    """MODEL_ARGS of every file, from one shell."""
    script = 'for f in "$@"; do source "$f"; printf "%s\\0" "$f" "${MODEL_ARGS[@]}"; printf "\\0"; done'
    files = [str(FOLDER / f"{name}.sh") for name in SHAPES]
    command = ["bash", "-euc", script, "bash", *files]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [row.split("\0") for row in output.rstrip("\0").split("\0\0")]
    return {Path(row[0]).stem: row[1:] for row in rows}


@cache
def parsed(shape: str) -> Arguments:
    args, unknown = build_parser().parse_known_args([*all_flags()[shape], "--hf-checkpoint", "model"])
    assert not unknown
    return args


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_agrees_with_the_configuration_class(shape: str) -> None:
    assert check_model_shape(parsed(shape), hf_config(shape)) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_number_in_a_shape_would_be_found(shape: str) -> None:
    flags = all_flags()[shape]
    given = {word.lstrip("-").replace("-", "_") for word in flags if word.startswith("--")}
    for option in MODEL_SHAPE.options:
        name = option.attribute
        if name not in given or name in ("normalization", "disable_bias_linear"):
            continue
        args = parsed(shape).changed()
        setattr(args, name, not getattr(args, name) if option.type is bool else getattr(args, name) * 2)
        problems = check_model_shape(args, hf_config(shape))
        assert any(option.flag in problem for problem in problems), option.flag


def parameters(args: Arguments, vocabulary: int) -> int:
    """Weights of a decoder of this shape: embedding, attention, norms, gated MLP or experts, head."""
    width = args.hidden_size
    head = args.kv_channels or width // args.num_attention_heads
    query, key = head * args.num_attention_heads, head * args.num_query_groups
    attention = 2 * width * query + 2 * width * key
    attention += (query + 2 * key if args.add_qkv_bias else 0) + (2 * head if args.qk_layernorm else 0)
    mlp = 3 * width * args.ffn_hidden_size
    if args.num_experts:
        mlp = args.num_experts * (3 * width * args.moe_ffn_hidden_size + width)
    embeddings = (2 if args.untie_embeddings_and_output_weights else 1) * vocabulary * width
    return embeddings + args.num_layers * (attention + mlp + 2 * width) + width


@pytest.mark.parametrize("shape", sorted(PUBLISHED))
def test_a_shape_has_the_published_number_of_parameters(shape: str) -> None:
    args = parsed(shape)
    assert parameters(args, args.vocab_size) == PUBLISHED[shape]


def test_vision_language_shapes_are_those_of_the_text_models() -> None:
    for size, text in (("2B", "1.7B"), ("4B", "4B"), ("8B", "8B"), ("32B", "32B")):
        vision, plain = vars(parsed(f"qwen3-vl-{size}")), vars(parsed(f"qwen3-{text}"))
        assert {name for name in plain if plain[name] != vision[name]} == {"rotary_base"}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_that_the_back_end_cannot_train_is_refused_by_name(shape: str) -> None:
    args = Arguments(
        train_backend="fsdp", pack_sequences=parsed(shape).pack_sequences, hf_checkpoint="model", multimodal_keys=None
    )
    problems = check_trainable(args, hf_config(shape))
    if shape == "qwen3-30B-A3B":
        assert [problem for problem in problems if "(qwen3_moe) is a mixture of experts" in problem]
    else:
        assert problems == []


@pytest.mark.parametrize(
    ("backend", "kind", "says"),
    [
        ("megatron", "qwen3_vl", ["megatron does not train: add --train-backend fsdp"]),
        ("fsdp", "qwen3_vl", []),
        (
            "fsdp",
            "qwen2_5_vl",
            ["model (qwen2_5_vl) is a vision-language model; of these only qwen3_vl can be trained here"],
        ),
    ],
)
def test_vision_language_models_are_trained_with_fsdp(backend: str, kind: str, says: list[str]) -> None:
    args = Arguments(train_backend=backend, pack_sequences=True, hf_checkpoint="model", multimodal_keys=None)
    problems = check_trainable(args, hf_config("qwen3-vl-8B") | {"model_type": kind})
    assert len(problems) == len(says)
    assert all(text in problem for text, problem in zip(says, problems, strict=True))


@pytest.mark.parametrize(("shape", "problems"), [("qwen3-4B", 1), ("qwen3.5-4B", 1), ("qwen3-vl-8B", 0)])
def test_pictures_need_a_model_that_is_trained_with_its_tower(shape: str, problems: int) -> None:
    keys = {"image": "images"}
    args = Arguments(train_backend="fsdp", pack_sequences=False, hf_checkpoint="model", multimodal_keys=keys)
    refused = check_trainable(args, hf_config(shape))
    assert ["which sees no pictures; remove it" in problem for problem in refused] == [True] * problems


def test_linear_attention_is_not_packed() -> None:
    args = Arguments(train_backend="fsdp", pack_sequences=True, hf_checkpoint="model", multimodal_keys=None)
    assert "add --no-pack-sequences" in check_trainable(args, hf_config("qwen3.5-4B"))[0]
