"""Vision-language processors on machines without torchvision, which has no build for a torch without CUDA.

Without torchvision, Transformers prepares images with PIL, but its vision-language processors insist on a video part
that needs torchvision. This module loads such a processor without that part: the library's own code prepares images,
and videos are refused.
"""

from __future__ import annotations

from typing import Any

VIDEO_PART = "video_processor"


def lacks_video_part(processor_class: type) -> bool:
    """Return whether the processor's video part cannot be loaded here."""
    from transformers.utils.import_utils import is_torchvision_available

    return VIDEO_PART in processor_class.get_attributes() and not is_torchvision_available()


def images_only(processor_class: type) -> type:
    """Return a subclass of a Transformers processor without its video part, under the same name.

    A call with videos raises ValueError.
    """
    parts = [part for part in processor_class.get_attributes() if part != VIDEO_PART]

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


def processor_class_of(name_or_path: str, **kwargs: Any) -> type | None:
    """Return Transformers' processor class for a checkpoint's model type, or None."""
    from transformers import PROCESSOR_MAPPING, AutoConfig

    found = PROCESSOR_MAPPING.get(type(AutoConfig.from_pretrained(name_or_path, **kwargs)), None)
    return found if isinstance(found, type) else None
