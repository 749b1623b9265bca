"""Finds keys, tokens, private keys and passwords in URLs, and the server's own keys.

Guarantees: time grows linearly with the text, whatever it contains. RE2 makes every long search and releases the
interpreter lock meanwhile, so a search on another thread leaves the interpreter to the event loop. Python only looks at
what RE2 found, once. The patterns come from detect-secrets and from `OWN_PATTERNS`; RE2 has no look-around, so a
pattern that needs the character after it captures the secret in its first group (`WORD_ENDS`). A key of this server is
found as a word of its own, also in quotes, in a URL and behind an equals sign; a finder keeps no key that it was not
given by value. Stateless after construction.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

RE2: Any = importlib.import_module("re2")  # has no type stubs


class LinearPattern:
    """A regular expression that RE2 searches in linear time; a pattern with a group finds what the group matches.

    RE2 has no look-around, and ``\\w``, ``\\d`` and ``\\s`` are ASCII. Immutable.
    """

    def __init__(
        self,
        source: str,
        *,
        ignore_case: bool = False,
        dot_all: bool = False,
        groups: bool = False,
        by_byte: bool = False,
    ) -> None:
        """Compile a pattern.

        Args:
            source: the pattern, in RE2's syntax.
            ignore_case: as ``re.IGNORECASE``.
            dot_all: as ``re.DOTALL``.
            groups: whether the first group is what is searched for; without, groups capture nothing.
            by_byte: take each byte as a character, instead of UTF-8.

        Raises:
            re2.error: if RE2 cannot run the pattern.
        """
        options = RE2.Options()
        options.log_errors = False
        options.case_sensitive = not ignore_case
        options.dot_nl = dot_all
        options.never_capture = not groups
        if by_byte:
            options.encoding = RE2.Options.Encoding.LATIN1
        self._group = 1 if groups else 0
        self._pattern = RE2.compile(source.encode() if by_byte else source, options)

    def search(self, data: bytes, position: int = 0) -> tuple[int, int] | None:
        """Return (start, end) of the first match at or after ``position``, or None."""
        match = self._pattern.search(data, position)
        return None if match is None else match.span(self._group)

    def every(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of all matches that do not overlap."""
        for match in self._pattern.finditer(data):
            yield match.span(self._group)

    def whole(self, data: bytes) -> bool:
        """Return whether the pattern matches all of ``data``."""
        return self._pattern.fullmatch(data) is not None


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


Span = tuple[int, int, str]
MIN_ENTROPY_BITS = 3.5
MIN_LENGTH = 8
"""Characters: no pattern matches a shorter text."""
PARTS = {
    "discord": LinearPattern(r"\.[a-zA-Z\d_-]{6}\.[a-zA-Z\d_-]{27}"),
    "mailchimp": LinearPattern(r"-us[0-9]"),
    "telegram_token": LinearPattern(r":[0-9A-Za-z_-]{35}"),
}
"""For kinds without anchors: a pattern that is part of every match and faster to search."""
URL_PASSWORD = LinearPattern(rf"://[^{SPACE}:/?#@\"'<>]+:([^{SPACE}:/?#@\"'<>{{}}$*]+)@", groups=True)
LONG_KEY = LinearPattern(rf"sk-{WORD}{{17,}}={{0,2}}")
IS_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+/.~-")
# A long word after a colon or equals sign, whose name may be that of a secret.
ASSIGNED = LinearPattern(
    rf"[YTNDytnd\"'{SPACE}][:=][{SPACE}]*[\"']?(?:(?i:bearer|basic|token)(?:[{SPACE}]+[\"']?|[\"']))?({WORD}{{20,}}={{0,2}})",
    groups=True,
)
# The text before a long word that is a secret if it looks random.
BEFORE_SECRET = re.compile(
    r"(?:(?:(?:API_?KEY|SECRET|SECRET_KEY|ACCESS_KEY|TOKEN|PASSWORD|PASSWD)"
    r"|(?i:api[_-]?key|access[_-]?token|secret[_-]?key|client[_-]?secret|auth[_-]?token))[\"']?\s*[:=]"
    r"|(?i:authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)))\s*[\"']?\Z"
)
CONTEXT = 48
"""Characters before a long word that may name it."""
PLACEHOLDERS = LinearPattern(
    r"(?i)example|your|xxx|pass(?:word|wd)?\z|^secret\z|^token\z|^pw\z|^pwd\z|\.\.\.|changeme|dummy|redacted"
)
LONG = 100
LONG_PLACEHOLDERS = LinearPattern(r"(?i)example|your[^a-z0-9+/]|xxxxxx|\.\.\.|changeme|dummy|redacted")
"""For what is longer than `LONG` bytes: one in twenty private keys has three x in a row by chance."""
LOOKED_AT = 4096
"""Characters of a word that tell whether it looks random."""


def is_placeholder(secret: bytes) -> bool:
    """Return whether what has the form of a secret only stands for one."""
    return (PLACEHOLDERS if len(secret) <= LONG else LONG_PLACEHOLDERS).search(secret) is not None


def looks_random(text: str) -> bool:
    """Return whether a value looks random: letters and digits, at least `MIN_ENTROPY_BITS` per character."""
    if is_placeholder(text.encode()):
        return False
    text = text[:LOOKED_AT]
    if not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return entropy >= min(MIN_ENTROPY_BITS, math.log2(len(text)) - 0.5)


