"""A checkpoint of adapters is not loaded as one of all weights, nor the reverse, nor one of another back end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from slime.backends.megatron_utils.state import load_state
from slime.exceptions import CheckpointError


@pytest.mark.parametrize(
    ("meta", "adapters", "words"),
    [
        ({"backend": "megatron", "lora": True}, None, "holds LoRA adapters: add --use-lora"),
        ({"backend": "megatron", "lora": False}, object(), "holds full weights: remove --use-lora"),
        ({"lora": False}, None, "use --train-backend fsdp"),
    ],
)
def test_another_kind_of_checkpoint_is_refused(meta: dict, adapters: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"optimizer": True}))
    with pytest.raises(CheckpointError, match=words):
        load_state(tmp_path, SimpleNamespace(adapters=adapters), None, torch.device("cpu"))
