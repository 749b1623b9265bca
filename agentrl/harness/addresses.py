"""Addresses of servers, as people write them."""

from __future__ import annotations

import httpx

GATEWAY_URL = "http://127.0.0.1:30000"


def server_address(text: str) -> str | None:
    """Return the address of a server, without a path; None if the text is none, or has a user, a path or a query."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.raw_path != b"/":
        return None
    return str(url)
