"""Every bound on what a client sends is declared once, refuses by its name, and is on the page and in the dry run."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openclaw.config import bounds as b
from openclaw.config.bounds import Bound, rows
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.chat import read_headers
from openclaw.gateway.dialects.responses import RESPONSES
from openclaw.gateway.dialects.text_completions import parse_completion
from openclaw.gateway.episodes import GroupRequest, parse_episode, parse_reward
from openclaw.gateway.errors import ApiError
from openclaw.gateway.lessons import LessonRequest
from openclaw.gateway.limits import parse_body
from openclaw.gateway.schema import parse_request
from openclaw.gateway.turns import parse_feedback
from openclaw.launch.report import limit_lines, short_limits
from tests.helpers.nested import nested
from tests.helpers.syntax import parsed

USER: dict[str, Any] = {"role": "user", "content": "Hello?"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(bound: Bound) -> str:
    """Return one character more than the bound."""
    return "x" * (bound.most + 1)


def says(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def answers(schema: dict[str, Any], name: str = "a") -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


CHAT: list[tuple[Bound, dict[str, Any]]] = [
    (b.JSON_DEPTH, {"metadata": nested(b.JSON_DEPTH.most)}),
    (b.STOP_STRINGS, {"stop": ["x"] * (b.STOP_STRINGS.most + 1)}),
    (b.STOP_CHARACTERS, {"stop": text(b.STOP_CHARACTERS)}),
    (b.STOP_CHARACTERS, {"stop": ["x" * b.STOP_CHARACTERS.most, "y"]}),
    (b.STOP_TOKENS, {"stop_token_ids": [1] * (b.STOP_TOKENS.most + 1)}),
    (b.CHOICES, {"n": b.CHOICES.most + 1}),
    (b.TOP_LOGPROBS, {"logprobs": True, "top_logprobs": b.TOP_LOGPROBS.most + 1}),
    (b.BIASED_TOKENS, {"logit_bias": {str(token): 1 for token in range(b.BIASED_TOKENS.most + 1)}}),
    (b.SESSION_ID, {"session_id": text(b.SESSION_ID)}),
    (b.MODEL_CHARACTERS, {"model": text(b.MODEL_CHARACTERS)}),
    (b.NAME_CHARACTERS, {"tools": [named(text(b.NAME_CHARACTERS))]}),
    (b.NAME_CHARACTERS, {"tools": [TOOL], "tool_choice": named(text(b.NAME_CHARACTERS))}),
    (b.NAME_CHARACTERS, answers({}, text(b.NAME_CHARACTERS))),
    (b.MESSAGES, {"messages": [USER] * (b.MESSAGES.most + 1)}),
    (b.MESSAGE_ITEMS, says(*[{"type": "text", "text": ""}] * (b.MESSAGE_ITEMS.most + 1))),
    (b.PICTURES, says(*[PICTURE] * (b.PICTURES.most + 1))),
    (b.TOOLS, {"tools": [TOOL] * (b.TOOLS.most + 1)}),
    (b.TEMPLATE_KEYWORDS, {"chat_template_kwargs": {"a": text(b.TEMPLATE_KEYWORDS)}}),
    (b.TEMPLATE_KEYWORDS, {"reasoning_effort": text(b.TEMPLATE_KEYWORDS)}),
    (b.TEMPLATE_DEPTH, {"chat_template_kwargs": nested(b.TEMPLATE_DEPTH.most + 1)}),
    (b.GRAMMAR_CHARACTERS, answers({"description": text(b.GRAMMAR_CHARACTERS)})),
    (b.GRAMMAR_SIZE, answers({"anyOf": [{"type": "string", "maxLength": 300 + more} for more in range(20)]})),
    (b.PROMPT_CHARACTERS, {"messages": [{"role": "user", "content": text(b.PROMPT_CHARACTERS)}]}),
]
"""Fields of a chat completion beyond a bound."""
EPISODE = {"task": "t", "ttl_s": 1}
read_text = partial(parse_completion, context_length=16)
read_response = partial(RESPONSES.read, context_length=4096)
OTHERS: list[tuple[Bound, Callable[[bytes], object], dict[str, Any]]] = [
    (b.SESSION_ID, parse_feedback, {"response_id": text(b.SESSION_ID), "thumbs": "up"}),
    (b.FEEDBACK_CHARACTERS, parse_feedback, {"response_id": "a", "text": text(b.FEEDBACK_CHARACTERS)}),
    (b.FEEDBACK_BODY, parse_feedback, {"response_id": "a", "text": text(b.FEEDBACK_BODY)}),
    (b.LESSON_BODY, partial(parse_body, LessonRequest, bound=b.LESSON_BODY), {"text": text(b.LESSON_BODY)}),
    (b.EPISODE_BODY, parse_episode, {**EPISODE, "metadata": {"a": text(b.EPISODE_BODY)}}),
    (b.EPISODE_BODY, parse_reward, {"status": "ok", "reward": 1, "scores": {text(b.EPISODE_BODY): 1}}),
    (b.EPISODE_NAME, parse_episode, {**EPISODE, "task": text(b.EPISODE_NAME)}),
    (b.EPISODE_NAME, parse_episode, {**EPISODE, "group": text(b.EPISODE_NAME), "group_size": 2}),
    (b.EPISODE_NAME, partial(parse_body, GroupRequest, bound=b.EPISODE_BODY), {"group": text(b.EPISODE_NAME)}),
    (b.EPISODE_SECONDS, parse_episode, {**EPISODE, "ttl_s": b.EPISODE_SECONDS.most + 1}),
    (b.TEXT_REPLIES, read_text, {"prompt": ["a"] * (b.TEXT_REPLIES.most + 1)}),
    (b.TEXT_REPLIES, read_text, {"prompt": ["a"] * b.TEXT_REPLIES.most, "n": 2}),
    (b.TOP_LOGPROBS, read_text, {"prompt": "a", "logprobs": b.TOP_LOGPROBS.most + 1}),
    (b.PROMPT_CHARACTERS, read_text, {"prompt": "x" * (b.PROMPT_CHARACTERS.most * 16 + 1)}),
    (b.EPISODE_GROUP, parse_episode, {**EPISODE, "group": "g", "group_size": b.EPISODE_GROUP.most + 1}),
    (b.MESSAGE_ITEMS, read_response, {"input": [{"type": "web_search_call"}] * (b.MESSAGE_ITEMS.most + 1)}),
    (b.LABELS, read_response, {"input": "a", "metadata": {"a": text(b.LABELS)}}),
    (b.LABELS, read_response, {"input": "a", "tools": [{"type": "namespace", "name": text(b.LABELS), "tools": []}]}),
    (
        b.MESSAGES,
        read_response,
        {"input": [{"type": "item_reference", "id": str(n)} for n in range(b.MESSAGES.most + 1)]},
    ),
]
"""Other bodies beyond a bound, with what reads them."""
ELSEWHERE = {
    "test_bodies.py": {b.BODY_MEMORY, b.BODY_SECONDS, b.BODY_STALL_SECONDS},
    "test_connections.py": {
        *(b.URL_BYTES, b.HEADER_BYTES, b.HEADER_LINES),
        *(b.HEAD_SECONDS, b.PIPELINED, b.UNREAD_SECONDS),
    },
    "test_episodes.py": {b.OPEN_EPISODES, b.EPISODE_WAIT},
    "test_guessed_keys.py": {b.WRONG_KEYS},
    "test_large_bodies.py": {b.LARGE_BODIES},
    "test_window.py": {b.FORM_FIELDS, b.WINDOW_PAGES},
    "test_pictures.py": {b.PICTURE_BYTES, b.PICTURE_PIXELS},
}
"""Bounds that are reached by more than the fields of a body, with the tests of their refusals."""
REFUSES_NOTHING = {b.HANDSHAKE_SECONDS, b.KEEP_ALIVE_SECONDS, b.LARGE_BODY}
"""A connection ends without an answer, or another process reads the body."""

WORDS = {"MAX", "MIN", "MOST", "LEAST", "LIMIT", "LONGEST", "LARGEST", "DEPTH", "TIMEOUT"}
UNITS = {"SECONDS", "BYTES", "CHARACTERS", "TOKENS", "SECOND", "DROPPED"}
# Numbers that no request can reach: pauses, caches, pages of answers, and how a bound is watched.
INTERNAL = {
    "BYTES_A_SECOND",
    "CLOSE_SECONDS",
    "DROPPED_BYTES",
    "DROP_SECONDS",
    "END_SECONDS",
    "END_TOKENS",
    "FRESH_SECONDS",
    "KEY_BYTES",
    "MAX_CHOICE_DEPTH",
    "MAX_GROUP_DEPTH",
    "MAX_FACTOR",
    "MAX_SPAN",
    "LENGTH_BYTES",
    "MAX_REFERENCE_CHAIN",
    "MAX_SWEEP_SECONDS",
    "MAX_WHITESPACE",
    "LOOK_SECONDS",
    "MAX_CACHED_BYTES",
    "MAX_CACHED_TOKENS",
    "MAX_CHOICES",
    "MAX_ENDS",
    "MAX_MEMORY_BYTES",
    "MAX_REMEMBERED",
    "MAX_REMEMBERED_TOKENS",
    "MAX_RESIDENT_KB",
    "MAX_TURNS",
    "MOST_ITEMS",
    "MOST_SESSIONS",
    "MAX_UNKNOWN",
    "MAX_UNROLLED",
    "NOTICED_SECONDS",
    "OFFER_SECONDS",
    "PIECE_BYTES",
    "POLL_SECONDS",
    "PROMPT_END_TOKENS",
    "SECONDS_A_DAY",
    "SHORT_CHARACTERS",
    "SHOWN_CHARACTERS",
    "SLOT_BYTES",
    "STANDSTILL_SECONDS",
    "TAIL_TOKENS",
    "TOKENS_PER_REPLY",
    "WINDOW_TOKENS",
}


def is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def numbers(tree: ast.AST) -> Iterator[str]:
    """Yield the constants of a module that look like bounds, and bounds of request fields without `AtMost`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                if name.isupper() and (WORDS | UNITS) & set(name.split("_")):
                    yield name
        if isinstance(node, ast.keyword) and (
            (node.arg in ("max_length", "max_items") and is_number(node.value))
            or (node.arg and isinstance(node.value, ast.Attribute) and node.value.attr == "most")
        ):
            yield f"{node.arg}={ast.unparse(node.value)}"


