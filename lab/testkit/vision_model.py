"""What the tiny Qwen3-VL of the demos and that of tests share: vision markers, configuration, and settings of pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VISION_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def picture_settings(*, patch: int, merge: int, min_pixels: int, max_pixels: int) -> dict[str, Any]:
    """Return the settings of pictures: two frames, and colours from -1 to 1.

    Args:
        patch: pixels of a patch's side.
        merge: patches of a token's side.
        min_pixels: of a picture.
        max_pixels: of a picture.
    """
    return {
        "patch_size": patch,
        "merge_size": merge,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": min_pixels, "longest_edge": max_pixels},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }


def save_picture_settings(images: dict[str, Any], folder: Path) -> None:
    """Write the settings of pictures and videos beside a checkpoint."""
    shared = images | {"processor_class": "Qwen3VLProcessor"}
    kinds = {
        "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {"video_processor_type": "Qwen3VLVideoProcessor"},
    }
    for name, kind in kinds.items():
        (folder / name).write_text(json.dumps(shared | kind, indent=1) + "\n")


def vision_config(tokenizer: Any, text: dict[str, Any], vision: dict[str, Any], *, tie_word_embeddings: bool) -> Any:
    """Return the ``Qwen3VLConfig`` of a text part and a vision part, with the markers' ids and the tokenizer's size."""
    from transformers import Qwen3VLConfig

    start, end, image, video = tokenizer.convert_tokens_to_ids(VISION_TOKENS)
    sizes = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": tie_word_embeddings,
    }
    return Qwen3VLConfig(
        text_config=sizes | text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=tie_word_embeddings,
    )
