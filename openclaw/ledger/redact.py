"""Replaces secrets and personal data before a turn is stored.

Guarantees: text that matches a pattern never reaches the ledger; ``[REDACTED:kind]`` replaces it. If a request or reply
contains a secret, the turn also loses its token ids, which spell the same secret, and is excluded with reason
``redacted``. A next state or feedback is stored and judged in redacted form, and its turn is trained. Sessions take
their digests of a conversation before redaction. Ordinary text, code, hashes and numbers stay unchanged. Secrets
without a pattern, such as a password in plain words, are not found.


Modes: ``secrets`` (keys, tokens, private keys, passwords in URLs: patterns of detect-secrets and those below),
``personal`` (also e-mail addresses, phone and card numbers, IBANs and IP addresses, by Presidio), ``off``. Messages
that were seen before are not scanned again. Owned by one ledger; used from one thread at a time.
"""

from __future__ import annotations

import importlib
import math
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter

from openclaw.exceptions import ConfigError
from openclaw.ledger.records import Feedback, Turn

Mode = Literal["secrets", "personal"]
Span = tuple[int, int, str]
Json = Mapping[str, "Json"] | list["Json"] | str | float | bool | None
REDACTED = "redacted"
REMEMBERED = 8192
DIGEST_BYTES = 16
LEAST_ENTROPY_BITS = 3.5
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
OWN_PATTERNS = {
    "private_key": (
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\\[nr]|[\s\w+/=:,.\-]){64,}?"
        r"(?:-----END (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    ),
    "jwt": r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}",
    "api_key": (
        r"sk-(?:ant|proj|or|svcacct|lf)-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|AIza[\w-]{35}|github_pat_\w{40,}|gsk_[A-Za-z0-9]{40,}"
        r"|xai-[A-Za-z0-9]{40,}|npm_[A-Za-z0-9]{36}|ya29\.[\w-]{30,}|tvly-[\w-]{24,}"
    ),
}
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
PARTS = {
    "discord": re.compile(r"\.[a-zA-Z\d_-]{6}\.[a-zA-Z\d_-]{27}"),
    "mailchimp": re.compile(r"-us[0-9]"),
    "telegram_token": re.compile(r":[0-9A-Za-z_-]{35}"),
}
"""For kinds without anchors: a pattern that is part of every match and faster to search."""
URL_PASSWORD = re.compile(r"://[^\s:/?#@\"'<>]+:([^\s:/?#@\"'<>{}$*]+)@")
WORD = r"[A-Za-z0-9_+/.~-]"
LONG_KEY = re.compile(rf"sk-(?<!{WORD}sk-){WORD}{{17,}}={{0,2}}")
# A long word after a colon or equals sign, whose name may be that of a secret.
ASSIGNED = re.compile(
    rf"[:=](?<=[YTNDytnd\"'\s].)\s*[\"']?(?:(?i:bearer|basic|token)(?:\s+[\"']?|[\"']))?(?=({WORD}{{20,}}={{0,2}}))"
)
# The text before a long word that is a secret if it looks random.
BEFORE_SECRET = re.compile(
    r"(?:(?:(?:API_?KEY|SECRET|SECRET_KEY|ACCESS_KEY|TOKEN|PASSWORD|PASSWD)"
    r"|(?i:api[_-]?key|access[_-]?token|secret[_-]?key|client[_-]?secret|auth[_-]?token))[\"']?\s*[:=]"
    r"|(?i:authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)))\s*[\"']?\Z"
)
CONTEXT = 48
PLACEHOLDERS = re.compile(
    r"(?i)example|your|xxx|pass(?:word|wd)?$|^secret$|^token$|^pw$|^pwd$|\.\.\.|changeme|dummy|redacted"
)
PRESIDIO = ("EmailRecognizer", "CreditCardRecognizer", "IbanRecognizer", "IpRecognizer", "PhoneRecognizer")
INSTALL_PRIVACY = "pip install 'openclaw-rl[privacy]'"


def looks_random(text: str) -> bool:
    """Return whether a value looks random: letters and digits, at least `LEAST_ENTROPY_BITS` per character."""
    if PLACEHOLDERS.search(text) or not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return entropy >= min(LEAST_ENTROPY_BITS, math.log2(len(text)) - 0.5)


