"""Chat requests at random: every field of the API with valid, odd and hostile values. Same seed and number, same request."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.helpers.nested import nested
from tests.security.hostile_requests import CONTROL
from tests.security.server import CHAT

Make = Callable[[random.Random], Any]
MAX_FIELDS = 5
USUAL = 0.9
"""Share of the values that a well-behaved client could send; with many hostile ones nothing gets past the first check."""
INTEGERS = (0, 1, -1, 2, 7, 2**15, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30)
FLOATS = (0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 2.1, -2.0, 1e-10, 1e-38, 1e-45, 5e-324, 1e-300, 1e38, 1e300, -1e300)
TEXTS = (
    "",
    " ",
    "hi",
    "a" * 5000,
    "é🙂",
    "\x00",
    "\u202e\ufeff\u2028",
    "\ud800",
    CONTROL,
    "<think>",
    "</tool_call>",
    "{{ 7 * 7 }}{% raw %}",
    "' OR 1=1 --",
    "../../etc/passwd",
    "data: {}",
    "-----BEGIN PRIVATE KEY-----" * 50,
    "[" * 2000,
    "🙂" * 500,
    "a\u0301" * 500,
    "\r\nX-Evil: 1",
)
PLAIN = ("hi", "what is 2 + 3?", "thank you", "é🙂", "a longer question " * 40)
PATTERNS = ("(a+)+$", "[", "(?=a)", "a{1,99999}", "\\p{L}*", "^$", "(?<!b)a", "\\", ".*" * 200)
FIELD_NAMES = (
    "functions",
    "audio",
    "user",
    "metadata",
    "sampling_params",
    "rid",
    "lora_path",
    "input_ids",
    "__class__",
)


@dataclass(frozen=True)
class Generated:
    """One request: ``body`` as bytes, and the headers besides key and type."""

    body: bytes
    headers: dict[str, str]

    def curl(self, url: str) -> str:
        """Return the command that sends it again; the body's bytes go through ``printf``."""
        octal = "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b"\\%'" else f"\\{byte:03o}" for byte in self.body
        )
        headers = "".join(f" -H {shlex.quote(f'{name}: {value}')}" for name, value in self.headers.items())
        send = f"curl -s {url}{CHAT} -H 'Content-Type: application/json' -H \"Authorization: Bearer $KEY\"{headers}"
        return f"printf {shlex.quote(octal)} | {send} --data-binary @-"


def generate(seed: int, number: int) -> Generated:
    """Return request ``number`` of a seed."""
    r = random.Random(f"{seed}:{number}")
    body: dict[str, Any] = {"messages": [_message(r) for _ in range(r.randint(1, 4))], "max_tokens": r.randint(1, 8)}
    if r.random() < USUAL:
        body["messages"].append({"role": "user", "content": "go on"})
    for name in r.sample(sorted(FIELDS), r.randint(0, MAX_FIELDS)):
        body[name] = FIELDS[name](r) if r.random() < USUAL else _anything(r, 3)
    if r.random() < 0.05:
        body[r.choice(FIELD_NAMES)] = _anything(r, 3)
    text = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    if r.random() < 0.03:
        cut = r.randrange(len(text))
        text = text[:cut] + bytes([r.randrange(256)]) + text[cut + 1 :]
    headers = {}
    if r.random() < 0.2:
        headers[r.choice(("X-Session-Id", "session_id", "X-Turn-Type", "X-Session-Done", "X-Request-Id"))] = r.choice(
            ("main", "side", "1", "s", "x" * 257, "@alice:s", "@:", "a b", "sk-1234567890abcdef1234")
        )
    return Generated(text, headers)


def _anything(r: random.Random, depth: int) -> Any:
    kinds: list[Make] = [
        lambda r: None,
        lambda r: r.random() < 0.5,
        lambda r: r.choice(INTEGERS),
        lambda r: r.choice((*FLOATS, float("nan"), float("inf"))),
        lambda r: r.choice(TEXTS),
    ]
    if depth:
        kinds += [
            lambda r: [_anything(r, depth - 1) for _ in range(r.randint(0, 3))],
            lambda r: {r.choice(TEXTS): _anything(r, depth - 1) for _ in range(r.randint(0, 3))},
            lambda r: nested(r.choice((10, 99, 101, 500))),
        ]
    return r.choice(kinds)(r)


def _some(r: random.Random, usual: Sequence[Any], odd: Sequence[Any]) -> Any:
    """Return a usual value, or now and then an odd one."""
    return r.choice(usual if r.random() < USUAL else odd)


def _text(r: random.Random) -> str:
    return _some(r, PLAIN, TEXTS)


def _content(r: random.Random) -> Any:
    kind = r.random()
    if kind < 0.75:
        return _text(r)
    if kind < 0.96:
        return [{"type": "text", "text": _text(r)} for _ in range(r.randint(1, 3))]
    return r.choice((None, [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}], [{}], _anything(r, 2)))


def _message(r: random.Random) -> dict[str, Any]:
    role = r.choice(
        ("user", "user", "assistant", "tool", "system", "developer", "robot" if r.random() < 0.1 else "user")
    )
    message: dict[str, Any] = {"role": role, "content": _content(r)}
    if role == "assistant" and r.random() < 0.5:
        message["tool_calls"] = [_call(r) for _ in range(r.randint(0, 3))]
    if role == "assistant" and r.random() < 0.3:
        message["reasoning_content"] = _content(r)
    if role == "tool":
        message["tool_call_id"] = _some(r, ("call_0", "call_1"), ("", "x" * 300, 7))
    if r.random() < 0.05:
        message[r.choice(("name", "extra", "refusal", "tool_calls", "cache_control"))] = _anything(r, 3)
    return message


