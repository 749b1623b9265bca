"""Skips a test for a package that is not installed; one that is installed and does not import fails."""

from __future__ import annotations

import importlib.util

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where one of ``packages`` (top-level names) is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
