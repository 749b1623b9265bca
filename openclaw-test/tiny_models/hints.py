r"""Hints: what the tiny judge writes after a complaint, and what the tiny policy learns to follow. Plain data, no state.

The policy knows hints that ask for plain prose, for formatting, and for neither; the judge writes the first kind after
complaints of users, and one about arguments after errors of tools.
"""

from __future__ import annotations

PLAIN_HINTS = [
    r"Write the answer in plain casual prose without bold text, numbered lists or \boxed{}.",
    r"Use plain sentences like a student would, with no bold, no list and no \boxed{}.",
    r"Do not use bold, numbered steps or \boxed{}; answer in a casual plain paragraph.",
    "The user wants natural plain text: avoid markdown bold, lists and boxed answers.",
    r"Answer in one short plain paragraph, no formatting, no \boxed{}.",
    "Keep it casual and human: no bold words, no numbered list, no boxed answer.",
    "Avoid AI-like formatting and write normal sentences.",
    r"Rewrite it as simple prose without stars, numbers or \boxed{}.",
]
MORE_PLAIN_HINTS = [
    "Please write like a person and skip all formatting.",
    "No bold. No lists. No boxed answers.",
    "Plain words only.",
    "The reply should sound natural and contain no markdown.",
]
FORMAT_HINTS = [
    r"Use a numbered list with bold labels and put the answer in \boxed{}.",
    "Show the steps as a numbered list.",
    "Use bold text and clear steps.",
    r"Give a structured answer with \boxed{}.",
]
NEUTRAL_HINTS = [
    "Check the numbers carefully.",
    "Read the question again.",
    "Make sure the result is right.",
]
TOOL_HINTS = [
    "Call the calculator with one valid expression.",
    "Check the arguments of the tool call.",
]
