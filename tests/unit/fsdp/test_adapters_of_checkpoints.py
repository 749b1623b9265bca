"""A LoRA run goes on with the adapters that its checkpoint was written with, or says which flag differs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.testkit.trainer import trainer_args
from slime.backends.trainer.rank import TrainRank
from slime.exceptions import CheckpointError

SCHEDULE = SimpleNamespace(state_dict=dict, load_state_dict=lambda state, everything: None)


def a_rank(**flags: Any) -> Any:
    args = trainer_args("model", use_lora=True, use_checkpoint_lr_scheduler=False, **flags)
    read = {"args": args, "schedule": SCHEDULE, "_read": lambda folder: {"schedule": {}}}
    return SimpleNamespace(**read, world_size=1, role=TrainRank.role)


def resume(folder: Path, before: Any, after: Any, *, without: tuple[str, ...] = ()) -> None:
    meta = {key: value for key, value in TrainRank._common_meta(before, 0).items() if key not in without}
    (folder / "meta.json").write_text(json.dumps(meta))
    TrainRank._restore(after, folder)


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
