"""Every bound on what a client may send, declared once: bytes, characters, tokens, connections, seconds.

A bound is either fixed here or an environment variable (`openclaw.config.runtime_variables`). The dry run prints them,
``openclaw_limit_hits_total{limit}`` counts the requests that reached one, and ``instructions/security.md`` lists them.

Guarantees: no other module of the gateway holds such a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.config.runtime import RuntimeConfig


@dataclass(frozen=True)
class Bound:
    """A fixed bound.

    Attributes:
        name: in metrics and in the header ``X-Limit`` of a refusal.
        most: the largest allowed value.
        unit: of ``most``.
        help: what it bounds.
    """

    name: str
    most: int
    unit: str
    help: str


JSON_DEPTH = Bound("json_depth", 100, "levels", "nesting of a request body")
STOP_STRINGS = Bound("stop_strings", 16, "strings", "stop strings of a request")
STOP_TOKENS = Bound("stop_tokens", 64, "ids", "stop_token_ids of a request")
CHOICES = Bound("choices", 8, "replies", "n, the replies to one request")
TOP_LOGPROBS = Bound("top_logprobs", 20, "tokens", "top_logprobs of a request")
FEEDBACK_CHARACTERS = Bound("feedback_characters", 16384, "characters", "text of one feedback")
SESSION_ID = Bound("session_id", 256, "characters", "a session id")

FIXED: tuple[Bound, ...] = (
    JSON_DEPTH,
    STOP_STRINGS,
    STOP_TOKENS,
    CHOICES,
    TOP_LOGPROBS,
    FEEDBACK_CHARACTERS,
    SESSION_ID,
)

ADJUSTABLE: tuple[tuple[str, str, str], ...] = (
    ("body_bytes", "max_body_bytes", "bytes"),
    ("requests_under_way", "max_requests", "requests"),
    ("context_tokens", "context_length", "tokens"),
    ("feedback_per_minute", "rate_limit_feedback", "requests per minute and key"),
)
"""(name, field of the configuration, unit) of the bounds that an environment variable sets."""


@dataclass(frozen=True)
class Row:
    """A bound with its value; ``variable`` changes it, or is None."""

    name: str
    value: int | float | None
    unit: str
    help: str
    variable: str | None


def rows(config: RuntimeConfig) -> Sequence[Row]:
    """Return all bounds with the values of ``config``; a value of None means unbounded."""
    fixed = [Row(bound.name, bound.most, bound.unit, bound.help, None) for bound in FIXED]
    adjustable = []
    for name, field, unit in ADJUSTABLE:
        variable = RuntimeConfig.declared(field)
        adjustable.append(Row(name, getattr(config, field), unit, variable.help, variable.name))
    return [*adjustable, *fixed]
