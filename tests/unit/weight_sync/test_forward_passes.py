"""No weight changes under a forward pass: after a pause in place a push waits for the engines' GPUs, once."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slime.arguments.trainer import uses_loader
from slime.weight_sync import engine_loader
from slime.weight_sync.broadcast import BroadcastWeightSync, DeltaWeightSync
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.shared_memory import SharedMemoryWeightSync
from tests.helpers.weight_receivers import CPU, sync_args


class Engine:
    """Answers everything; executes requests to the loader."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **keywords: Any) -> Any:
            self.log.append(name)
            if name == "update_weights_from_tensor":
                engine_loader.load(None, pickle.loads(arguments[0]))
            answer: Future[Any] = Future()
            answer.set_result(1)
            return SimpleNamespace(future=lambda: answer)

        return SimpleNamespace(remote=remote)


OPENED = ["pause_generation", "begin_weight_update"]
WAITED = [*OPENED, "update_weights_from_tensor", "the GPU is idle"]


@pytest.mark.parametrize("transport", [SharedMemoryWeightSync, BroadcastWeightSync, DeltaWeightSync])
@pytest.mark.parametrize(
    ("device", "mode", "expected"),
    [("cuda", "in_place", WAITED), ("cuda", "retract", OPENED), ("cpu", "in_place", OPENED)],
)
def test_a_push_waits_for_a_pass_that_a_pause_in_place_left_running(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transport: type[EngineWeightSync],
    device: str,
    mode: str,
    expected: list[str],
) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("the GPU is idle"))
    sync = transport(sync_args(tmp_path, device=device, weight_update_mode=mode), device=CPU, address="127.0.0.1")
    sync._engines = [RemoteEngine(Engine(log))]
    sync._open()
    assert log == expected


def test_an_engine_starts_with_the_loader_that_waits(tmp_path: Path) -> None:
    in_place = sync_args(tmp_path, device="cuda", weight_update_mode="in_place", update_weight_transport="nccl")
    assert uses_loader(in_place)
    assert not uses_loader(in_place.changed(weight_update_mode="retract"))
    assert not uses_loader(in_place.changed(update_weight_mode="adapter"))
