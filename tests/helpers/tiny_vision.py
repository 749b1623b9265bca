"""Builds a Qwen3-VL checkpoint with random weights and its processor folder, in about a second.

Two text layers, two vision blocks, of which the first feeds the first text layer (deepstack). The tokenizer is that of
``tiny_random`` with the vision markers as special tokens and a chat template that renders an image part as
``<|vision_start|><|image_pad|><|vision_end|>``; the processor repeats the pad once per merged patch. The files of the
folder have the names and keys of a published checkpoint. Same seed, same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.testkit import tiny_random
from lab.testkit.vision_model import VISION_TOKENS, picture_settings, save_picture_settings, vision_config

PATCH = 4
MERGE = 2
MIN_PIXELS = (PATCH * MERGE) ** 2
MAX_PIXELS = 32 * 32
IMAGES = picture_settings(patch=PATCH, merge=MERGE, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
CONTENT_MACRO = (
    "{% macro content_of(m) %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content or [] %}"
    "{% if part.type == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' or 'video' in part %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)


def chat_template() -> str:
    """Return ``tiny_random``'s template for contents that are a text or a list of text, image and video parts."""
    text = tiny_random.CHAT_TEMPLATE
    for content in ("messages[0].content", "m.content or ''", "m.content"):
        text = text.replace("{{ " + content + " }}", "{{ content_of(" + content.split(".")[0] + ") }}")
    return CONTENT_MACRO + text


def save_processor(path: Path) -> Any:
    """Write tokenizer, chat template and the settings of images and videos to ``path``; return the tokenizer."""
    tokenizer = tiny_random.build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": VISION_TOKENS})
    tokenizer.chat_template = chat_template()
    tokenizer.save_pretrained(path)
    save_picture_settings(IMAGES, path)
    return tokenizer


def build(path: Path, *, seed: int = 0, dtype: str = "float32", tie_word_embeddings: bool = False) -> Path:
    """Write a random Qwen3-VL checkpoint with tokenizer and processor to ``path`` and return it; an existing one is kept.

    Args:
        path: the folder; written once.
        seed: seed of the weights.
        dtype: torch dtype name of the saved weights.
        tie_word_embeddings: share the embedding with the LM head.
    """
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    path = Path(path)
    if (path / "config.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = save_processor(path)
    text = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "initializer_range": 0.08,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.08,
    }
    config = vision_config(tokenizer, text, vision, tie_word_embeddings=tie_word_embeddings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config).to(getattr(torch, dtype))
    model.save_pretrained(path)
    return path
