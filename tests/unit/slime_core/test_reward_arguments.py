"""Flags about graders and evaluation sets: what cannot score is refused at start, with what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from tests.helpers.checkpoints import config_only


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    return f"--hf-checkpoint {config_only(tmp_path / 'model')} --rollout-batch-size 4 --num-rollout 2".split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rm-type maths", "--rm-type: no grader 'maths'; there are dapo, deepscaler"),
        ("--rm-type math --custom-rm-path x.y", "--rm-type math has no effect with --custom-rm-path"),
        ("--rm-type remote_rm", "--rm-type remote_rm needs --rm-url"),
        ("--rm-type math --rm-url http://x", "--rm-url has no effect without --rm-type remote_rm"),
        ("--rm-type dapo", "choose one with --reward-key score"),
        ("--eval-prompt-data a b c", "needs pairs: NAME PATH"),
        ("--eval-prompt-data a b --eval-config x.yaml", "both name evaluation sets"),
        ("--eval-prompt-data a b --eval-max-response-len 0", "set a: no maximum response length"),
        ("--eval-config missing.yaml", "missing.yaml: no such file"),
        ("--eval-interval 2", "needs --eval-prompt-data NAME PATH, --eval-config FILE or --eval-function-path"),
        ("--rm-type boxed_dapo", "choose one with --reward-key score"),
    ],
)
def test_what_cannot_score_is_refused(
    words: str, message: str, base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_args([*base, *words.split()])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["--rm-type boxed_f1", "--rm-type remote_rm --rm-url http://h/r", "--rm-type dapo --reward-key score", ""]
)
def test_what_can_score_parses(words: str, base: list[str]) -> None:
    assert parse_args([*base, *words.split()]).custom_rm_path is None
