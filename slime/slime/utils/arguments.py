"""The arguments under the path that older code imports them from."""

from __future__ import annotations

from slime.arguments import parse_args

__all__ = ["parse_args"]