def counted(tree: ast.AST) -> Iterator[str]:
    """Yield the names by which a module counts refusals, where it spells them out."""
    for node in ast.walk(tree):
        spelled = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("on_limit"):
            spelled = node.args
        if isinstance(node, ast.keyword) and node.arg == "limit":
            spelled = [node.value]
        yield from (each.value for each in spelled if isinstance(each, ast.Constant) and isinstance(each.value, str))


def modules(repository: Path) -> Iterator[ast.Module]:
    for folder in ("openclaw/gateway", "slime/chat_codec"):
        yield from map(parsed, (repository / folder).rglob("*.py"))


def test_no_bound_hides_in_the_gateway(repository: Path) -> None:
    found = {number for tree in modules(repository) for number in numbers(tree)}
    assert found - INTERNAL == set(), "declare bounds on what clients send in openclaw/config/bounds.py"
    assert INTERNAL - found == set(), "these are gone"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MAX_STOP = 4", "MAX_STOP"),
        ("MAX_BYTES: int = 4 << 20", "MAX_BYTES"),
        ("class A:\n    LONGEST = 2.5", "LONGEST"),
        ("a = Field(max_length=256)", "max_length=256"),
        ("a = Field(le=CHOICES.most)", "le=CHOICES.most"),
    ],
)
def test_a_hidden_bound_is_found(text: str, name: str) -> None:
    assert list(numbers(ast.parse(text))) == [name]


