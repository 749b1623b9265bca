"""``slime/eval_only.py``: exit codes, table and JSON, with a run that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eval_only
import pytest

from tests.helpers.checkpoints import config_only

METRICS = {
    "eval/aime": 0.625,
    "eval/aime/answers": 8,
    "eval/aime-pass@1": 0.5,
    "eval/aime-pass@2": 0.75,
    "eval/aime-truncated_ratio": 0.25,
    "eval/aime/response_len/mean": 31.6,
    "eval/facts": 0.1,
    "eval/facts/answers": 3,
    "eval/step": 0,
}


class FakeRun:
    """Reports progress once and has the metrics above."""

    def evaluate(self, rollout_id: int, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
        on_progress(0, 0)
        on_progress(3, 11)
        return dict(METRICS)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return f"--hf-checkpoint {config_only(tmp_path / 'model')} --eval-max-response-len 8 --device cpu".split()


def test_scores_are_printed_and_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(args: Any, loop: Callable[[Any], None], *, collects: bool) -> int:
        assert not collects, "an evaluation starts no gateway"
        assert args.debug_rollout_only
        assert [one.name for one in args.eval_datasets] == ["aime", "facts"]
        loop(FakeRun())
        return 0

    monkeypatch.setattr("slime.ray.run.execute", execute)
    sets = ["--eval-prompt-data", "aime", "a.jsonl", "facts", "b.jsonl"]
    target = tmp_path / "scores.json"
    assert eval_only.main([*words, *sets, "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert report["scores"] == {"aime": 0.625, "facts": 0.1}
    assert report["metrics"].keys() == METRICS.keys() | {"perf/evaluation_time"}
    lines = capsys.readouterr().out.splitlines()
    titles = next(line for line in lines if "score" in line)
    assert titles.index("pass@1") < titles.index("pass@2") < titles.index("truncated") < titles.index("answers")
    assert "timeouts" not in titles  # of which there is nothing to show
    row = next(line for line in lines if "aime" in line)
    for cell in ("0.625", "0.500", "0.750", "25.0%", "32", "8"):
        assert f" {cell} " in row


def test_a_run_that_failed_is_no_success(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ["--eval-prompt-data", "aime", "a.jsonl", "--json", str(tmp_path / "scores.json")]
    for code in (1, 0):  # a failure, and a signal before there was a result
        monkeypatch.setattr("slime.ray.run.execute", lambda args, loop, collects, code=code: code)
        assert eval_only.main([*words, *sets]) == 1
    assert not (tmp_path / "scores.json").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "nothing to evaluate on; add --eval-prompt-data NAME PATH"),
        (
            ["--eval-prompt-data", "a", "b", "--json", "/no/such/folder/x.json"],
            "--json /no/such/folder/x.json: there is no folder /no/such/folder",
        ),
    ],
)
def test_what_is_missing_is_named(
    words: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_only.main([*words, *more]) == 2
    assert message in capsys.readouterr().err


def test_help_says_what_the_program_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        eval_only.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "Evaluate --hf-checkpoint on the sets" in text
    assert "--json FILE" in text
