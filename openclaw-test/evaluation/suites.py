"""The suites by name."""

from __future__ import annotations

from pathlib import Path

from evaluation.case import Suite
from evaluation.code_box import CodeBox
from evaluation.coding import Coding
from evaluation.conversation import CONVERSATION
from evaluation.retention import Retention
from evaluation.shell import Shell
from evaluation.terminal import Terminal
from evaluation.tool_use import TOOL_USE

NAMES = ("conversation", "coding", "tool-use", "shell", "terminal", "retention")


def build_suites(names: list[str], gsm8k: Path | None) -> list[Suite]:
    """Return the named suites, each with a sandbox of its own where it needs one.

    Raises:
        EvalError: the GSM8K file is unusable.
    """
    makers = {
        "conversation": lambda: CONVERSATION,
        "coding": lambda: Coding(CodeBox()),
        "tool-use": lambda: TOOL_USE,
        "shell": lambda: Shell(CodeBox()),
        "terminal": lambda: Terminal(CodeBox()),
        "retention": lambda: Retention(gsm8k),
    }
    return [makers[name]() for name in names]
