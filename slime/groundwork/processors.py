"""Tokenizers and processors by checkpoint folder.

Guarantee: the Python code that a folder may bring is never run (`without_own_code`).

Torchvision has no build for a torch without CUDA. Without it Transformers prepares images with PIL, but its
vision-language processors insist on a video part that needs torchvision. Such a processor is loaded without that part:
the library's own code prepares images, and videos are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.images import DEFAULT_PATCH_SIZE, at_model_size, open_image, png_bytes, png_url

logger = logging.getLogger(__name__)

_IMAGE_KEYS = frozenset({"image", "image_url"})
_VIDEO_PART = "video_processor"


@contextmanager
def without_own_code(folder: str | Path) -> Iterator[dict[str, bool]]:
    """Yield the keyword argument with which transformers loads ``folder`` without running Python code that it brings.

    Raises:
        ConfigError: the folder cannot be loaded without such code.
    """
    try:
        yield {"trust_remote_code": False}
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ConfigError(
            f"{folder} needs Python code of its own (auto_map in its JSON files), which is never run; use a model that the "
            "installed transformers and SGLang know"
        ) from error


def load_tokenizer(name_or_path: str, **kwargs: Any) -> Any:
    """Return the Hugging Face tokenizer of a checkpoint.

    ``kwargs`` are those of ``from_pretrained``; ``trust_remote_code`` among them changes nothing.

    Raises:
        ConfigError: it needs code of its own.
    """
    from transformers import AutoTokenizer

    with without_own_code(name_or_path) as own_code:
        return AutoTokenizer.from_pretrained(name_or_path, **{**kwargs, **own_code})


def load_processor(name_or_path: str, **kwargs: Any) -> Any | None:
    """Return the multimodal processor of a checkpoint, or None for a text-only one.

    Without torchvision it handles only images (``image_processor``). ``kwargs`` are as those of `load_tokenizer`.

    Raises:
        ConfigError: it needs code of its own.
    """
    from transformers import AutoProcessor, PreTrainedTokenizerBase

    try:
        with without_own_code(name_or_path) as own_code:
            options = {**kwargs, **own_code}
            loader = _processor_class_of(name_or_path, **options)
            loader = _images_only(loader) if loader and _lacks_video_part(loader) else AutoProcessor
            processor = loader.from_pretrained(name_or_path, **options)
    except ConfigError:
        raise
    except (OSError, ValueError, ImportError) as error:
        logger.info("no processor in %s (%s); treating it as a text model", name_or_path, error)
        return None
    return None if isinstance(processor, PreTrainedTokenizerBase) else processor


def _lacks_video_part(processor_class: type) -> bool:
    """Return whether the processor's video part cannot be loaded here."""
    from transformers.utils.import_utils import is_torchvision_available

    return _VIDEO_PART in processor_class.get_attributes() and not is_torchvision_available()


def _images_only(processor_class: type) -> type:
    """Return a subclass of a Transformers processor without its video part, under the same name.

    A call with videos raises ValueError.
    """
    parts = [part for part in processor_class.get_attributes() if part != _VIDEO_PART]

    def get_attributes(cls: type) -> list[str]:
        return parts

    def call(self: Any, *values: Any, videos: Any = None, **kwargs: Any) -> Any:
        if videos is not None:
            raise ValueError(
                "videos need torchvision, which is not installed: pip install torchvision, or pass only images"
            )
        return processor_class.__call__(self, *values, **kwargs)

    members = {"get_attributes": classmethod(get_attributes), "__call__": call, "__doc__": processor_class.__doc__}
    return type(processor_class.__name__, (processor_class,), members)


def _processor_class_of(name_or_path: str, **kwargs: Any) -> type | None:
    """Return Transformers' processor class for a checkpoint's model type, or None."""
    from transformers import PROCESSOR_MAPPING, AutoConfig

    value = PROCESSOR_MAPPING.get(type(AutoConfig.from_pretrained(name_or_path, **kwargs)), None)
    return value if isinstance(value, type) else None


def build_processor_kwargs(multimodal_inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the keyword arguments for a processor call on ``multimodal_inputs``: token ids as lists, media as tensors."""
    results = dict(multimodal_inputs or {})
    media = ("audio_kwargs", "images_kwargs", "videos_kwargs")
    forced: dict[str, dict[str, Any]] = {name: {"return_tensors": "pt"} for name in media}
    forced["text_kwargs"] = {"return_tensors": None, "return_mm_token_type_ids": False}
    return results | {name: {**(results.get(name) or {}), **keywords} for name, keywords in forced.items()}


def encode_image_for_rollout_engine(image: Any) -> str:
    """Return a PIL image as a ``data:image/png;base64,…`` URL."""
    return png_url(png_bytes(image))


def process_vision_info(messages: list[dict[str, Any]], processor: Any) -> dict[str, Any]:
    """Return the media of a conversation, ready for ``processor``: ``{"images": [...] or None, "videos": [...] or None}``.

    Images (content parts with a key ``image`` or ``image_url``, see `open_image`) become RGB at the model's input size.

    Raises:
        ValueError: an image cannot be read.
        FileNotFoundError: a file does not exist.
        ImportError: videos need the package qwen-vl-utils; the message says how to install it.
    """
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    sources = [part["image"] if "image" in part else part["image_url"] for part in parts if _IMAGE_KEYS & part.keys()]
    urls = [source["url"] if isinstance(source, dict) and "url" in source else source for source in sources]
    videos = [part for part in parts if "video" in part]
    return {
        "images": [at_model_size(open_image(url), processor) for url in urls] or None,
        "videos": _read_videos(videos, processor) if videos else None,
    }


def _read_videos(parts: list[dict[str, Any]], processor: Any) -> list[Any]:
    try:
        import qwen_vl_utils  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("videos in prompts need packages: pip install qwen-vl-utils torchvision") from error

    patch = getattr(getattr(processor, "image_processor", None), "patch_size", DEFAULT_PATCH_SIZE)
    messages = [{"role": "user", "content": parts}]
    return qwen_vl_utils.process_vision_info(messages, image_patch_size=patch)[1]
