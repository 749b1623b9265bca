"""Replaces secrets and personal data in messages and texts before they are stored.

Guarantees: text that matches a pattern is replaced by ``[REDACTED:kind]``, also in names of object fields and in template
keywords. Ordinary text, code, hashes and numbers stay unchanged. Secrets without a pattern, such as a password in plain
words, are not found, nor are those that a picture shows. Time grows linearly with the text.

Modes: ``secrets`` (keys, tokens, private keys, passwords in URLs, the server's own keys), ``personal`` (also e-mail
addresses, phone and card numbers, IBANs and IP addresses, by Presidio), ``off``. Messages that were seen before are not
scanned again. A redactor belongs to one ledger; its lock serialises scans of messages.

Personal data is found with Presidio's patterns, no model. They backtrack, and they hold the interpreter lock, so they search
windows of `WINDOW` characters: one search is short, whatever the text contains, and the time of all grows linearly with the text.
Windows overlap by more than anything of these kinds is long.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter

from groundwork.exceptions import ConfigError
from openclaw.privacy.secret_finder import MIN_LENGTH, LinearPattern, OwnKeyFinder, Span, secret_finder

PRESIDIO = ("EmailRecognizer", "CreditCardRecognizer", "IbanRecognizer", "IpRecognizer", "PhoneRecognizer")
INSTALL_PRIVACY = "pip install 'presidio-analyzer>=2.2.360'"
WINDOW = 1024
OVERLAP = 512
"""Twice the length of the longest value that is found in any place."""


def windows(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the windows; their edges are spaces where there are any, or a cut hash looks like a number."""
    start = 0
    while start + WINDOW < len(text):
        latest = start + WINDOW
        space = max(text.rfind(mark, latest - OVERLAP // 4, latest) for mark in " \n")
        end = latest if space < 0 else space
        yield start, end
        spaces = [found for mark in " \n" if (found := text.find(mark, end - OVERLAP, end - OVERLAP // 2)) >= 0]
        start = min(spaces, default=end - OVERLAP)
    yield start, len(text)


class PersonalFinder:
    """Finds personal data; see the module."""

    def __init__(self) -> None:
        """Load Presidio.

        Raises:
            ConfigError: if it is not installed.
        """
        try:
            recognizers = importlib.import_module("presidio_analyzer.predefined_recognizers")
            tldextract = importlib.import_module("tldextract.tldextract")
        except ImportError as error:
            raise ConfigError(f"OPENCLAW_REDACT=personal needs Presidio ({error}); type: {INSTALL_PRIVACY}") from error
        # Use the bundled list of domains; the default downloads one.
        vars(tldextract)["TLD_EXTRACTOR"] = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        self._recognizers = [getattr(recognizers, name)() for name in PRESIDIO]

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind); the part of a value in one window may come beside the whole of it."""
        for start, end in windows(text):
            for recognizer in self._recognizers:
                for result in recognizer.analyze(text[start:end], recognizer.supported_entities, None):
                    yield start + result.start, start + result.end, result.entity_type.lower()


Mode = Literal["secrets", "personal"]
Json = Mapping[str, "Json"] | list["Json"] | str | float | bool | None
REMEMBERED = 8192
DIGEST_BYTES = 16
MEDIA_TYPES = frozenset(
    {"audio_url", "file", "image", "image_url", "input_audio", "input_file", "input_image", "video_url"}
)
"""Kinds of content parts that carry a file."""
MEDIA = LinearPattern(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]*")
"""A file inside a content part; anything else that begins with ``data:`` is text."""


class Redactor:
    """Replaces matches; see the module's guarantees.

    Example:
        >>> Redactor("secrets").text("export OPENAI_API_KEY=sk-proj-" + "aB3dE5gH" * 6)
        'export OPENAI_API_KEY=[REDACTED:api_key]'
    """

    def __init__(
        self,
        mode: Mode,
        on_found: Callable[[str], None] = lambda kind: None,
        own_keys: OwnKeyFinder | None = None,
    ) -> None:
        """Load the patterns.

        Args:
            mode: what to search for.
            on_found: called with the kind of each replacement.
            own_keys: finds the server's own keys.

        Raises:
            ConfigError: if the library for ``personal`` is not installed.
        """
        self._finders: list[Callable[[str], Iterator[Span]]] = [secret_finder()]
        if own_keys is not None:
            self._finders.append(own_keys)
        if mode == "personal":
            self._finders.append(PersonalFinder())
        self._on_found = on_found
        self._seen: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages, or tools, redacted."""
        with self._lock:
            return [self._message(message) for message in messages]

    def text(self, text: str) -> str:
        """Return a text redacted."""
        if len(text) < MIN_LENGTH:
            return text
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
            return self.object(message)
        if key in self._seen:
            self._seen.move_to_end(key)
            known = self._seen[key]
            return message if known is None else known
        redacted = self.object(message)
        self._seen[key] = None if redacted == message else redacted
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return redacted

    def object(self, value: Mapping[str, Any], media: bool = False) -> dict[str, Any]:
        """Return an object redacted, names of fields included; ``media``: whether it is part of a file's content part."""
        kind = value.get("type")
        media = media or (isinstance(kind, str) and kind in MEDIA_TYPES)
        redacted: dict[str, Any] = {}
        for name, item in value.items():
            known = self.text(name)
            while known != name and (known in redacted or known in value):
                known += "'"  # two names that are both secrets stay two
            redacted[known] = self._value(item, media)
        return redacted

    def _value(self, value: Json, media: bool = False) -> Json:
        if isinstance(value, str):
            return value if media and is_media(value) else self.text(value)
        if isinstance(value, Mapping):
            return self.object(value, media)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return value


def is_media(value: str) -> bool:
    """Return whether a text is a file as a ``data:`` URL."""
    return value.startswith("data:") and MEDIA.whole(value.encode("utf-8", "replace"))


def build_redactor(
    mode: Literal["secrets", "personal", "off"], registry: CollectorRegistry, own_keys: OwnKeyFinder | None = None
) -> Redactor | None:
    """Return a redactor that counts its replacements; None for ``off``."""
    if mode == "off":
        return None
    counter = PrometheusCounter(
        "openclaw_redactions", "Secrets and personal data replaced", ["kind"], registry=registry
    )
    return Redactor(mode, lambda kind: counter.labels(kind=kind).inc(), own_keys)