def _call(r: random.Random) -> dict[str, Any]:
    odd = ("", "[" * 3000, "null", '{"a": "\\ud800"}', {"a": 1}, "{" * 500, *TEXTS)
    function = {"name": _some(r, ("look",), TEXTS), "arguments": _some(r, ('{"a": 1}', "{}"), odd)}
    return {"id": _some(r, ("call_0", "call_1"), (None, "")), "type": "function", "function": function}


def _schema(r: random.Random, depth: int = 3) -> dict[str, Any]:
    if depth == 0:
        return r.choice(({"type": "string"}, {"type": "integer"}, {"$ref": "#"}, {}, {"type": "nothing"}))
    return r.choice(
        (
            lambda: {"type": "object", "properties": {r.choice(TEXTS): _schema(r, depth - 1) for _ in range(2)}},
            lambda: {"anyOf": [_schema(r, depth - 1) for _ in range(r.choice((0, 1, 4, 60)))]},
            lambda: {"type": "array", "items": _schema(r, depth - 1), "minItems": r.choice(INTEGERS)},
            lambda: {"type": "string", "pattern": r.choice(PATTERNS), "maxLength": r.choice(INTEGERS)},
            lambda: {"enum": [r.choice(TEXTS) for _ in range(r.choice((0, 3, 300)))]},
            lambda: {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            lambda: {"$ref": r.choice(("#/nowhere", "http://127.0.0.1/schema", "#"))},
            lambda: {"type": "integer", "minimum": r.choice(INTEGERS), "maximum": r.choice(INTEGERS)},
            lambda: {"const": _anything(r, 2)},
        )
    )()


def _tool(r: random.Random) -> dict[str, Any]:
    function: dict[str, Any] = {"name": _some(r, ("look", "find"), TEXTS)}
    if r.random() < 0.8:
        function["parameters"] = _schema(r)
    if r.random() < 0.3:
        function["strict"] = True
    if r.random() < 0.3:
        function["description"] = _text(r)
    return {"type": "function", "function": function}


def _format(r: random.Random) -> dict[str, Any]:
    described = {"name": _some(r, ("a",), TEXTS), "schema": _schema(r), "strict": r.random() < 0.5}
    return r.choice(({"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": described}))


def _of(usual: Sequence[Any], odd: Sequence[Any]) -> Make:
    return lambda r: _some(r, usual, odd)


def _bias(r: random.Random) -> dict[str, Any]:
    count = _some(r, (1, 3), (300,))
    return {str(_some(r, (5, 100), INTEGERS)): _some(r, (1, -5.5), FLOATS) for _ in range(count)}


def _stop(r: random.Random) -> Any:
    return r.choice((_text(r), [_text(r) for _ in range(_some(r, (1, 2), (0, 17)))]))


FLAG = _of((True, False), (0, "true"))
CHOICES = ("auto", "none", "required", {"type": "function", "function": {"name": "look"}})
FIELDS: dict[str, Make] = {
    "model": _of(("any",), TEXTS),
    "stream": FLAG,
    "stream_options": _of(({"include_usage": True}, {}), ({"x": 1}, [])),
    "tools": lambda r: [_tool(r) for _ in range(_some(r, (1, 2), (0, 70)))],
    "tool_choice": _of(CHOICES, ("any", {"type": "function", "function": {"name": "nothing"}})),
    "parallel_tool_calls": FLAG,
    "max_tokens": _of((1, 8), INTEGERS),
    "max_completion_tokens": _of((1, 8), INTEGERS),
    "temperature": _of((0.0, 0.6, 1), FLOATS),
    "top_p": _of((0.5, 1), FLOATS),
    "top_k": _of((5, -1), INTEGERS),
    "min_p": _of((0.1,), FLOATS),
    "frequency_penalty": _of((0.5,), FLOATS),
    "presence_penalty": _of((0.5,), FLOATS),
    "repetition_penalty": _of((1.1,), FLOATS),
    "logit_bias": _bias,
    "stop": _stop,
    "stop_token_ids": _of(([5], [5, 7]), ([2**31], [-1], [2**63], list(range(65)), [])),
    "ignore_eos": FLAG,
    "min_tokens": _of((0, 2), INTEGERS),
    "skip_special_tokens": FLAG,
    "seed": _of((0, 7), INTEGERS),
    "n": _of((1, 2, 3), INTEGERS),
    "logprobs": FLAG,
    "top_logprobs": _of((0, 2), INTEGERS),
    "response_format": _format,
    "modalities": _of((["text"],), (["audio"], [])),
    "reasoning_effort": _of(("none", "high"), TEXTS),
    "chat_template_kwargs": lambda r: {
        _some(r, ("enable_thinking", "note"), ("tools", "messages", "chat_template", *TEXTS)): _anything(r, 2)
    },
    "session_id": _of(("s", "t"), ("@alice:s", "x" * 257, *TEXTS)),
    "turn_type": _of(("main", "side"), ("other",)),
    "session_done": FLAG,
}
