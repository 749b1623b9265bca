"""The patterns of secrets as Python's backtracking engine runs them, to compare the linear ones with."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

from openclaw.privacy.secret_finder import BEFORE_SECRET, CONTEXT, DETECT_SECRETS, WORD, is_placeholder, looks_random

PATTERNS: dict[str, list[re.Pattern[str]]] = {
    module: list(getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)().denylist)
    for module, name in DETECT_SECRETS.items()
}
PATTERNS |= {
    "private_key": [
        re.compile(
            r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\\[nr]|[\s\w+/=:,.\-]){64,}?"
            r"(?:-----END (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z)"
        )
    ],
    "jwt": [re.compile(r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}")],
    "api_key": [
        re.compile(
            r"sk-(?:ant|proj|or|svcacct|lf)-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|AIza[\w-]{35}|github_pat_\w{40,}"
            r"|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}|npm_[A-Za-z0-9]{36}|ya29\.[\w-]{30,}|tvly-[\w-]{24,}"
        )
    ],
}
URL_PASSWORD = re.compile(r"://[^\s:/?#@\"'<>]+:([^\s:/?#@\"'<>{}$*]+)@")
LONG_KEY = re.compile(rf"sk-(?<!{WORD}sk-){WORD}{{17,}}={{0,2}}")
ASSIGNED = re.compile(
    rf"[:=](?<=[YTNDytnd\"'\s].)\s*[\"']?(?:(?i:bearer|basic|token)(?:\s+[\"']?|[\"']))?(?=({WORD}{{20,}}={{0,2}}))"
)


def find(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, kind) of every secret, in quadratic time for some texts."""
    for kind, patterns in PATTERNS.items():
        for pattern in patterns:
            for match in pattern.finditer(text):
                if not is_placeholder(match.group().encode("utf-8", "replace")):
                    yield match.start(), match.end(), kind
    for match in URL_PASSWORD.finditer(text):
        if not is_placeholder(match.group(1).encode("utf-8", "replace")):
            yield match.start(1), match.end(1), "url_password"
    for match in LONG_KEY.finditer(text):
        if looks_random(match.group()[3:]):
            yield match.start(), match.end(), "api_key"
    for match in ASSIGNED.finditer(text):
        start, end = match.span(1)
        if BEFORE_SECRET.search(text, max(0, start - CONTEXT), start) and looks_random(match.group(1)):
            yield start, end, "assignment"
