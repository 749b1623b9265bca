"""Decide with math-verify whether two mathematical answers are equal; for a grader worker.

Symbolic comparison may take arbitrarily long, and the library's own limits need the main thread.
"""

from __future__ import annotations

import logging

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
_CONFIG = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def equal_answers(answer: str, labels: list[str]) -> bool:
    """Return whether ``answer`` equals one of ``labels``, as text or as an expression, set, interval or number."""
    text = _plain(answer)
    if not text:
        return False
    if any(text == _plain(label) for label in labels):
        return True
    parsed = _parse(text)
    return bool(parsed) and any(verify(_parse(_plain(label)), parsed, timeout_seconds=0) for label in labels)


def _plain(text: str) -> str:
    return text.strip().strip("$").strip().rstrip(".").strip()


def _parse(text: str) -> list:
    return parse(f"\\boxed{{{text}}}", _CONFIG, fallback_mode="no_fallback", parsing_timeout=0)