class SecretFinder:
    """Finds secrets; see the module's guarantees."""

    def __init__(self) -> None:
        self._patterns = all_patterns()

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind)."""
        if len(text) < MIN_LENGTH:
            return iter(())
        data = text.encode("utf-8", "replace")  # a lone surrogate stays one character
        return in_characters(data, len(text), [*self._known(text, data), *self._named(text, data)])

    def _known(self, text: str, data: bytes) -> Iterator[Span]:
        """Yield what has the form of a known kind."""
        folded = text.casefold()
        for kind, patterns in self._patterns.items():
            anchors = ANCHORS.get(kind)
            if anchors is not None and not any(anchor in (folded if kind in FOLDED else text) for anchor in anchors):
                continue
            if kind in PARTS and not PARTS[kind].search(data):
                continue
            for pattern in patterns:
                for start, end in pattern.every(data):
                    if not is_placeholder(data[start:end]):
                        yield start, end, kind

    def _named(self, text: str, data: bytes) -> Iterator[Span]:
        """Yield passwords in URLs, words that begin as a key does, and random words behind a telling name."""
        for start, end in URL_PASSWORD.every(data) if "@" in text else ():
            if not is_placeholder(data[start:end]):
                yield start, end, "url_password"
        for start, end in LONG_KEY.every(data) if "sk-" in text else ():
            if (not start or data[start - 1] not in IS_WORD) and looks_random(data[start + 3 : end].decode()):
                yield start, end, "api_key"
        position = 0
        while word := ASSIGNED.search(data, position):
            position, end = word  # the word itself may hold the next name
            before = data[max(0, position - 4 * CONTEXT) : position].decode(errors="ignore")[-CONTEXT:]
            if BEFORE_SECRET.search(before) and looks_random(data[position:end].decode()):
                yield position, end, "assignment"


def in_characters(data: bytes, characters: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans of encoded text as spans of its characters, in order."""
    if len(data) == characters:
        yield from spans
        return
    last = at = 0
    for start, end, kind in sorted(spans):
        at += len(data[last:start].decode())
        last = start
        yield at, at + len(data[start:end].decode()), kind


@cache
def secret_finder() -> SecretFinder:
    """Return the one finder of this process; loading its patterns takes a while once."""
    return SecretFinder()


OWN_KEY = "own_key"
MIN_KEY_LENGTH = 16
MIN_VALUE_LENGTH = 12
"""A value known in plain is found wherever it stands, so a short one would spoil ordinary words."""
SECRET_NAME = re.compile(r"(?:^|_)(?:API_KEY|ACCESS_KEY|SECRET_KEY|SECRET|TOKEN|PASSWORD)$")
"""Variables of the environment that hold a key of this server, its engines or its services."""
MAX_KEY_LENGTH = 256
WORDS = (
    LinearPattern(rf"[A-Za-z0-9_-]{{{MIN_KEY_LENGTH},}}"),
    LinearPattern(rf"[A-Za-z0-9_+/.~-]{{{MIN_KEY_LENGTH},}}={{0,2}}"),
    LinearPattern(rf"[^{SPACE}\"'`<>]{{{MIN_KEY_LENGTH},}}"),
)
"""What may be a whole key: hexadecimal or URL-safe, base64, anything without spaces and quotes."""
PUNCTUATION = b".,;:!?()[]{}"


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values of the variables whose name says that they hold a secret."""
    return [value.strip() for name, value in environment.items() if SECRET_NAME.search(name)]


class OwnKeyFinder:
    """Finds the keys; see the module's guarantees."""

    def __init__(self, values: Iterable[str] = (), is_key: Callable[[bytes], bool] | None = None) -> None:
        """Take the keys known by value, and what says whether an encoded word is one of the others."""
        self._values = [value.encode() for value in values if len(value) >= MIN_VALUE_LENGTH]
        self._is_key = is_key

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind)."""
        if len(text) < MIN_VALUE_LENGTH or not (self._values or self._is_key):
            return iter(())
        data = text.encode("utf-8", "replace")
        return in_characters(data, len(text), set(self._found(data)))

    def _found(self, data: bytes) -> Iterator[Span]:
        for value in self._values:
            start = data.find(value)
            while start >= 0:
                yield start, start + len(value), OWN_KEY
                start = data.find(value, start + len(value))
        if self._is_key is None:
            return
        for pattern in WORDS:
            for start, end in pattern.every(data):
                word = data[start:end]
                bare = word.strip(PUNCTUATION)
                at = start + word.find(bare)
                for begin, candidate in {(start, word), (at, bare)}:
                    if MIN_KEY_LENGTH <= len(candidate) <= MAX_KEY_LENGTH and self._is_key(candidate):
                        yield begin, begin + len(candidate), OWN_KEY


KEPT_PREFIX = "secret-"
KEPT_DIGITS = 32


@lru_cache(maxsize=4096)
def kept_id(session_id: str) -> str:
    """Return the id to store for the session id that a client sent."""
    if next(iter(secret_finder()(session_id)), None) is None:
        return session_id
    return KEPT_PREFIX + sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:KEPT_DIGITS]