def test_refusals_are_counted_by_declared_names(repository: Path) -> None:
    declared = {row.name for row in rows(RuntimeConfig())}
    found = {name for tree in modules(repository) for name in counted(tree)}
    assert {"body_bytes", "connections", "requests_under_way"} <= found
    assert found - declared == set()


def test_the_dry_run_has_every_bound() -> None:
    config = RuntimeConfig(max_requests=8, api_keys_file="keys")
    lines = [line.split() for line in limit_lines(config)]
    assert [line[0] for line in lines] == [row.name for row in rows(config)]
    values = {line[0]: line[1] for line in lines}
    assert (values["requests_under_way"], values["concurrent"], values["tokens"]) == ("8", "2", "none")
    short = short_limits(config)
    assert short == "33554432 bytes and 32768 tokens a request, 8 requests at once"


@pytest.mark.parametrize(("bound", "body"), CHAT, ids=lambda value: value.name if isinstance(value, Bound) else "")
def test_a_chat_completion_beyond_a_bound_is_refused_by_its_name(bound: Bound, body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(
            json.dumps({"messages": [USER], **body}).encode(),
            context_length=1 if bound is b.PROMPT_CHARACTERS else None,
        )
    field = list(body)[-1]
    param = {"metadata": None, "reasoning_effort": "chat_template_kwargs"}.get(field, field)
    assert (caught.value.status, caught.value.limit, caught.value.param) == (400, bound.name, param)


@pytest.mark.parametrize(
    ("body", "limit", "message"),
    [
        ({"tools": [named("<" * 300)]}, "name_characters", "tools.0.function.name: send at most 256 characters"),
        ({"stop_token_ids": [-1] * 65}, "stop_tokens", "stop_token_ids: send at most 64 ids"),
        ({"stop_token_ids": ["x"]}, None, "stop_token_ids.0: Input should be a valid integer"),
        ({"session_id": 300 * [1]}, None, "session_id: Input should be a valid string"),
        ({"n": 0}, None, "n: Input should be greater than or equal to 1"),
    ],
)
def test_a_bound_comes_after_the_type_and_before_other_rules(
    body: dict[str, Any], limit: str | None, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(json.dumps({"messages": [USER], **body}).encode(), context_length=None)
    assert (caught.value.limit, str(caught.value)) == (limit, message)


@pytest.mark.parametrize(("bound", "parse", "body"), OTHERS)
def test_another_body_beyond_a_bound_is_refused_by_its_name(
    bound: Bound, parse: Callable[[bytes], object], body: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as caught:
        parse(json.dumps(body).encode())
    too_large = bound in (b.EPISODE_BODY, b.FEEDBACK_BODY, b.LESSON_BODY)
    assert (caught.value.status, caught.value.limit) == (413 if too_large else 400, bound.name)


@pytest.mark.parametrize("header", ["x-session-id", "session_id", "x-session-affinity"])
def test_a_long_session_id_in_a_header_is_refused_by_its_name(header: str) -> None:
    request, _ = parse_request(json.dumps({"messages": [USER]}).encode())
    with pytest.raises(ApiError) as caught:
        read_headers({header: text(b.SESSION_ID)}, request)
    assert (caught.value.status, caught.value.limit) == (400, "session_id")


def test_every_bound_is_used_and_its_refusal_tested(repository: Path) -> None:
    here = {row[0] for row in (*CHAT, *OTHERS)}
    assert sorted(bound.name for bound in (*here, *REFUSES_NOTHING, *set().union(*ELSEWHERE.values()))) == sorted(
        bound.name for bound in b.FIXED
    )
    for test, bounds in ELSEWHERE.items():
        words = (Path(__file__).parent / test).read_text()
        assert [bound.name for bound in bounds if f'"{bound.name}"' not in words] == [], test
    declared = {name for name, value in vars(b).items() if isinstance(value, Bound)}
    nodes = (
        node
        for folder in ("gateway", "runtime")
        for path in (repository / "openclaw" / folder).rglob("*.py")
        for node in ast.walk(parsed(path))
    )
    imported = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == b.__name__
        for alias in node.names
    }
    assert declared - imported == set(), "nothing reads these"


def test_names_are_unique() -> None:
    names = [row.name for row in rows(RuntimeConfig())]
    assert len(names) == len(set(names))
