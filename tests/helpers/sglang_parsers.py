"""Parse replies with SGLang's own parsers: ``python -m tests.helpers.sglang_parsers < cases.json > answers.json``.

A case is ``{"parser": NAME, "text": TEXT}`` with ``"schemas"`` (function name to JSON schema) for a tool-call parser and
without for a reasoning parser. Its answer is ``[content, [[name, arguments], ...]]``, or ``[reasoning, content]``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser


def parsed(case: dict[str, Any]) -> list[Any]:
    """Return what SGLang makes of a whole text."""
    if "schemas" not in case:
        return list(ReasoningParser(case["parser"]).parse_non_stream(case["text"]))
    tools = [
        Tool(type="function", function=Function(name=name, parameters=schema))
        for name, schema in case["schemas"].items()
    ]
    content, calls = FunctionCallParser(tools, case["parser"]).parse_non_stream(case["text"])
    return [content, [[call.name, json.loads(call.parameters)] for call in calls]]


if __name__ == "__main__":
    json.dump([parsed(case) for case in json.load(sys.stdin)], sys.stdout)
