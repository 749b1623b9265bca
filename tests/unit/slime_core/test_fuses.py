"""What a fuse is, which of them the command line refuses, and the note that training is paused (finding B7)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from groundwork import paused
from openclaw import resume
from slime.args import Arguments
from slime.arguments.algorithm import check_fuses
from slime.utils.fuses import Fuse, blown, read_fuse


@pytest.mark.parametrize(
    ("text", "value", "blows"),
    [
        ("train/ppo_kl>0.5", 0.5, False),
        ("train/ppo_kl>0.5", 0.51, True),
        ("train/ppo_kl<-0.5", -0.51, True),
        ("train/entropy_loss<1e-2", 0.02, False),
        ("train/entropy_loss<1e-2", 0.0, True),
        ("rollout/response_len/of_limit>0.9", math.nan, True),
        ("train/entropy_loss<0.01", math.nan, True),
    ],
)
def test_a_fuse_is_a_bound(text: str, value: float, blows: bool) -> None:
    fuse = read_fuse(text)
    assert read_fuse(str(fuse)) == fuse
    found = blown([text], {fuse.metric: value})
    assert (found is not None) is blows
    if found is not None:
        assert str(found) == f"{fuse} (it is {value:.4g})"


def test_the_first_blown_fuse_counts_and_missing_metrics_blow_none() -> None:
    fuses = ["a<1", "b>2", "c>3"]
    assert blown(fuses, {"b": 5, "c": 5}) == (Fuse("b", True, 2.0), 5)
    assert blown(fuses, {}) is None
    assert blown(None, {"a": 0}) is None


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ({"fuses": ["train/ppo_kl>0.5", "a<1"]}, None),
        ({"fuses": ["train/ppo_kl"]}, "'train/ppo_kl' is not a fuse; write METRIC>NUMBER"),
        ({"fuses": ["a>much"]}, "'much' is not a number"),
        ({"fuses": ["a>nan"]}, "'nan' is not a number"),
        ({"fuses": ["train/grad_norm>9"]}, "train/grad_norm is only known after the step"),
        (
            {"fuses": ["train/ppo_kl>1"], "global_batch_size": 4},
            "a rollout has 2 steps of --global-batch-size 4; give 8",
        ),
        ({"fuses": ["rollout/reward<0"], "global_batch_size": 4}, None),
        ({"resume_training": True}, "--resume-training has no effect without --resume; add it"),
        ({"resume_training": True, "resume": True}, None),
    ],
)
def test_what_is_refused(flags: dict[str, Any], wrong: str | None) -> None:
    args = Arguments(**{"rollout_batch_size": 8, "n_samples_per_prompt": 1, "global_batch_size": 8, **flags})
    problems = check_fuses(args)
    assert len(problems) == (wrong is not None)
    assert not problems or (wrong or "") in problems[0]


def test_the_note_outlives_the_process_that_wrote_it(tmp_path: Path, repository: Path) -> None:
    assert paused.paused(tmp_path) is None
    dies = f"import os\nfrom groundwork.paused import pause\npause({str(tmp_path)!r}, 7, 'a>1 (it is 2)')\nos._exit(9)"
    found = subprocess.run([sys.executable, "-c", dies], cwd=repository / "slime", check=False)
    assert found.returncode == 9
    note = paused.paused(tmp_path)
    assert str(note) == "training is paused since rollout 7: a>1 (it is 2)"
    assert sorted(path.name for path in tmp_path.iterdir()) == [paused.NAME]
    assert (tmp_path / paused.NAME).stat().st_mode & 0o777 == 0o600
    assert paused.resume(tmp_path) == note
    assert paused.resume(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", '{"rollout_id": 3}', '"x"'])
def test_a_note_that_is_unreadable_still_pauses(tmp_path: Path, text: str) -> None:
    (tmp_path / paused.NAME).write_text(text)
    assert "unreadable" in str(paused.paused(tmp_path))


def test_the_command_that_lets_a_run_train_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paused.pause(tmp_path, 3, "train/ppo_kl>0.5 (it is 2)")
    assert json.loads((tmp_path / paused.NAME).read_text())["rollout_id"] == 3
    assert resume.main([str(tmp_path)]) == 0
    assert "it was: training is paused since rollout 3: train/ppo_kl>0.5" in capsys.readouterr().out
    assert resume.main([str(tmp_path)]) == 2
    assert resume.main([str(tmp_path / "none")]) == 2
    assert "training is not paused" in capsys.readouterr().err
