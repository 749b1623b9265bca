"""Arguments as the command line gives them, without a command line."""

from __future__ import annotations

import functools
from argparse import Namespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments import build_parser, parse_args


@functools.cache
def _defaults() -> dict[str, Any]:
    return vars(build_parser().parse_args([]))


def default_args(**changes: Any) -> Arguments:
    """Return every flag's default, not derived and not checked; ``changes`` replace values or add some."""
    own = {name: value.copy() if isinstance(value, list | dict) else value for name, value in _defaults().items()}
    return Namespace(**(own | changes))


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Return what the parser says to a command line that it must refuse."""
    with pytest.raises(SystemExit) as exit_:
        parse_args(words)
    assert exit_.value.code == 2
    return capsys.readouterr().err
