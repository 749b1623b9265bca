"""A picture in a message, after the gateway has read it: a part that names the file and holds none of it.

The part is ``{"type": "image", "sha256": HEX}``. No client can send it: the schema takes pictures as ``image_url`` only.
Guarantee: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

IMAGE = "image"
PICTURE_TEXT = f"[{IMAGE}]"
"""What stands for a picture where only text is read: for a judge, in reports (`openclaw.messages.text.content_text`)."""


def picture_part(sha256: str) -> dict[str, Any]:
    """Return the part of a picture."""
    return {"type": IMAGE, "sha256": sha256}


def pictures_of(message: Mapping[str, Any]) -> list[str]:
    """Return the digests of a message's pictures, in order."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part["sha256"] for part in content if part.get("type") == IMAGE and "sha256" in part]


def pictures_in(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the digests of the pictures in messages, in order."""
    return [digest for message in messages for digest in pictures_of(message)]
