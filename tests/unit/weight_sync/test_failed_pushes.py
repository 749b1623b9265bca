"""What a push that fails leaves behind: nothing on disk that is this run's, and no rank waiting for rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.checkpoints import checkpoint_folder
from slime.weight_sync import adapter_version, engine_sync
from slime.weight_sync.adapter import AdapterWeightSync
from slime.weight_sync.disk import DiskWeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from tests.helpers.weight_receivers import CPU, SPEC, sync_args, weights


class Willing:
    """An engine that does everything; ``refuses`` is the method it refuses."""

    refuses = ""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def do(self, method: str, *arguments: Any) -> Any:
        """What the engine answers."""
        return 1

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **keywords: Any) -> Any:
            self.asked.append(name)
            answer: Future[Any] = Future()
            if name == self.refuses:
                answer.set_exception(RuntimeError(f"{name} is refused"))
            else:
                answer.set_result(self.do(name, *arguments))
            return SimpleNamespace(future=lambda: answer)

        return SimpleNamespace(remote=remote)


@pytest.fixture(autouse=True)
def rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sync.dist, "get_rank", lambda: 0)


def disk_sync(run_dir: Path, engine: Willing, **changes: Any) -> DiskWeightSync:
    args = sync_args(run_dir, update_weight_transport="disk", **changes)
    sync = DiskWeightSync(args, device=CPU, address="127.0.0.1")
    sync.connect([RemoteEngine(engine)])
    return sync


def folders(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())


def test_rank_zero_gathers_to_the_end_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint_folder, "_SHARD_BYTES", 1)
    monkeypatch.setattr(checkpoint_folder, "save_file", full)
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
    sync.connect([RemoteEngine(Willing())])
    assert folders(shared) == ["weight_v8", "weight_v9", "weight_v90"]
    sync.close()
    assert folders(shared) == ["weight_v90"]


@pytest.mark.parametrize(("keep", "after"), [(True, ["weight_v1", "weight_v2", "weight_v3"]), (False, [])])
def test_every_version_stays_on_the_disk_where_the_flag_wants_it(tmp_path: Path, keep: bool, after: list[str]) -> None:
    sync = disk_sync(tmp_path, Willing(), update_weight_disk_keep_files=keep)
    for version in ("1", "2", "3"):
        sync.push(iter(weights(1).items()), version)
    assert folders(tmp_path / "weights") == (after or ["weight_v2", "weight_v3"])
    sync.close()
    assert folders(tmp_path / "weights") == after


@pytest.mark.parametrize("own", [True, False])
def test_what_a_trainer_that_died_left_on_the_disk_goes(tmp_path: Path, own: bool) -> None:
    """Also what it had not finished, and in a folder that other runs use."""
    shared = tmp_path / "weights"
    (shared / "weight_v90").mkdir(parents=True)
    changes = {} if own else {"update_weight_disk_dir": str(shared)}
    dead = disk_sync(tmp_path, Willing(), **changes)
    for version in ("11", "12"):
        dead.push(iter(weights(1).items()), version)
    (shared / "weight_v12").rename(shared / "weight_v12.tmp")
    sync = disk_sync(tmp_path, Willing(), **changes)
    sync.push(iter(weights(1).items()), "3")
    assert folders(shared) == ["weight_v12.tmp", "weight_v3", "weight_v90"]
    sync.push(iter(weights(1).items()), "4")
    assert folders(shared) == ["weight_v3", "weight_v4", "weight_v90"]
    sync.close()
    assert folders(shared) == ["weight_v90"]


def test_a_rank_that_wrote_nothing_leaves_the_list_of_who_did(tmp_path: Path) -> None:
    """Every rank closes its transport, and rank 0 may die before it has removed its files."""
    wrote = disk_sync(tmp_path, Willing())
    wrote.push(iter(weights(1).items()), "1")
    DiskWeightSync(wrote._args, device=CPU, address="127.0.0.1").close()
    assert wrote._list.exists()
    wrote.close()
    assert not wrote._list.exists()


def test_a_session_that_another_trainer_left_open_is_closed(tmp_path: Path) -> None:
    engine = Willing()
    disk_sync(tmp_path, engine)
    assert "close_left_session" in engine.asked


class Server(Willing):
    """Keeps adapters."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.loaded = ["the model", *names]

    def do(self, method: str, *arguments: Any) -> Any:
        if method == "lora_adapters":
            return list(self.loaded)
        if method == "load_lora_adapter_from_tensors":
            self.loaded.append(arguments[0])
        if method == "unload_lora_adapter" and arguments[0] in self.loaded:
            self.loaded.remove(arguments[0])
        return True


def adapter_sync(run_dir: Path, engines: list[Any]) -> AdapterWeightSync:
    args = sync_args(run_dir, update_weight_mode="adapter", lora_rank=1, lora_alpha=1, lora_target_modules=["q_proj"])
    sync = AdapterWeightSync(args, device=CPU, address="127.0.0.1")
    sync.connect([RemoteEngine(engine) for engine in engines])
    return sync


def test_an_offered_adapter_serves_nobody_before_it_is_told_to(tmp_path: Path) -> None:
    class Telling(Server):
        def do(self, method: str, *arguments: Any) -> Any:
            if method == "set_weight_version":
                self.loaded.append(f"serves {arguments[0]}")
            return super().do(method, *arguments)

    engine = Telling()
    sync = adapter_sync(tmp_path, [engine])
    sync.offer(iter({"a": torch.ones(1)}.items()), "7")
    assert engine.loaded == ["the model", sync.sent.adapter]
    assert len(sync.sent.digest or "") == 64
    sync.serve("7")
    assert engine.loaded[2:] == ["serves 7"]


def test_adapters_of_a_trainer_that_died_are_unloaded_and_no_others(tmp_path: Path) -> None:
    others = ["mine", "weights-1-ffffffff-7", "weights-2-3"]
    engines = [Server(*others), Server(*others)]
    dead = adapter_sync(tmp_path, engines)
    for version in "123":
        dead.push(iter({"a": torch.ones(1)}.items()), version)
    engines[1] = Server(*others)  # started again meanwhile
    sync = adapter_sync(tmp_path, engines)
    sync.push(iter({"a": torch.ones(1)}.items()), "2")
    assert [adapter_version(name) for name in engines[0].loaded] == [None, None, "1", None, "3", "2"]
    sync.push(iter({"a": torch.ones(1)}.items()), "3")
    for engine in engines:
        assert engine.loaded[:4] == ["the model", *others]
        assert [adapter_version(name) for name in engine.loaded[4:]] == ["2", "3"]
