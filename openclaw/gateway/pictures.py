"""The pictures of a request: from ``data:`` URLs to what the engine reads and the ledger keeps.

Guarantees: nothing is fetched, and no path is opened: a picture is in the request or is refused. Its size is known and
bounded before it is decoded, which happens in threads, one picture of a request at a time, so that a request with many
delays no other. A picture is sized once, to the processor's grid, so engine and trainer compute the same pixel values;
`groundwork.images` does this for agents' screens as well. In the messages a part that names the file takes its place
(`groundwork.chat_messages`). Owns the threads and a cache of the newest pictures, which is cleared when a session is forgotten.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

from groundwork.chat_messages import Message, picture_part
from groundwork.images import (
    at_model_size,
    image_tokens,
    open_image,
    placeholder_ids,
    png_bytes,
    png_url,
    repeat_placeholders,
)
from openclaw.config.bounds import PICTURE_PIXELS
from openclaw.engine.client import EnginePictures
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.schema import UNSEEN_PICTURE, file_of
from openclaw.ledger.records import SeenPicture

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
DECODING_ERRORS = (
    *(OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError),
    *(struct.error, zlib.error),
)
"""What PIL raises for damaged files."""
THREADS = 2
MAX_CACHED_BYTES = 64 << 20
KEY_BYTES = 16
UNSEEN = {"type": "text", "text": UNSEEN_PICTURE}


@dataclass(frozen=True)
class Picture:
    """A picture as the model sees it: a PNG file, its digest, and the number of its placeholders."""

    sha256: str
    png: bytes
    tokens: int


class PictureReader:
    """Reads the pictures of requests for one model."""

    def __init__(self, processor: Any | None) -> None:
        """Prepare for the processor of the served checkpoint; None: the model sees no pictures."""
        self._processor = processor
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pictures")
        self._known: OrderedDict[bytes, Picture] = OrderedDict()
        self._bytes = 0
        self._forgotten = 0
        self.placeholders = placeholder_ids(processor)

    async def read(self, messages: Sequence[Message], owner: str) -> tuple[list[Message], list[Picture]]:
        """Return the messages of a request of ``owner`` with named pictures, and the pictures, in order.

        A text stands in place of a tool's picture that cannot be read, and of all of them for a model that sees none.

        Raises:
            ApiError: 400 for such a picture of a user.
        """
        if self._processor is None:
            messages = [_unseen(message) for message in messages]
        if not any(_images(message) for message in messages):
            return list(messages), []
        if self._processor is None:
            raise bad_request(
                "messages: the served model sees no pictures; leave them out, or serve a Qwen3-VL checkpoint (HF_CKPT)",
                param="messages",
            )
        pictures: list[Picture] = []
        named: list[Message] = []
        for position, message in enumerate(messages):
            if not _images(message):
                named.append(message)
                continue
            parts: list[Message] = []
            for number, part in enumerate(message["content"]):
                if part["type"] != "image_url":
                    parts.append(part)
                    continue
                try:
                    picture = await self._one(part["image_url"]["url"], owner, f"messages.{position}.content.{number}")
                except ApiError:
                    if message.get("role") != "tool":
                        raise
                    parts.append(UNSEEN)
                    continue
                pictures.append(picture)
                parts.append(picture_part(picture.sha256))
            named.append({**message, "content": parts})
        return named, pictures

    def expanded(self, ids: Sequence[int], pictures: Sequence[Picture]) -> tuple[list[int], tuple[SeenPicture, ...]]:
        """Return prompt ids with each picture's placeholder repeated, and where the pictures are in them.

        Raises:
            ApiError: 400 if the chat template did not write one placeholder for each picture.
        """
        if not pictures:
            return list(ids), ()
        assert self._processor is not None
        place = self._processor.image_token_id
        counts = [picture.tokens for picture in pictures]
        try:
            whole = repeat_placeholders(ids, place, counts)
        except ValueError as error:
            raise bad_request(
                f"messages: {error}; the model's chat template has no place for one of them", param="messages"
            ) from error
        seen: list[SeenPicture] = []
        end = 0
        for picture in pictures:
            start = whole.index(place, end)
            end = start + picture.tokens
            seen.append(SeenPicture(picture.sha256, start, picture.tokens, picture.png))
        return whole, tuple(seen)

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()
        self._bytes = 0
        self._forgotten += 1

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)

    async def _one(self, url: str, owner: str, where: str) -> Picture:
        key = blake2b(f"{owner}\n{url}".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        before = self._forgotten
        picture = await asyncio.get_running_loop().run_in_executor(self._threads, self._decoded, url, where)
        if before == self._forgotten and key not in self._known:
            self._known[key] = picture
            self._bytes += len(picture.png)
            while self._bytes > MAX_CACHED_BYTES:
                self._bytes -= len(self._known.popitem(last=False)[1].png)
        return picture

    def _decoded(self, url: str, where: str) -> Picture:
        file = file_of(url, where)
        try:
            image = open_image(file, FORMATS)
            width, height = image.size
            if width * height > PICTURE_PIXELS.most:
                raise bad_request(
                    f"{where}: the picture has {width} x {height} pixels; send at most {PICTURE_PIXELS.most}",
                    param="messages",
                    bound=PICTURE_PIXELS,
                )
            if getattr(image, "is_animated", False):
                raise bad_request(f"{where}: the picture is animated; send one picture", param="messages")
            sized = at_model_size(image, self._processor)
            return picture_of(sized, image_tokens(self._processor, *sized.size))
        except ApiError:
            raise
        except DECODING_ERRORS as error:
            raise bad_request(
                f"{where}: the picture cannot be read ({type(error).__name__}); send a whole PNG, JPEG, WebP or GIF file, "
                "of which no side is 200 times the other",
                param="messages",
            ) from error


def picture_of(image: Any, tokens: int) -> Picture:
    """Return a PIL image at the model's size as it is sent and kept."""
    png = png_bytes(image)
    return Picture(sha256(png).hexdigest(), png, tokens)


def engine_pictures(template_ids: Sequence[int], seen: Sequence[SeenPicture]) -> EnginePictures | None:
    """Return what the engine gets beside the exact prompt; None without pictures."""
    return EnginePictures(list(template_ids), tuple(png_url(item.png) for item in seen)) if seen else None


def _unseen(message: Message) -> Message:
    """Return a tool's message without pictures; any other message as it is."""
    if message.get("role") != "tool" or not _images(message):
        return message
    return {**message, "content": [UNSEEN if part["type"] == "image_url" else part for part in message["content"]]}


def _images(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part["type"] == "image_url" for part in content)
