"""A picture's ``data:`` URL: what is accepted, and the file in it. Pure functions."""

from __future__ import annotations

import base64
import binascii
import re

from openclaw.config.bounds import PICTURE_BYTES
from openclaw.gateway.errors import bad_request

DATA_URL = re.compile(r"data:image/(?:png|jpeg|jpg|webp|gif);base64,", re.IGNORECASE)


def encoded_file(url: str, where: str) -> str:
    """Return the base64 text of a picture's URL.

    Args:
        url: of the picture.
        where: its place in the request, for errors.

    Raises:
        ApiError: 400 for a URL of another kind, or a file that is too large.
    """
    start = DATA_URL.match(url)
    if start is None:
        raise bad_request(
            f"{where}: the picture is not a data:image/png;base64,... URL (or jpeg, webp, gif); this server fetches nothing, "
            "so send the file itself",
            param="messages",
        )
    size = (len(url) - start.end()) * 3 // 4
    if size > PICTURE_BYTES.most:
        raise bad_request(
            f"{where}: the picture has {size} bytes; send at most {PICTURE_BYTES.most}",
            param="messages",
            bound=PICTURE_BYTES,
        )
    return url[start.end() :]


def file_of(url: str, where: str) -> bytes:
    """Return the file of a picture's URL.

    Raises:
        ApiError: 400 as `encoded_file`, or if the text is not base64.
    """
    try:
        return base64.b64decode(encoded_file(url, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"{where}: the picture is not valid base64", param="messages") from error
