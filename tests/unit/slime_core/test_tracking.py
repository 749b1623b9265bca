"""Tracking: what is logged is on disk at once, and no secret ever is."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from slime.args import Arguments
from slime.arguments.tracking import NO_TRACKIO, check_tracking
from slime.tracking.redact import redacted
from slime.tracking.trackers import run_name
from slime.utils import logging_utils


@pytest.fixture
def args(tmp_path: Path) -> Iterator[Arguments]:
    values = Arguments(
        run_dir=str(tmp_path / "run"),
        use_tensorboard=False,
        use_wandb=False,
        use_trackio=False,
        trackio_project=None,
        wandb_mode="offline",
        wandb_project="p",
        wandb_group=None,
        wandb_team=None,
        wandb_dir=None,
        input_key="prompt",
        lr=1e-5,
        rollout_stop_token_ids=[3],
        max_tokens_per_gpu=8192,
    )
    vars(values).update(sglang_api_key="s3cret", sglang_admin_api_key=None, hf_token="s3cret")
    yield values
    logging_utils.finish_tracking(values)


def test_json_lines_are_there_when_log_returns(args: Arguments) -> None:
    logging_utils.log(args, {"train/step": 0, "train/loss": np.float32(0.5)}, "train/step")
    lines = Path(args.run_dir, "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    assert (row["train/loss"], row["train/step"], row["step_key"]) == (0.5, 0, "train/step")


def test_the_step_axis_must_be_there(args: Arguments) -> None:
    with pytest.raises(KeyError, match="train/step"):
        logging_utils.log(args, {"train/loss": 1.0}, "train/step")


def test_no_secret_is_written(args: Arguments) -> None:
    shown = redacted(args)
    assert (shown["sglang_api_key"], shown["hf_token"]) == ("set", "set")
    assert (shown["input_key"], shown["max_tokens_per_gpu"], shown["lr"]) == ("prompt", 8192, 1e-5)
    logging_utils.log(args, {"train/step": 0}, "train/step")
    for file in Path(args.run_dir).rglob("*"):
        assert not file.is_file() or "s3cret" not in file.read_text()


def test_tensorboard_by_flag(args: Arguments) -> None:
    pytest.importorskip("tensorboard")
    args.use_tensorboard = True
    logging_utils.log(args, {"train/step": 1, "train/loss": 0.5}, "train/step")
    logging_utils.finish_tracking(args)
    assert list(Path(args.run_dir, "tensorboard").glob("events.*"))
    assert Path(args.run_dir, "metrics.jsonl").is_file()


def test_tensorboard_folders(args: Arguments, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    args.use_tensorboard, args.tensorboard_dir = True, str(tmp_path / "tb")
    args.tb_project_name, args.tb_experiment_name = "project", "first"
    logging_utils.log(args, {"train/step": 1, "train/loss": 0.5}, "train/step")
    logging_utils.finish_tracking(args)
    assert list((tmp_path / "tb" / "project" / "first").glob("events.*"))


class RecordedRun:
    """Takes what a W&B run is given."""

    def define_metric(self, *names: str, **options: str) -> None:
        pass

    def log(self, metrics: dict) -> None:
        pass

    def finish(self) -> None:
        pass


@pytest.fixture
def wandb_settings(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What ``wandb.init`` was called with."""
    wandb = pytest.importorskip("wandb")
    given: dict = {}

    def init(**options: object) -> RecordedRun:
        given.update(options)
        return RecordedRun()

    monkeypatch.setattr(wandb, "init", init)
    for name in ("WANDB_API_KEY", "WANDB_KEY"):
        monkeypatch.delenv(name, raising=False)
    return given


def test_wandb_flags(args: Arguments, wandb_settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "from-environment")
    args.use_wandb, args.wandb_key, args.wandb_host = True, "s3cret", "https://wandb.example"
    args.wandb_group, args.wandb_run_id, args.wandb_random_suffix = "qwen3", "abc", False
    logging_utils.log(args, {"train/step": 1}, "train/step")
    assert os.environ["WANDB_API_KEY"] == "s3cret"
    assert wandb_settings["settings"].base_url == "https://wandb.example"
    assert (wandb_settings["name"], wandb_settings["id"], wandb_settings["resume"]) == ("qwen3", "abc", "allow")
    assert wandb_settings["config"]["wandb_key"] == "set"


def test_where_a_wandb_run_goes(args: Arguments, wandb_settings: dict, tmp_path: Path) -> None:
    args.use_wandb, args.wandb_dir = True, str(tmp_path / "elsewhere")
    args.wandb_project, args.wandb_team, args.wandb_mode = "terminal", "a-team", "disabled"
    logging_utils.log(args, {"train/step": 1}, "train/step")
    given = {name: wandb_settings[name] for name in ("project", "entity", "mode", "dir")}
    assert given == {"project": "terminal", "entity": "a-team", "mode": "disabled", "dir": str(tmp_path / "elsewhere")}
    assert Path(args.wandb_dir).is_dir()


def test_a_wandb_run_is_its_group_and_a_random_suffix(args: Arguments) -> None:
    args.wandb_group, args.wandb_random_suffix = "qwen3", True
    names = {run_name(args), run_name(args)}
    assert len(names) == 2
    assert all(name is not None and name.startswith("qwen3_") for name in names)
    args.wandb_group = None
    assert run_name(args) is None


def test_trackio_flags(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict] = []
    logged: list[tuple[dict, int]] = []

    class Recorded(RecordedRun):
        def log(self, metrics: dict, step: int | None = None) -> None:
            assert step is not None
            logged.append((metrics, step))

    def init(**options: object) -> RecordedRun:
        given.append(options)
        return Recorded()

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    args.use_trackio, args.trackio_project = True, "mine"
    logging_utils.log(args, {"train/step": 7, "train/loss": np.float32(0.5)}, "train/step")
    (options,) = given
    assert (options["project"], options["name"], options["resume"]) == ("mine", "run", "allow")
    assert options["config"]["sglang_api_key"] == "set"
    assert logged == [({"train/step": 7, "train/loss": 0.5}, 7)]


def test_trackio_that_is_not_installed_is_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert check_tracking(Arguments.of({"use_trackio": True})) == [NO_TRACKIO]
    assert check_tracking(Arguments.of({})) == []
    unused = "--trackio-project has no effect without --use-trackio"
    assert check_tracking(Arguments.of({"trackio_project": "p"})) == [unused]
