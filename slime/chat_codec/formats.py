"""The formats of thoughts and tool calls, under their names in SGLang and vLLM.

Guarantees: a format is configured (``REASONING_PARSER``, ``TOOL_CALL_PARSER``) or detected by its tags in the
checkpoint's chat template; without such tags there is none. Immutable.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chat_codec.reply_parser import CallId, ReasoningFormat, ToolParser
from chat_codec.tool_calls import JsonToolCalls, PlainToolCalls, XmlToolCalls

logger = logging.getLogger(__name__)
Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ToolFormat:
    """The format of a tool call.

    Attributes:
        parser: creates a reply's parser from the schemas of the offered tools and the ids of its calls.
        trigger: the text that begins every call.
        frame: the text before and after the arguments, from the function's name.
        style: xgrammar's name for the format of the arguments.
    """

    parser: Callable[[Schemas, CallId], ToolParser]
    trigger: str
    frame: Callable[[str], tuple[str, str]]
    style: str = "json"


def _object_head(name: str) -> str:
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


JSON_IN_TAGS = ToolFormat(
    parser=lambda schemas, call_id: JsonToolCalls(call_id),
    trigger="<tool_call>",
    frame=lambda name: (f"<tool_call>\n{_object_head(name)}", "}\n</tool_call>"),
)
XML_IN_TAGS = ToolFormat(
    parser=XmlToolCalls,
    trigger="<tool_call>",
    frame=lambda name: (f"<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>"),
    style="qwen_xml",
)
PLAIN_JSON = ToolFormat(parser=PlainToolCalls, trigger='{"name": ', frame=lambda name: (_object_head(name), "}"))

TOOL_FORMATS: Mapping[str, ToolFormat | None] = {
    "qwen25": JSON_IN_TAGS,
    "qwen": JSON_IN_TAGS,
    "qwen3": JSON_IN_TAGS,
    "hermes": JSON_IN_TAGS,
    "qwen3_coder": XML_IN_TAGS,
    "qwen3_xml": XML_IN_TAGS,
    "generic": PLAIN_JSON,
    "none": None,
}
REASONING_FORMATS: Mapping[str, ReasoningFormat | None] = {
    "qwen3": ReasoningFormat(),
    "deepseek-r1": ReasoningFormat(begins_inside=True),
    "deepseek_r1": ReasoningFormat(begins_inside=True),
    "none": None,
}


@dataclass(frozen=True)
class ReplyFormat:
    """The format of a model's replies.

    Attributes:
        reasoning: of thoughts that clients get apart, or None.
        tools: of tool calls, or None.
        thought: of thoughts that the chat template knows, whether clients get them apart or not.
    """

    reasoning: ReasoningFormat | None
    tools: ToolFormat | None
    thought: ReasoningFormat | None = None


def reply_format(
    chat_template: str,
    *,
    reasoning_parser: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_tags: str | None = None,
) -> ReplyFormat:
    """Return the configured formats, or those detected in the chat template, and log them.

    ``reasoning_tags`` has the opening and closing tag of the reasoning parser ``generic``, with a space between them.
    """
    tool_name = tool_call_parser or tool_format_of(chat_template)
    reasoning_name = reasoning_parser or ("qwen3" if "</think>" in chat_template else "none")
    detected = not (reasoning_parser and tool_call_parser)
    logger.info(
        "reasoning parser %s, tool-call parser %s%s",
        reasoning_name,
        tool_name,
        " (unset ones detected in the chat template)" if detected else "",
    )
    if reasoning_name == "generic":
        opening, closing = (reasoning_tags or "").split()
        reasoning = ReasoningFormat(opening, closing)
    else:
        reasoning = REASONING_FORMATS[reasoning_name]
    in_template = ReasoningFormat() if "</think>" in chat_template else None
    return ReplyFormat(reasoning, TOOL_FORMATS[tool_name], reasoning or in_template)


def tool_format_of(chat_template: str) -> str:
    """Return the tool-call format whose tags the chat template contains."""
    if "<function=" in chat_template and "<parameter=" in chat_template:
        return "qwen3_coder"
    return "qwen25" if "<tool_call>" in chat_template else "none"
