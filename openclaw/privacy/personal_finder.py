"""Finds e-mail addresses, card and phone numbers, IBANs and IP addresses with Presidio's patterns, no model.

Presidio's patterns backtrack, and they hold the interpreter lock. They search windows of `WINDOW` characters, so that
one search is short, whatever the text contains, and the time of all grows linearly with the text. Windows overlap by
more than anything of these kinds is long.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from groundwork.exceptions import ConfigError
from openclaw.privacy.secret_finder import Span

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
