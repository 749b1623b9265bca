"""A judge of groups that sees no right answer: ``OPENCLAW_JUDGE_CLASS=lab.tiny_learning.evidence.Evidence``.

It scores an episode of tool calls by what everybody can read in it: whether a call asks for what the request names, whether the last
words are in the form that the request wants, and whether they rest on what a tool returned. The environment's verdict, which it
never sees, tells whether training by it worked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from groundwork.chat_messages import Message, content_text

ASKED, FORM, GROUNDED = 0.4, 0.3, 0.3
"""What each part of the evidence adds to a score."""
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_WORD = re.compile(r"\w+|[-+*/]")


class Evidence:
    """Scores each episode by itself, from 0 to 1."""

    def score_group(self, prompt: Sequence[Message], replies: Sequence[Sequence[Message]], rubric: str) -> list[float]:
        """Return a score for each episode."""
        request = "\n".join(content_text(message["content"]) for message in prompt)
        return [_score(request, reply) for reply in replies]


def _score(request: str, reply: Sequence[Message]) -> float:
    said = [content_text(message["content"]) for message in reply if message["role"] == "assistant"]
    heard = " ".join(content_text(message["content"]) for message in reply if message["role"] == "tool")
    last = said[-1].strip() if said else ""
    named = set(_WORD.findall(request))
    calls = [_words(call) for text in said for call in _CALL.findall(text)]
    asked = any(words and words <= named for words in calls)
    form, answer = ("Done.", "") if "Done." in request else ("Answer: ", last.removeprefix("Answer: "))
    grounded = bool(calls) and set(_WORD.findall(answer)) <= set(_WORD.findall(heard))
    return ASKED * asked + FORM * last.startswith(form) + GROUNDED * grounded


def _words(call: str) -> set[str]:
    """Return the words in the arguments of a call; none if it cannot be read."""
    try:
        arguments: Any = json.loads(call)["arguments"]
    except (ValueError, KeyError, TypeError):
        return set()
    return set(_WORD.findall(" ".join(map(str, arguments.values())))) if isinstance(arguments, dict) else set()
