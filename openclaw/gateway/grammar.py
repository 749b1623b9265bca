"""The form that a reply must have, as a structural tag for the engine's grammar.

The engine enforces ``response_format``, a ``tool_choice`` that requires a call, ``parallel_tool_calls: false`` and
``strict`` functions. A thought before the answer stays free. The tags are those of xgrammar, SGLang's grammar back end.

Guarantees: a request without these parameters has no grammar, so its reply is sampled from the unchanged policy. Pure
functions.
"""

from __future__ import annotations

from typing import Any

import orjson

from chat_codec.formats import ReasoningFormat, ToolFormat
from openclaw.gateway.errors import unsupported
from openclaw.gateway.schema import ChatRequest, Tool

Format = dict[str, Any]
LONGEST_WHITESPACE = 16
"""Most whitespace characters in a row within JSON; without a bound a small model may write them forever."""
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def reply_grammar(
    request: ChatRequest, tool_format: ToolFormat | None, reasoning: ReasoningFormat | None, thought: str
) -> str | None:
    """Return the structural tag that the reply must follow, or None.

    Args:
        request: the validated request.
        tool_format: of the model's tool calls, or None.
        reasoning: format of its thoughts, or None.
        thought: ``open`` or ``closed`` if the prompt ends in such a thought, otherwise ``none``.

    Raises:
        ApiError: 400, if the request needs a tool format and there is none.
    """
    body = _body(request, tool_format)
    if body is None:
        return None
    return orjson.dumps({"type": "structural_tag", "format": _after_thought(body, reasoning, thought)}).decode()


def _body(request: ChatRequest, tool_format: ToolFormat | None) -> Format | None:
    schema = request.response_schema
    answer = None if schema is None else json_content(schema)
    if not request.offers_tools:
        return answer
    forced = request.must_call
    one = request.parallel_tool_calls is False or request.named_tool is not None
    strict = any(tool.function.strict for tool in request.callable_tools)
    if not (answer or forced or one or strict):
        return None
    if tool_format is None:
        raise unsupported(
            "tool_choice" if forced else "tools",
            "this server has no tool-call format for the model (TOOL_CALL_PARSER); send tool_choice 'auto', without "
            "'parallel_tool_calls': false, 'strict' and 'response_format'",
        )
    tags = [call_tag(tool, tool_format) for tool in request.callable_tools]
    calls: Format = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": one,
    }
    if forced:
        return calls
    if answer is not None:
        return {"type": "or", "elements": [calls, answer]}
    return {
        "type": "triggered_tags",
        "triggers": [tool_format.trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": one,
    }


def json_content(schema: dict[str, Any] | bool, style: str = "json") -> Format:
    """Return the format of a JSON value, or of parameters in another ``style`` of xgrammar."""
    return {"type": "json_schema", "json_schema": schema, "style": style, "max_whitespace_cnt": LONGEST_WHITESPACE}


def call_tag(tool: Tool, tool_format: ToolFormat) -> Format:
    """Return the format of a call to ``tool``, with arguments that follow its schema."""
    begin, end = tool_format.frame(tool.function.name)
    content = json_content(tool.function.parameters or ANY_OBJECT, tool_format.style)
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _after_thought(body: Format, reasoning: ReasoningFormat | None, thought: str) -> Format:
    """Return ``body`` preceded by an optional thought, or by the rest of an open one."""
    if reasoning is None or thought == "closed":
        return body
    inside = thought == "open" or reasoning.begins_inside
    rest: Format = {
        "type": "tag",
        "begin": "" if inside else reasoning.open,
        "content": {"type": "any_text", "excludes": [reasoning.open, reasoning.close]},
        "end": f"{reasoning.close}\n\n",
    }
    return {"type": "sequence", "elements": [rest if inside else {"type": "optional", "content": rest}, body]}
