"""Arguments under the import path that older code uses."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

from slime import arguments
from slime.args import Arguments

__all__ = ["parse_args"]


def parse_args(add_custom_arguments: Callable[[ArgumentParser], ArgumentParser | None] | None = None) -> Arguments:
    """Parse ``sys.argv`` with the flags that ``add_custom_arguments`` declares; see `slime.arguments.parse_args`."""
    return arguments.parse_args(add_custom_arguments=add_custom_arguments)
