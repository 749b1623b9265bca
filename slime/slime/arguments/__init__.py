"""Typed arguments of the training core, declared by topic and validated before anything starts."""

from __future__ import annotations

from slime.arguments.parser import build_parser, parse_args

__all__ = ["build_parser", "parse_args"]
