"""Sizes of a model: parameters by kind, and cache bytes per token.

Guarantees: ``config.json`` decides if the checkpoint is local, else the model-shape flags. For dense Qwen2.5 and Qwen3
and for experts, parameter counts equal those of the published models exactly; for linear attention within 2 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments
from slime.arguments.model_shape import number_of_experts, text_config
from slime.utils.model_config import config_or_none

NF4_BYTES = 0.5 + 4 / 64
"""Per value of a weight in NF4: packed values, and a float32 scale per 64 (`slime.utils.nf4`)."""
# Defaults of `Qwen3_5TextConfig`: key width of linear attention; every fourth layer uses full attention.
LINEAR_KEY_WIDTH, LINEAR_HEAD, FULL_ATTENTION_INTERVAL, CONVOLUTION = 2048, 128, 4, 4


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        ffn: inner width of the MLP, or of one expert.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: size of a head.
        vocab: rows of the embedding.
        tied: whether the LM head is the embedding.
        experts: experts per layer; 0 for a dense model.
        active_experts: experts per token.
        full_layers: layers with a key/value cache; the others use linear attention.
        qk_norm: norm on query and key heads.
        qkv_bias: bias on query, key and value.
        gated: gate on the attention's output (Qwen3.5).
        tower: parameters of the vision tower.
        quantised: whether the checkpoint stores one byte per weight.
        sliding: whether some layers attend to a window only.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    experts: int = 0
    active_experts: int = 0
    full_layers: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False
    gated: bool = False
    tower: int = 0
    quantised: bool = False
    sliding: bool = False

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all key heads."""
        return self.kv_heads * self.head_dim

    @property
    def linear_layers(self) -> int:
        """Layers with linear attention."""
        return self.layers - self.full_layers

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; the LM head has the same number."""
        return self.vocab * self.hidden

    @property
    def root(self) -> int:
        """Parameters outside the layers and the tower: embedding, LM head, final norm."""
        return self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def experts_of_layer(self) -> int:
        """Parameters of all experts of a layer."""
        return self.experts * 3 * self.hidden * self.ffn

    @property
    def dense_layer(self) -> int:
        """Parameters of a layer without its experts; the mean over layers in a hybrid model."""
        gate = 2 if self.gated else 1
        full = self.hidden * ((gate + 1) * self.query + 2 * self.key) + (2 * self.head_dim if self.qk_norm else 0)
        full += self.query + 2 * self.key if self.qkv_bias else 0
        mixed = 2 * LINEAR_KEY_WIDTH + self.query
        heads = self.query // LINEAR_HEAD
        linear = self.hidden * (mixed + 2 * self.query + 2 * heads) + CONVOLUTION * mixed + 2 * heads + LINEAR_HEAD
        attention = (full * self.full_layers + linear * self.linear_layers) // self.layers
        mlp = self.experts * self.hidden if self.experts else 3 * self.hidden * self.ffn
        return attention + mlp + 2 * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        return self.dense_layer + self.experts_of_layer

    @property
    def parameters(self) -> int:
        """Parameters of the language model."""
        return self.root + self.layers * self.layer

    def bytes_in_nf4(self, element: int) -> float:
        """Return the bytes of a dense model with linear layers in NF4 and all else in ``element`` bytes per parameter."""
        biases = self.query + 2 * self.key if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        linear = self.layers * (self.layer - norms - biases)
        return NF4_BYTES * linear + element * (self.parameters - linear)

    @property
    def largest_linear(self) -> int:
        """Parameters of the largest linear layer of a block."""
        return self.hidden * max(self.ffn, self.query)

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters of ``rank`` on all linear layers of each block."""
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        return rank * self.layers * (attention + 3 * (self.hidden + self.ffn))

    def cache_bytes(self, ranks: int, element: int) -> int:
        """Return a token's key/value bytes on each of ``ranks`` GPUs of an engine; a key head is never split."""
        return 2 * self.full_layers * -(-self.kv_heads // min(ranks, self.kv_heads)) * self.head_dim * element

    def state_bytes(self, ranks: int) -> int:
        """Return a request's linear-attention bytes on each of ``ranks`` GPUs: float32 state, bfloat16 convolution."""
        heads = self.query // LINEAR_HEAD
        window = (CONVOLUTION - 1) * (2 * LINEAR_KEY_WIDTH + self.query) * 2
        return self.linear_layers * (heads * LINEAR_HEAD * LINEAR_HEAD * 4 + window) // ranks


def shape_of_folder(folder: str | None) -> Shape | None:
    """Return the shape in a checkpoint's ``config.json``; None without the file or if it is not a decoder's."""
    whole = config_or_none(folder)
    try:
        return None if whole is None else _of_config(whole)
    except (KeyError, TypeError):  # not a decoder
        return None


def _of_config(whole: Mapping[str, Any]) -> Shape:
    config = text_config(dict(whole))
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    kind = whole.get("model_type", "")
    experts = number_of_experts(config) or 0
    types = config.get("layer_types") or []
    linear = sum(name == "linear_attention" for name in types)
    return Shape(
        layers=layers,
        hidden=config["hidden_size"],
        ffn=config["moe_intermediate_size"] if experts else config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        active_experts=config.get("num_experts_per_tok") or 0,
        full_layers=layers - linear,
        qk_norm=kind.startswith("qwen3"),
        qkv_bias=kind.startswith("qwen2"),
        gated=kind.startswith("qwen3_5"),
        tower=_tower(whole.get("vision_config")),
        quantised=bool(whole.get("quantization_config")),
        sliding=_slides(config, types),
    )


def _slides(config: Mapping[str, Any], types: Sequence[str]) -> bool:
    """Whether a layer has a window: by its type; without types, if a window is given and not switched off."""
    if types:
        return any("sliding" in name for name in types)
    return bool(config.get("sliding_window") and config.get("use_sliding_window", True))


def _tower(vision: Mapping[str, Any] | None) -> int:
    """Return the parameters of a vision tower's blocks; patches and mergers, a few per cent, are left out."""
    if not vision:
        return 0
    width, inner = vision.get("hidden_size", 0), vision.get("intermediate_size", 0)
    return vision.get("depth", 0) * (4 * width * width + 2 * width * inner)


def shape_of_flags(args: Arguments) -> Shape | None:
    """Return the shape given by the flags of ``slime/scripts/models``; None unless all are given."""
    layers, hidden, heads, vocab = args.num_layers, args.hidden_size, args.num_attention_heads, args.vocab_size
    ffn = args.moe_ffn_hidden_size if args.num_experts else args.ffn_hidden_size
    if not (layers and hidden and heads and vocab and ffn):
        return None
    gated = bool(args.attention_output_gate)
    return Shape(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=args.num_query_groups or heads,
        head_dim=args.kv_channels or hidden // heads,
        vocab=vocab,
        tied=not args.untie_embeddings_and_output_weights,
        experts=args.num_experts or 0,
        active_experts=args.moe_router_topk or 0,
        full_layers=layers // FULL_ATTENTION_INTERVAL if gated else layers,
        qk_norm=bool(args.qk_layernorm),
        qkv_bias=bool(args.add_qkv_bias),
        gated=gated,
    )


def policy_shape(args: Arguments) -> Shape | None:
    """Return the policy's shape from its checkpoint, else from the flags, else None."""
    return shape_of_folder(args.hf_checkpoint) or shape_of_flags(args)


def judge_shape(args: Arguments) -> Shape | None:
    """Return the judge's shape; the policy's if it serves the policy's checkpoint."""
    if args.prm_model_path in (None, args.hf_checkpoint):
        return policy_shape(args)
    return shape_of_folder(args.prm_model_path)
