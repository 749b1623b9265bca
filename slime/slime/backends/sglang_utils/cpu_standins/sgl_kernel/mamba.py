"""Operators of state-space models; see the package."""

from __future__ import annotations

from ._operators import missing_operator


def __getattr__(name: str) -> object:
    return missing_operator(name)
