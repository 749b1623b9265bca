"""The calls that known agent clients make for themselves: titles, suggestions, summaries, memories, sub-agents.

`RULES` has one row per client and kind. A row names what must all hold; a request that fits no row is the user's. A wrong
row would keep a user's words out of training, so each asks for a sentence that only the client writes, and for the tools
that it offers there. A sub-agent of Hermes cannot be told from Hermes itself and stays a main turn.

Calls of other clients are known by their shape only (`openclaw.messages.own_requests`), which excludes nothing.

Guarantees: pure functions of the request, in time linear in its length. The rules hold for every dialect once its
messages have roles and contents as in chat completions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.messages.text import content_text

ClientCall = Literal["title", "suggestion", "compaction", "memory", "search", "subagent"]


@dataclass(frozen=True)
class Asked:
    """What a request says besides its messages.

    Attributes:
        tools: whether it offers any.
        headers: names in lower case.
    """

    tools: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One call of one client; a part that is None is not looked at.

    Attributes:
        client: who makes the call.
        kind: what for.
        tools: whether the request offers tools.
        system: matches at the start of the system text.
        words: the last text of the last user message begins with them.
        header: its name, and words that its value contains.
    """

    client: str
    kind: ClientCall
    tools: bool | None = None
    system: re.Pattern[str] | None = None
    words: str | None = None
    header: tuple[str, str] | None = None


def _begins(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


CLAUDE_SYSTEM = (
    r"(?:x-anthropic-billing-header:[^\n]{0,300}?;\n?)?You are (?:Claude Code|a Claude agent), [^\n.]{0,80}\.\s{0,4}"
)
CODEX_SYSTEM = re.compile(r"You are (?:a coding agent running in the Codex CLI|Codex, a coding agent)")

RULES: tuple[Rule, ...] = (
    Rule("Claude Code", "subagent", header=("x-claude-code-agent-id", "")),
    Rule("Claude Code", "title", False, re.compile(CLAUDE_SYSTEM + "You are naming a coding session")),
    Rule("Claude Code", "search", None, re.compile(CLAUDE_SYSTEM + "You run a web search for another Claude model")),
    Rule(
        "Claude Code",
        "compaction",
        True,
        re.compile(CLAUDE_SYSTEM),
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    ),
    Rule("Codex", "subagent", header=("x-codex-parent-thread-id", "")),
    Rule("Codex", "title", False, header=("x-codex-turn-metadata", '"thread_source":"thread_title"')),
    Rule("Codex", "title", False, CODEX_SYSTEM, "Generate a concise, single-line task title of at most"),
    Rule("Codex", "compaction", False, CODEX_SYSTEM, "You are performing a CONTEXT CHECKPOINT COMPACTION."),
    Rule("opencode", "subagent", header=("x-parent-session-id", "")),
    Rule("opencode", "title", False, _begins("You are a title generator. You output ONLY a thread title.")),
    Rule("opencode", "compaction", False, _begins("You are a context summarization agent. You are given")),
    Rule("Qwen Code", "suggestion", True, _begins("You are Qwen Code, "), "[SUGGESTION MODE:"),
    Rule("Qwen Code", "memory", True, _begins("You are now acting as the managed memory extraction subagent")),
    Rule(
        "Qwen Code",
        "compaction",
        False,
        _begins("You are the component that summarizes a conversation when its context"),
    ),
    Rule(
        "Qwen Code",
        "subagent",
        True,
        _begins("You are a general-purpose subagent working for a parent agent. Complete"),
    ),
    Rule("Hermes", "title", False, _begins("Generate a short, descriptive title (3-7 words) for a conversation that")),
)


def client_call(messages: Sequence[Message], asked: Asked) -> ClientCall | None:
    """Return what a known client makes this call for, or None for a user's turn or another client's."""
    system = next((message for message in messages if message.get("role") in ("system", "developer")), {})
    said = content_text(system.get("content")).lstrip()
    words = _last_text(next((message for message in reversed(messages) if message.get("role") == "user"), {}))
    return next((rule.kind for rule in RULES if _fits(rule, asked, said, words)), None)


def _fits(rule: Rule, asked: Asked, system: str, words: str) -> bool:
    if rule.tools not in (None, asked.tools):
        return False
    if rule.header is not None:
        name, part = rule.header
        if part not in asked.headers.get(name, "") or name not in asked.headers:
            return False
    if rule.system is not None and rule.system.match(system) is None:
        return False
    return rule.words is None or words.startswith(rule.words)


def _last_text(message: Message) -> str:
    """Return a message's last text part, or its whole text; reminders come in parts of their own before it."""
    content = message.get("content")
    parts = [part for part in content if part.get("type", "text") == "text"] if isinstance(content, list) else []
    return content_text(parts[-1:] if parts else content).lstrip()
