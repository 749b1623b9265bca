"""The error of what a person typed, one for all packages."""

from __future__ import annotations


class ConfigError(ValueError):
    """A flag, a variable or a file of settings is unusable or contradicts another; the message says what to type."""
