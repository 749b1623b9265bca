"""What a checkpoint says of whose it is: a critic's is not a policy's, and each back end reads its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit.trainer import trainer_args
from slime.backends.fsdp_utils.backend import FSDPCriticActor
from slime.backends.megatron_utils.backend import MegatronCriticActor
from slime.backends.megatron_utils.state import load_state
from slime.exceptions import CheckpointError


def with_meta(folder: Path, **meta: Any) -> Path:
    """A checkpoint folder of which only the meta is there."""
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.parametrize("kind", [FSDPCriticActor, MegatronCriticActor])
def test_a_policy_is_no_start_for_a_critic(kind: type, tmp_path: Path) -> None:
    folder = with_meta(tmp_path / "iter_0000001", role="policy", rollout_id=0)
    critic = kind(1, 0, "127.0.0.1")
    critic.args = trainer_args("model", critic_load=str(folder))
    with pytest.raises(CheckpointError, match="iter_0000001 is a checkpoint of the policy: name one of the critic"):
        critic.load_checkpoint(0)


@pytest.mark.parametrize(
    ("role", "remedy"), [("critic", "start a new critic from"), ("policy", "convert it to a Hugging Face")]
)
def test_a_checkpoint_of_the_other_back_end_is_refused_with_what_to_do(role: str, remedy: str, tmp_path: Path) -> None:
    folder = with_meta(tmp_path / "fsdp", role=role, lora=False)
    with pytest.raises(CheckpointError, match=f"was not written by Megatron: use --train-backend fsdp, or {remedy}"):
        load_state(folder, torch.nn.Identity(), None, torch.device("cpu"))
