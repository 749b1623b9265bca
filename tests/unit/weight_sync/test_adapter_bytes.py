"""What an adapter push moves: the adapter's elements in the type of the push, and little besides."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.weight_sync import engine_sync
from slime.weight_sync.adapter import AdapterWeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from tests.helpers.weight_receivers import CPU, sync_args
from tests.unit.weight_sync.test_failed_pushes import Server

RANK = 16
QWEN3_4B_LAYER = {
    "self_attn.q_proj": (2560, 4096),
    "self_attn.k_proj": (2560, 1024),
    "self_attn.v_proj": (2560, 1024),
    "self_attn.o_proj": (4096, 2560),
    "mlp.gate_proj": (2560, 9728),
    "mlp.up_proj": (2560, 9728),
    "mlp.down_proj": (9728, 2560),
}
ELEMENTS = RANK * sum(map(sum, QWEN3_4B_LAYER.values()))
BYTES_OF_A_NAME = 500


class Keeping(Server):
    """Keeps what it is sent."""

    def do(self, method: str, *arguments: Any) -> Any:
        if method == "load_lora_adapter_from_tensors":
            self.message, self.checksums = arguments[2], arguments[3]
        return super().do(method, *arguments)


def adapter() -> dict[str, Tensor]:
    found = {}
    for name, (inputs, outputs) in QWEN3_4B_LAYER.items():
        found[f"base_model.model.model.layers.0.{name}.lora_A.weight"] = torch.randn(RANK, inputs)
        found[f"base_model.model.model.layers.0.{name}.lora_B.weight"] = torch.randn(outputs, RANK)
    return found


@pytest.mark.parametrize(("train_dtype", "width"), [("bfloat16", 2), ("float32", 4)])
def test_an_adapter_travels_in_the_type_of_the_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train_dtype: str, width: int
) -> None:
    monkeypatch.setattr(engine_sync.dist, "get_rank", lambda: 0)
    lora = {"lora_rank": RANK, "lora_alpha": RANK, "lora_target_modules": ["q_proj"]}
    args = sync_args(tmp_path, update_weight_mode="adapter", train_dtype=train_dtype, **lora)
    sync, engine, pushed = AdapterWeightSync(args, device=CPU, address="127.0.0.1"), Keeping(), adapter()
    sync.connect([RemoteEngine(engine)])
    sync.push(iter(pushed.items()), "1")
    assert ELEMENTS == 917_504
    assert ELEMENTS * width < sync.moved_bytes < ELEMENTS * width + BYTES_OF_A_NAME * len(pushed)
    found = pickle.loads(engine.message)
    assert all(torch.equal(found[name], value.to(getattr(torch, train_dtype))) for name, value in pushed.items())
