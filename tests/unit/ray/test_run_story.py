"""What a run tells its user: a line per step, where to look, and what to type to continue."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from groundwork.checkpoint_names import LATEST
from groundwork.process import Stopped
from slime.args import Arguments
from slime.arguments.checkpoint import CONTINUE_VARIABLE
from slime.exceptions import TrainerError
from slime.ray.reports import continue_line, step_line
from slime.ray.run import Run, execute
from slime.rollout.data_source import Story
from slime.rollout.metrics import judged, rollout_metrics
from slime.utils.types import Sample

STORY = Story(("serves   http://127.0.0.1:1/v1",), ("inspect  python -m x",))


def sample(reward: float, score: float | None) -> Sample:
    metadata = {} if score is None else {"raw_reward": score}
    return Sample(tokens=[1, 2], response_length=1, response="a", reward=reward, metadata=metadata)


def test_the_step_line_tells_the_methods_reward_from_the_judges_score() -> None:
    samples = [sample(0.5, 1.0), sample(-0.25, -1.0), sample(0.0, 0.0), sample(0.75, 1.0)]
    metrics = rollout_metrics(Arguments(reward_key=None), samples, 2.0)
    line = step_line(3, {**metrics, "rollout/staleness_mean": 1.0, "perf/step_time": 1.25}, "4")
    assert line == (
        "step 3  reward +0.250  score +0.250  liked 0.50  samples 4  stale 1.0  collect 2.0s  step 1.2s  weights 4"
    )


def test_samples_without_a_judge_have_no_score() -> None:
    assert judged([sample(1.0, None), sample(1.0, 1.0)]) == {}
    assert "score" not in step_line(0, {"rollout/reward": 1.0}, "1")


@pytest.fixture
def saved(tmp_path: Path) -> Arguments:
    (tmp_path / LATEST).write_text("3")
    return Arguments(save=str(tmp_path))


def test_only_a_run_with_a_checkpoint_can_be_continued(saved: Arguments, tmp_path: Path) -> None:
    words = ["train_async.py", "--lr", "1e-6", "--wandb-key", "s3cret"]
    line = continue_line(saved, words, {})
    assert line == shlex.join([sys.executable, "train_async.py", "--lr", "1e-6", "--wandb-key", "***", "--resume"])
    assert continue_line(saved, ["train.py", "--resume"], {}) == shlex.join([sys.executable, "train.py", "--resume"])
    assert continue_line(saved, words, {CONTINUE_VARIABLE: "bash run.sh --resume"}) == "bash run.sh --resume"
    assert continue_line(Arguments(save=None), words, {}) is None
    assert continue_line(Arguments(save=str(tmp_path / "empty")), words, {}) is None


@pytest.mark.parametrize(
    ("error", "first", "last"),
    [
        (Stopped(), "stopped", "continue bash run.sh --resume"),
        (TrainerError("rank 0 died"), "inspect  python -m x", "the run failed: rank 0 died."),
        (None, "inspect  python -m x", "inspect  python -m x"),
    ],
)
def test_the_end_says_where_to_look_and_how_to_continue(
    saved: Arguments, monkeypatch: pytest.MonkeyPatch, capsys: Any, error: Exception | None, first: str, last: str
) -> None:
    def loop(run: Run) -> None:
        run._show(STORY)
        if error is not None:
            raise error

    monkeypatch.setattr(Run, "_start", lambda self: None)
    monkeypatch.setenv(CONTINUE_VARIABLE, "bash run.sh --resume")
    execute(saved, loop)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == STORY.start[0]
    assert (lines[1], lines[-1]) == (first, last)
    assert lines.count("inspect  python -m x") == 1
    assert ("continue bash run.sh --resume" in lines) == (error is not None)


def test_a_restart_does_not_repeat_the_story(capsys: Any) -> None:
    run = Run(Arguments(save=None))
    run._show(STORY)
    run._show(STORY)
    assert capsys.readouterr().out.splitlines() == list(STORY.start)
