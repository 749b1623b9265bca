"""Arguments as the command line gives them, without a command line."""

from __future__ import annotations

import pytest

from slime.arguments import parse_args


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Return what the parser says to a command line that it must refuse."""
    with pytest.raises(SystemExit) as exit_:
        parse_args(words)
    assert exit_.value.code == 2
    return capsys.readouterr().err
