"""Image and video readers, by name only: any name that is imported is an empty class."""

from __future__ import annotations


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
