"""Send what a page's call of curl would send: it may be missing on this machine."""

from __future__ import annotations

import argparse

import httpx

from tests.page_commands.shell import SECONDS, Call


def run_curl(call: Call) -> tuple[int, str]:
    """Send what a call of curl would send; return 0 and the body, or 22 (``curl --fail``) if it is refused."""
    parser = argparse.ArgumentParser(prog="curl (tests/page_commands/curl.py)")
    parser.add_argument("url")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-d", "--data")
    parser.add_argument("-X", "--request")
    parser.add_argument("-s", "-S", "-f", "-N", action="store_true")
    words = parser.parse_args(call.words)
    headers = {name: value.strip() for name, _, value in (header.partition(":") for header in words.header)}
    if words.data is not None and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/x-www-form-urlencoded"  # as curl does
    method = words.request or ("GET" if words.data is None else "POST")
    sent = httpx.request(
        method, words.url, headers=headers, content=words.data, trust_env=False, timeout=SECONDS, follow_redirects=False
    )
    return 0 if sent.is_success else 22, f"{sent.status_code} {sent.text}"
