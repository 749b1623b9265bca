"""A class for any name that is imported."""

from __future__ import annotations


def placeholder(name: str) -> type:
    """Return an empty class; names with two leading underscores do not exist."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
