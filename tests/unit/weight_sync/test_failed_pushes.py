"""What a push that fails leaves behind: nothing on disk that is this run's, and no rank waiting for rank 0."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.backends.trainer import hf_folder
from slime.weight_sync import engine_sync
from slime.weight_sync.disk import DiskWeightSync
from tests.helpers.weight_receivers import CPU, SPEC, sync_args, weights


class Willing:
    """An engine that does everything; ``refuses`` is the method it refuses."""

    refuses = ""

    def __getattr__(self, name: str) -> Any:
        answer: Future[Any] = Future()
        if name == self.refuses:
            answer.set_exception(RuntimeError(f"{name} is refused"))
        else:
            answer.set_result(1)
        reference = Namespace(future=lambda: answer)
        return Namespace(remote=lambda *arguments, **keywords: reference)


@pytest.fixture(autouse=True)
def rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sync.dist, "get_rank", lambda: 0)


def disk_sync(run_dir: Path, engine: Willing, **changes: Any) -> DiskWeightSync:
    args = sync_args(run_dir, update_weight_transport="disk", **changes)
    sync = DiskWeightSync(args, device=CPU, address="127.0.0.1")
    sync.connect([engine])
    return sync


def folders(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())


def test_rank_zero_gathers_to_the_end_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(hf_folder, "_SHARD_BYTES", 1)
    monkeypatch.setattr(hf_folder, "save_file", full)
    gathered: list[str] = []

    def gather() -> Iterator[tuple[str, Tensor]]:
        for name, value in weights(1).items():
            gathered.append(name)  # the other ranks take part in this
            yield name, value

    sync = disk_sync(tmp_path, Willing())
    with pytest.raises(OSError, match="no space left"):
        sync.push(gather(), "1")
    assert gathered == list(SPEC)
    sync.close()
    assert folders(tmp_path / "weights") == []


def test_a_run_that_ends_after_a_failed_push_leaves_no_weights(tmp_path: Path) -> None:
    engine = Willing()
    sync = disk_sync(tmp_path, engine)
    sync.push(iter(weights(1).items()), "1")
    engine.refuses = "update_weights_from_disk"
    with pytest.raises(RuntimeError, match="is refused"):
        sync.push(iter(weights(2).items()), "2")
    sync.close()
    assert folders(tmp_path / "weights") == []


def test_weights_of_another_run_in_the_same_folder_stay(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "weight_v90").mkdir(parents=True)
    sync = disk_sync(tmp_path, Willing(), update_weight_disk_dir=str(shared))
    for version in ("7", "8", "8", "9"):
        sync.push(iter(weights(1).items()), version)
    assert folders(shared) == ["weight_v8", "weight_v9", "weight_v90"]
    sync.connect([Willing()])
    assert folders(shared) == ["weight_v8", "weight_v9", "weight_v90"]
    sync.close()
    assert folders(shared) == ["weight_v90"]


def test_what_a_trainer_that_died_left_in_the_run_folder_goes(tmp_path: Path) -> None:
    (tmp_path / "weights" / "weight_v12").mkdir(parents=True)
    sync = disk_sync(tmp_path, Willing())
    sync.push(iter({"w": torch.ones(2)}.items()), "3")
    assert folders(tmp_path / "weights") == ["weight_v12", "weight_v3"]
    sync.push(iter({"w": torch.ones(2)}.items()), "4")
    assert folders(tmp_path / "weights") == ["weight_v3", "weight_v4"]
    sync.close()
    assert folders(tmp_path / "weights") == []
