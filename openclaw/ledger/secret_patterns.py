"""The patterns of secrets, for RE2 (`openclaw.ledger.linear_pattern`).

They come from detect-secrets and from `OWN_PATTERNS`. RE2 has no look-around, so a pattern that needs the character
after it captures the secret in its first group (`WORD_ENDS`). Pure data and functions.
"""

from __future__ import annotations

import importlib
import re

from openclaw.ledger.linear_pattern import LinearPattern

DETECT_SECRETS = {
    "aws": "AWSKeyDetector",
    "azure_storage_key": "AzureStorageKeyDetector",
    "discord": "DiscordBotTokenDetector",
    "github_token": "GitHubTokenDetector",
    "gitlab_token": "GitLabTokenDetector",
    "mailchimp": "MailchimpDetector",
    "npm": "NpmDetector",
    "openai": "OpenAIDetector",
    "pypi_token": "PypiTokenDetector",
    "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "square_oauth": "SquareOAuthDetector",
    "stripe": "StripeDetector",
    "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}
"""Modules and classes of detect-secrets, without those that match ordinary words (artifactory, keyword, entropy)."""
SPACE = r"\s\v\x1c-\x1f\x{85}\pZ"
"""Whitespace inside a class, as Python's ``\\s`` has it."""
WORD = r"[A-Za-z0-9_+/.~-]"
BEGIN_KEY = r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
END_KEY = r"-----END (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
KEY_TEXT = r"\s\v\x1c-\x1f\w+/=:,.\-"
OWN_PATTERNS = {
    "jwt": r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}",
    "api_key": (
        r"sk-(?:ant|proj|or|svcacct|lf|episode)-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|AIza[\w-]{35}|github_pat_\w{40,}|gsk_[A-Za-z0-9]{40,}"
        r"|xai-[A-Za-z0-9]{40,}|npm_[A-Za-z0-9]{36}|ya29\.[\w-]{30,}|tvly-[\w-]{24,}"
    ),
}
# A key to its end mark, or one that is cut off by the end of the text. The class has all bytes of other alphabets.
PRIVATE_KEY = (
    rf"{BEGIN_KEY}(?:\\[nr]|[{KEY_TEXT}\x80-\xff]){{64,}}?{END_KEY}|{BEGIN_KEY}(?:\\[nr]|[{KEY_TEXT}]){{64,}}\z"
)
ANCHORS: dict[str, tuple[str, ...]] = {
    "aws": ("a3t", "abia", "acca", "akia", "asia", "aws"),
    "azure_storage_key": ("AccountKey=",),
    "github_token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    "gitlab_token": ("glpat-", "gldt-", "glft-", "glsoat-", "glrt-", "GR1348941", "glcbt-", "glimt-", "glptt-", "gloas-",
                     "glagent-"),
    "npm": ("/:_authToken=",),
    "openai": ("T3BlbkFJ",),
    "pypi_token": ("pypi-Ag",),
    "sendgrid": ("SG.",),
    "slack": ("xox", "hooks.slack.com"),
    "square_oauth": ("sq0csp-",),
    "stripe": ("k_live_",),
    "private_key": ("PRIVATE KEY",),
    "jwt": (".eyJ",),
    "api_key": ("sk-", "hf_", "AIza", "github_pat_", "gsk_", "xai-", "npm_", "ya29.", "tvly-"),
}  # fmt: skip
"""Anchors per kind: every match contains one, so a text without any is not searched for that kind."""
FOLDED = frozenset({"aws", "slack"})
"""Kinds with case-insensitive patterns; their anchors are matched in case-folded text."""
WORD_ENDS = r"(?!\w)"
"""A condition at the end of detect-secrets' patterns; here the secret is a group, followed by another character."""
LONGER_THAN_RE2_COUNTS = re.compile(r"\{(\d+),(?:[1-9]\d{3,})\}")
"""RE2 counts to 1000 at most: without the upper bound a longer run is a secret too."""


def linear(pattern: re.Pattern[str]) -> LinearPattern:
    """Return a pattern of detect-secrets for RE2; if it ends in `WORD_ENDS`, the secret is its only group.

    Raises:
        re2.error: if RE2 cannot run it; a new release of detect-secrets then needs a rule here.
    """
    source = LONGER_THAN_RE2_COUNTS.sub(r"{\1,}", pattern.pattern).replace(r"=\s*", f"=[{SPACE}]*")
    ends = source.endswith(WORD_ENDS)
    if ends:
        source = rf"({without_groups(source.removesuffix(WORD_ENDS))})(?:\W|\z)"
    flags = pattern.flags
    return LinearPattern(source, ignore_case=bool(flags & re.IGNORECASE), dot_all=bool(flags & re.DOTALL), groups=ends)


def without_groups(source: str) -> str:
    """Return a pattern with its capturing groups made plain."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", source)


def all_patterns() -> dict[str, list[LinearPattern]]:
    """Return the patterns by kind."""
    patterns: dict[str, list[LinearPattern]] = {}
    for module, name in DETECT_SECRETS.items():
        detector = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)()
        patterns[module] = [linear(pattern) for pattern in detector.denylist]
    patterns |= {kind: [LinearPattern(pattern)] for kind, pattern in OWN_PATTERNS.items()}
    return patterns | {"private_key": [LinearPattern(PRIVATE_KEY, by_byte=True)]}
