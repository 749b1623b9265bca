"""``checkpoint-500`` and ``checkpoint-latest``: what they stand for, when a run continues and when weights are served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evaluation.case import EvalError
from evaluation.options import read_options, targets

from groundwork.checkpoint_names import LATEST, named_checkpoint, others_than, trained_checkpoint
from openclaw.models.places import missing_model, served_folder
from slime.arguments import parse_args
from slime.conversion.command_line import read_conversion
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import looks_whole, published


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints after 400 and 500 rollouts, the second the newest."""
    place = tmp_path / "saved"
    for number in (400, 500):
        published(place, number)
    return place


def test_the_names_stand_for_folders(root: Path) -> None:
    newest, older = str(root), str(root / "iter_0000400")
    for name in ("checkpoint-500", "checkpoint-latest", "checkpoint-0500"):
        assert named_checkpoint(str(root / name)) == newest
        assert trained_checkpoint(str(root / name)) == root / "iter_0000500"
    assert named_checkpoint(f"{root}/checkpoint-400/") == older
    for other in ("checkpoint-600", "checkpoint-", "iter_0000400", "checkpoint-latest.zip"):
        assert named_checkpoint(str(root / other)) == str(root / other)
    assert named_checkpoint("checkpoint-latest") == "checkpoint-latest", "no run is here"
    assert others_than(str(root / "checkpoint-600")) == f"; {root} has checkpoint-400, checkpoint-500"
    (root / "checkpoint-400").mkdir()
    assert named_checkpoint(str(root / "checkpoint-400")) == str(root / "checkpoint-400"), "somebody's own folder"


def test_a_name_outlives_no_checkpoint(root: Path) -> None:
    """Halfway through a replacement the newest has the name ``.old``; a deleted one is named by nothing."""
    (root / "iter_0000500").rename(root / "iter_0000500.old")
    assert trained_checkpoint(str(root / "checkpoint-latest")) == root / "iter_0000500.old"
    assert named_checkpoint(str(root / "checkpoint-500")) == str(root)
    (root / "iter_0000500.old").rename(root / "gone")
    assert trained_checkpoint(str(root / "checkpoint-latest")) is None
    assert not [path for path in root.iterdir() if path.is_symlink()]


def test_a_run_continues_from_a_name(root: Path, base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    save = ["--save", str(root), "--save-interval", "1"]
    for name in ("checkpoint-500", "checkpoint-latest"):
        assert parse_args([*base, *save, "--resume-from-checkpoint", str(root / name)]).load == str(root)
    older = ["--resume-from-checkpoint", str(root / "checkpoint-400")]
    assert parse_args([*base, *older]).load == str(root / "iter_0000400")
    said = refusal(capsys, [*base, *save, *older])
    assert f"type: echo 400 > {root / LATEST}, and replace --load with --resume" in said
    assert f"{root} has checkpoint-400, checkpoint-500" in refusal(
        capsys, [*base, "--load", str(root / "checkpoint-7")]
    )


def test_a_tool_takes_a_name(root: Path, tmp_path: Path) -> None:
    words = ["--input-dir", str(root / "checkpoint-400"), "--origin-hf-dir", str(tmp_path), "--output-dir", "out"]
    assert read_conversion("convert", None, words).input_dir == root / "iter_0000400"


def test_a_checkpoint_without_weights_says_how_to_get_them(root: Path) -> None:
    told = f"--input-dir {root}/iter_0000500 --origin-hf-dir MODEL --output-dir FOLDER"
    for name in ("checkpoint-latest", "iter_0000500"):
        said = missing_model(str(root / name))
        assert said is not None
        assert "a checkpoint of the trainer, without Hugging Face weights; convert it: python slime/tools/" in said
        assert told in said
    assert str(missing_model(str(root / "checkpoint-6"))).endswith(f"{root} has checkpoint-400, checkpoint-500")
    written = looks_whole(root / "hf-499")
    assert served_folder(str(root / "checkpoint-latest")) == str(written)
    assert served_folder(str(root / "checkpoint-400")) == str(root / "checkpoint-400")


def test_an_evaluation_converts_what_a_name_stands_for(root: Path, tmp_path: Path) -> None:
    named = ["--model-path", str(root / "checkpoint-latest")]
    with pytest.raises(EvalError, match=r"the model that its run began with \(None\) is not here; convert it"):
        targets(read_options(named)[0])
    origin = looks_whole(tmp_path / "model")
    for number in (400, 500):
        meta = root / f"iter_{number:07d}" / "meta.json"
        meta.write_text(json.dumps({"rollout_id": number - 1, "hf_checkpoint": str(origin)}))
    compared = ["--compare-to", str(root / "checkpoint-400")]
    [this, other] = targets(read_options([*named, *compared])[0])
    assert (this.run, this.path) == ((root / "iter_0000500", origin), None)
    assert (other.run, other.name) == ((root / "iter_0000400", origin), str(root / "checkpoint-400"))
    written = looks_whole(root / "hf-499")
    [this] = targets(read_options(named)[0])
    assert (this.run, this.path) == (None, str(written))
    [this] = targets(read_options(["--model-path", str(origin)])[0])
    assert (this.run, this.path) == (None, str(origin))
