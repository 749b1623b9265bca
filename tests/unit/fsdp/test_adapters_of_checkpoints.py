"""A LoRA run goes on with the adapters that its checkpoint was written with, or says which flag differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.trainer import trainer_args
from slime.exceptions import CheckpointError
from tests.helpers.idle_ranks import IdleRank, idle_rank


def a_rank(**flags: Any) -> IdleRank:
    return idle_rank(trainer_args("model", use_lora=True, use_checkpoint_lr_scheduler=False, **flags))


def resume(folder: Path, before: IdleRank, after: IdleRank, *, without: tuple[str, ...] = ()) -> None:
    meta = {key: value for key, value in before._meta(0).items() if key not in without}
    (folder / "meta.json").write_text(json.dumps(meta))
    after._restore(folder)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"lora_alpha": 9}, "written with --lora-alpha 8; use the same flags"),
        ({"lora_rank": 2}, "written with --lora-rank 4;"),
        ({"lora_target_modules": ["q_proj"]}, "written with --lora-target-modules down_proj,gate_proj,"),
    ],
)
def test_other_adapters_are_refused(tmp_path: Path, flags: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        resume(tmp_path, a_rank(), a_rank(**flags))


def test_the_same_adapters_and_those_of_older_checkpoints_go_on(tmp_path: Path) -> None:
    resume(tmp_path, a_rank(), a_rank())
    resume(tmp_path, a_rank(), a_rank(lora_alpha=9), without=("adapters",))
