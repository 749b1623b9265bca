r"""Hints: what the tiny judge writes after a complaint, and what the tiny policy learns to follow. No state.

The tiny judge cannot put a complaint into other words, so its hint repeats what the user said (`quote`); after an error
of a tool it is about arguments. The policy follows quotes, and hints of other judges that ask for plain prose, for
formatting, or for neither.
"""

from __future__ import annotations

QUOTE = "The user said:\n"


def quote(words: str) -> str:
    """Return the hint that repeats what the user said; on a line of its own, where its tokens are those of the message."""
    return QUOTE + words


PLAIN_HINTS = [
    "Write the answer in plain casual prose without bold text, numbered lists or boxes.",
    "Use plain sentences like a student would, with no bold, no list and no box.",
    "Do not use bold, numbered steps or boxes; answer in a casual plain paragraph.",
    "The user wants natural plain text: avoid markdown bold, lists and boxed answers.",
    "Answer in one short plain paragraph, no formatting, no boxes.",
    "Keep it casual and human: no bold words, no numbered list, no boxed answer.",
    "Avoid AI-like formatting and write normal sentences.",
    "Rewrite it as simple prose without stars, numbers or boxes.",
]
MORE_PLAIN_HINTS = [
    "Please write like a person and skip all formatting.",
    "No bold. No lists. No boxed answers.",
    "Plain words only.",
    "The reply should sound natural and contain no markdown.",
]
FORMAT_HINTS = [
    "Use a numbered list with bold labels and put the number in a box.",
    "Show the steps as a numbered list.",
    "Use bold text and clear steps.",
    "Give a structured reply with a box.",
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
