"""Tokenizers and processors by checkpoint folder."""

from __future__ import annotations

import base64
import io
import logging
from typing import Any

from slime.utils.image_processor import images_only, lacks_video_part, processor_class_of

logger = logging.getLogger(__name__)

DEFAULT_PATCH_SIZE = 14


def load_tokenizer(name_or_path: str, **kwargs: Any) -> Any:
    """Return the Hugging Face tokenizer of a checkpoint."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name_or_path, **kwargs)


def load_processor(name_or_path: str, **kwargs: Any) -> Any | None:
    """Return the multimodal processor of a checkpoint, or None for a text-only one.

    Without torchvision it is one for images only (``image_processor``).
    """
    from transformers import AutoProcessor, PreTrainedTokenizerBase

    try:
        loader = processor_class_of(name_or_path, **kwargs)
        loader = images_only(loader) if loader and lacks_video_part(loader) else AutoProcessor
        processor = loader.from_pretrained(name_or_path, **kwargs)
    except (OSError, ValueError, ImportError) as error:
        logger.info("no processor in %s (%s); treating it as a text model", name_or_path, error)
        return None
    return None if isinstance(processor, PreTrainedTokenizerBase) else processor


def encode_image_for_rollout_engine(image: Any) -> str:
    """Return a PIL image as a ``data:image/png;base64,…`` URL."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def process_vision_info(messages: list[dict[str, Any]], processor: Any) -> dict[str, Any]:
    """Return the media of a conversation, ready for ``processor``: ``{"images": [...] or None, "videos": [...] or None}``.

    Images are sized to multiples of the processor's patch.

    Raises:
        ImportError: without the package qwen-vl-utils, saying how to get it.
    """
    try:
        import qwen_vl_utils  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("images and videos in prompts need a package: pip install qwen-vl-utils") from error

    patch = getattr(getattr(processor, "image_processor", None), "patch_size", DEFAULT_PATCH_SIZE)
    images, videos = qwen_vl_utils.process_vision_info(messages, image_patch_size=patch)
    return {"images": images, "videos": videos}
