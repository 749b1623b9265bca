"""Every bound on what a client may send, declared once: bytes, characters, tokens, connections, seconds.

A bound is either fixed here or an environment variable (`openclaw.config.runtime_variables`). The dry run prints them,
``openclaw_limit_hits_total{limit}`` counts the requests that reached one, and ``instructions/reference/limits.md`` lists
them.

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
TEXT_REPLIES = Bound("text_replies", 32, "replies", "n times the prompts of a text completion")
TOP_LOGPROBS = Bound("top_logprobs", 20, "tokens", "top_logprobs of a request")
FEEDBACK_CHARACTERS = Bound("feedback_characters", 16384, "characters", "text of one feedback")
SESSION_ID = Bound("session_id", 256, "characters", "a session id")

NAME_CHARACTERS = Bound("name_characters", 256, "characters", "the name of a function, tool or schema")
MODEL_CHARACTERS = Bound("model_characters", 1024, "characters", "model, the name of the model that is asked")

URL_BYTES = Bound("url_bytes", 8192, "bytes", "path and query of a request")
HEADER_BYTES = Bound("header_bytes", 65536, "bytes", "all header lines of a request")
HEADER_LINES = Bound("header_lines", 256, "lines", "header lines of a request")
HEAD_SECONDS = Bound(
    "head_seconds", 10, "seconds", "from a request's first byte, or a new connection, to its last header"
)
HANDSHAKE_SECONDS = Bound("handshake_seconds", 10, "seconds", "of a TLS handshake")
PIPELINED = Bound("pipelined_requests", 16, "requests", "waiting on one connection behind the request under way")
KEEP_ALIVE_SECONDS = Bound("keep_alive_seconds", 10, "seconds", "that a connection stays open without a request")
UNREAD_SECONDS = Bound("unread_seconds", 60, "seconds", "during which a client reads nothing of its answer")
BODY_STALL_SECONDS = Bound("body_stall_seconds", 30, "seconds", "during which no byte of a body arrives")
BODY_SECONDS = Bound("body_seconds", 60, "seconds", "for a whole body, plus one for each 16 KiB that arrived")
BODY_MEMORY = Bound("body_memory", 268435456, "bytes", "all bodies that no handler has taken yet")
WRONG_KEYS = Bound(
    "wrong_keys", 20, "requests", "with an unknown key per minute and address; a key that worked from there still does"
)
# Of a chat completion: what the tokenizer, the engine and the ledger get to see.
PROMPT_CHARACTERS = Bound("prompt_characters", 16, "characters", "of prompt text, for each token of the context")
MESSAGES = Bound("messages", 4096, "messages", "messages of a request")
MESSAGE_ITEMS = Bound("message_items", 8192, "items", "content parts and tool calls of all messages")
PICTURES = Bound("pictures", 64, "pictures", "pictures in the messages of a request")
PICTURE_BYTES = Bound("picture_bytes", 8 << 20, "bytes", "the file of one picture")
PICTURE_PIXELS = Bound("picture_pixels", 1 << 24, "pixels", "width times height of one picture")
TOOLS = Bound("tools", 512, "tools", "tools of a request")
TEMPLATE_KEYWORDS = Bound("template_keywords", 8192, "characters", "chat_template_kwargs as JSON")
TEMPLATE_DEPTH = Bound("template_depth", 8, "levels", "nesting of chat_template_kwargs")
LABELS = Bound("labels", 1 << 16, "characters", "what a response repeats besides texts and tools, as JSON")
STOP_CHARACTERS = Bound("stop_characters", 2048, "characters", "all stop strings together")
BIASED_TOKENS = Bound("biased_tokens", 1024, "ids", "entries of logit_bias")
GRAMMAR_CHARACTERS = Bound("grammar_characters", 32768, "characters", "all schemas that a reply must follow, as JSON")
GRAMMAR_SIZE = Bound("grammar_size", 4096, "rules", "estimated size of the grammar of all those schemas")
LARGE_BODY = Bound(
    "large_body", 1 << 17, "bytes", "a body that the runtime reads by itself; a worker process reads larger"
)
FEEDBACK_BODY = Bound("feedback_body", 1 << 18, "bytes", "the body of one feedback")
FORM_FIELDS = Bound("form_fields", 16, "fields", "fields of a form of the window")
WINDOW_PAGES = Bound("window_pages", 16, "pages", "pages of the window that are kept up to date for one key")
LESSON_BODY = Bound("lesson_body", 1 << 14, "bytes", "the body of a request about lessons")
EPISODE_BODY = Bound("episode_body", 1 << 16, "bytes", "the body of a request that creates or rewards an episode")
EPISODE_NAME = Bound("episode_name", 1024, "characters", "the task and the group of an episode")
EPISODE_SECONDS = Bound("episode_seconds", 604800, "seconds", "the longest time to live of an episode")
EPISODE_GROUP = Bound("episode_group", 1024, "episodes", "the size of a group of episodes")
OPEN_EPISODES = Bound("open_episodes", 4096, "episodes", "open episodes of one key")
EPISODE_WAIT = Bound("episode_wait", 10, "seconds", "that rewarding or deleting an episode waits for its replies")
LARGE_BODIES = Bound("large_bodies", 1 << 28, "bytes", "bodies that wait for the worker process")

FIXED: tuple[Bound, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Bound))
"""All of the above, in their order."""

ADJUSTABLE: tuple[tuple[str, str, str], ...] = (
    ("body_bytes", "max_body_bytes", "bytes"),
    ("requests_under_way", "max_requests", "requests"),
    ("context_tokens", "context_length", "tokens"),
    ("feedback_per_minute", "rate_limit_feedback", "requests per minute and key"),
    ("connections", "max_connections", "connections"),
    ("concurrent", "rate_limit_concurrent", "requests per key"),
    ("requests", "rate_limit_requests", "requests per minute and key"),
    ("tokens", "rate_limit_tokens", "tokens per minute and key"),
)
"""(name, field of the configuration, unit) of the bounds that an environment variable sets."""

EFFECTIVE = {"rate_limit_concurrent": "concurrent_per_key"}
"""Properties of the configuration with the value of an unset variable whose default depends on others."""


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
        value = getattr(config, EFFECTIVE.get(field, field))
        adjustable.append(Row(name, value, unit, variable.help, variable.name))
    return [*adjustable, *fixed]