class SecretFinder:
    """Finds keys, tokens, private keys and passwords in URLs."""

    def __init__(self) -> None:
        self._patterns: dict[str, list[re.Pattern[str]]] = {}
        for module, name in DETECT_SECRETS.items():
            detector = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)()
            self._patterns[module] = list(detector.denylist)
        self._patterns |= {kind: [re.compile(pattern)] for kind, pattern in OWN_PATTERNS.items()}

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind)."""
        folded = text.casefold()
        for kind, patterns in self._patterns.items():
            anchors = ANCHORS.get(kind)
            if anchors is not None and not any(anchor in (folded if kind in FOLDED else text) for anchor in anchors):
                continue
            if kind in PARTS and not PARTS[kind].search(text):
                continue
            for pattern in patterns:
                for match in pattern.finditer(text):
                    if not PLACEHOLDERS.search(match.group()):
                        yield match.start(), match.end(), kind
        for match in URL_PASSWORD.finditer(text) if "@" in text else ():
            if not PLACEHOLDERS.search(match.group(1)):
                yield match.start(1), match.end(1), "url_password"
        for match in LONG_KEY.finditer(text):
            if looks_random(match.group()[3:]):
                yield match.start(), match.end(), "api_key"
        for match in ASSIGNED.finditer(text):
            start, end = match.span(1)
            if BEFORE_SECRET.search(text, max(0, start - CONTEXT), start) and looks_random(match.group(1)):
                yield start, end, "assignment"


class PersonalFinder:
    """Finds e-mail addresses, card and phone numbers, IBANs and IP addresses with Presidio's patterns, no model."""

    def __init__(self) -> None:
        try:
            recognizers = importlib.import_module("presidio_analyzer.predefined_recognizers")
            tldextract = importlib.import_module("tldextract.tldextract")
        except ImportError as error:
            raise ConfigError(f"OPENCLAW_REDACT=personal needs Presidio ({error}); type: {INSTALL_PRIVACY}") from error
        # Use the bundled list of domains; the default downloads one.
        vars(tldextract)["TLD_EXTRACTOR"] = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        self._recognizers = [getattr(recognizers, name)() for name in PRESIDIO]

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind)."""
        for recognizer in self._recognizers:
            for found in recognizer.analyze(text, recognizer.supported_entities, None):
                yield found.start, found.end, found.entity_type.lower()


class Redactor:
    """Replaces matches; see the module's guarantees."""

    def __init__(self, mode: Mode, on_found: Callable[[str], None] = lambda kind: None) -> None:
        """Load the patterns.

        Args:
            mode: what to search for.
            on_found: called with the kind of each replacement.

        Raises:
            ConfigError: if the library for ``personal`` is not installed.
        """
        self._finders: list[Callable[[str], Iterator[Span]]] = [SecretFinder()]
        if mode == "personal":
            self._finders.append(PersonalFinder())
        self._on_found = on_found
        self._seen: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def turn(self, turn: Turn) -> Turn:
        """Return the turn unchanged, or redacted, without ids and excluded."""
        following = None if turn.next_state is None else self.messages(turn.next_state)
        changed = replace(
            turn,
            messages=self.messages(turn.messages),
            tools=None if turn.tools is None else self.messages(turn.tools),
            response_message=self.messages([turn.response_message])[0],
            next_state=following,
        )
        if replace(turn, next_state=following) == changed:
            return changed
        return replace(
            changed,
            prompt_ids=[],
            response_ids=[],
            response_logprobs=[],
            weight_versions=[],
            reason=turn.reason or (REDACTED if turn.kind == "main" else None),
        )

    def feedback(self, feedback: Feedback) -> Feedback:
        """Return feedback with its words redacted."""
        return replace(feedback, text=None if feedback.text is None else self.text(feedback.text))

    def messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages, or tools, redacted."""
        with self._lock:
            return [self._message(message) for message in messages]

    def text(self, text: str) -> str:
        """Return a text redacted."""
        spans = sorted({span for finder in self._finders for span in finder(text)})
        parts: list[str] = []
        position = 0
        for start, end, kind in spans:
            if start < position:
                position = max(position, end)
                continue
            parts += [text[position:start], f"[REDACTED:{kind}]"]
            position = end
            self._on_found(kind)
        return "".join([*parts, text[position:]])

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            key = blake2b(orjson.dumps(message), digest_size=DIGEST_BYTES).digest()
        except orjson.JSONEncodeError:  # lone surrogates
            return self._object(message)
        if key in self._seen:
            self._seen.move_to_end(key)
            known = self._seen[key]
            return message if known is None else known
        redacted = self._object(message)
        self._seen[key] = None if redacted == message else redacted
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return redacted

    def _object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(item) for name, item in value.items()}

    def _value(self, value: Json) -> Json:
        if isinstance(value, str):
            return value if value.startswith("data:") else self.text(value)
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return value


def build_redactor(mode: Literal["secrets", "personal", "off"], registry: CollectorRegistry) -> Redactor | None:
    """Return a redactor that counts its replacements; None for ``off``."""
    if mode == "off":
        return None
    found = PrometheusCounter("openclaw_redactions", "Secrets and personal data replaced", ["kind"], registry=registry)
    return Redactor(mode, lambda kind: found.labels(kind=kind).inc())
