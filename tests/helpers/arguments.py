"""Arguments as the command line gives them, without a command line."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from slime.arguments import build_parser


def default_args(**changes: Any) -> Namespace:
    """Return every flag's default, not derived and not checked; ``changes`` replace values or add some."""
    return Namespace(**(vars(build_parser().parse_args([])) | changes))
