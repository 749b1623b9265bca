"""Weights & Biases itself, writing files only; what it is given is tested with a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.args import Arguments
from slime.backends.trainer.process import wandb_folders
from slime.utils import logging_utils


def test_an_offline_run_writes_files_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    args = Arguments(run_dir=str(tmp_path), use_wandb=True, wandb_mode="offline")
    vars(args).update(sglang_api_key="s3cret", hf_token="s3cret")
    logging_utils.log(args, {"train/step": 1, "train/loss": 0.5}, "train/step")
    logging_utils.finish_tracking(args)
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert [Path(folder).is_dir() for folder in wandb_folders()] == [True, True]
    assert not any(b"s3cret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
