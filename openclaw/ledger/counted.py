"""Count things in a sentence: ``1 turn``, ``2 turns``."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
