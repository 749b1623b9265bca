"""Write a Hugging Face checkpoint as one GGUF file, which llama.cpp and programs built on it read.

Guarantees: the file appears whole or not at all, and holds every weight in the type that is asked for; norms and biases are
float32, as llama.cpp wants them. One tensor is in memory at a time. A model or tokenizer whose form is not known for sure is
refused by name, because llama.cpp would load it and answer wrongly. Names of tensors and keys are those of the package ``gguf``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from groundwork.private_files import make_private
from slime.conversion import checks
from slime.conversion.checks import ToolError
from slime.utils.hf_checkpoint import is_tied_head, read_config, read_weights, weight_shapes

ARCHITECTURES = {"Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2, "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3}
"""Classes of Transformers whose weights are those of llama.cpp, tensor by tensor."""
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {QWEN2_SPLIT: "qwen2"}
"""How tokenizers cut a text into pieces, and what llama.cpp calls that."""
TYPES = {
    torch.float32: (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    torch.float16: (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    torch.bfloat16: (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
INSTEAD = "write it --as merged, and convert that folder with llama.cpp's convert_hf_to_gguf.py"


def write_gguf(source: Path, output: Path, *, dtype: str | None = None) -> str:
    """Write the file ``output`` from the checkpoint ``source``, and return a line that describes it.

    Args:
        source: a folder of Transformers with weights in safetensors and a tokenizer.
        output: a new file.
        dtype: type of the matrices; default: that of ``source``.

    Raises:
        ToolError: the model cannot be written, or ``output`` exists.
    """
    config = read_config(source)
    architecture = architecture_of(config)
    split = split_of(source)
    if output.exists():
        raise ToolError(f"{output} exists; name a new file")
    kind, file_type = TYPES[checks.output_dtype(dtype, source)]
    part = output.with_name(f"{output.name}.part")
    writer = gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[architecture])
    try:
        _add_shape(writer, config, file_type)
        _add_tokenizer(writer, source, int(config["vocab_size"]), split)
        names = _names(source, config, architecture)
        for name, shape in weight_shapes(source, names.__contains__).items():
            own = _type_of(shape, kind)
            _, size = gguf.GGML_QUANT_SIZES[own]
            writer.add_tensor_info(names[name], shape, np.dtype(np.float32), math.prod(shape) * size, raw_dtype=own)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        make_private(part)
        for array in checks.progress(_weights(source, names, kind), len(names), "writing"):
            writer.write_tensor_data(array)
        writer.close()
        part.replace(output)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise
    return f"{output}: {len(names)} tensors, {kind.name}, {output.stat().st_size / 1e6:.1f} MB"


def architecture_of(config: dict[str, Any]) -> gguf.MODEL_ARCH:
    """Return llama.cpp's name of a model.

    Raises:
        ToolError: it is none of `ARCHITECTURES`, or has a part that is not known here.
    """
    named = [name for name in config.get("architectures") or [] if name in ARCHITECTURES]
    if not named:
        what = ", ".join(config.get("architectures") or ["no architecture"])
        raise ToolError(f"{what} cannot be written as GGUF here, only {' and '.join(ARCHITECTURES)}; {INSTEAD}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default" or config.get("use_sliding_window"):
        raise ToolError(f"a model with scaled positions or a sliding window cannot be written as GGUF here; {INSTEAD}")
    return ARCHITECTURES[named[0]]


def split_of(source: Path) -> str:
    """Return llama.cpp's name for how the tokenizer in ``source`` cuts a text.

    Raises:
        ToolError: it is no tokenizer whose cuts llama.cpp is known to make.
    """
    try:
        content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolError(
            f"{source} has no tokenizer.json that can be read; copy the tokenizer of its base model"
        ) from error
    before = content.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers") or [before]
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    if content.get("model", {}).get("type") != "BPE" or len(patterns) != 1 or patterns[0] not in SPLITS:
        raise ToolError(f"the tokenizer of {source} cuts words in a way that is not known here; {INSTEAD}")
    return SPLITS[patterns[0]]


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any], file_type: gguf.LlamaFileType) -> None:
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    rope = config.get("rope_parameters") or {}
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads))
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path, size: int, split: str) -> None:
    """Add the ``size`` tokens, their kinds, the merges, the special ids and the chat template."""
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    tokens, kinds = [f"[PAD{number}]" for number in range(size)], [gguf.TokenType.UNUSED] * size
    for token, number in content["model"]["vocab"].items():
        tokens[number], kinds[number] = token, gguf.TokenType.NORMAL
    for added in content.get("added_tokens", []):
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_add_bos_token(False)
    special = gguf.SpecialVocab(source, load_merges=True, n_vocab=size)
    special.add_to_gguf(writer, quiet=True)


def _names(source: Path, config: dict[str, Any], architecture: gguf.MODEL_ARCH) -> dict[str, str]:
    """Return ``{weight: its name in llama.cpp}``; a head that is the embedding is left out, as llama.cpp wants it.

    Raises:
        ToolError: a weight has no name there.
    """
    known = gguf.get_tensor_name_map(architecture, int(config["num_hidden_layers"]))
    names = {}
    for name in weight_shapes(source):
        if is_tied_head(config, name):
            continue
        other = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if other is None:
            raise ToolError(f"{source} has the weight {name}, which llama.cpp does not know; {INSTEAD}")
        names[name] = other
    return names


def _type_of(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    return kind if len(shape) > 1 else gguf.GGMLQuantizationType.F32


def _weights(source: Path, names: dict[str, str], kind: gguf.GGMLQuantizationType) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays of ``names``, in the order of their tensor infos."""
    for name in weight_shapes(source, names.__contains__):
        ((_, tensor),) = read_weights(source, name.__eq__)
        yield gguf.quants.quantize(tensor.float().numpy(), _type_of(tuple(tensor.shape), kind))
