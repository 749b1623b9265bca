"""The flags of a server for programs: its own defaults, and a help that names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.clients.arguments import DEFAULTS, client_arguments


def none(parser: object) -> None:
    """Declare no further flag."""


def test_a_flag_that_is_given_wins_over_the_servers_default(tiny_random_model: Path, tmp_path: Path) -> None:
    words = ["--device", "cpu", "--hf-checkpoint", str(tiny_random_model), "--num-gpus", "2"]
    words += ["--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1", "--run-dir", str(tmp_path)]
    args = client_arguments(words, none)
    assert (args.run_dir, args.max_tokens_per_gpu) == (str(tmp_path), int(DEFAULTS["--max-tokens-per-gpu"]))


def test_help_names_the_servers_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        client_arguments(["--help-all"], none)
    shown = " ".join(capsys.readouterr().out.split())
    for value in DEFAULTS.values():
        assert f"(default: {value})" in shown
    assert "default: runs/<date>" not in shown
