"""A disk that rank 0 cannot write to ends the save on every rank, and none waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.checkpoints import all_ranks, checkpoint_folder
from slime.checkpoints.checkpoint_folder import export_hf
from slime.exceptions import CheckpointError

RANKS = 2
WAIT = 30.0


class Group:
    """A process group of threads."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.barrier = threading.Barrier(RANKS)
        self.values: list[Any] = [None] * RANKS

    def get_rank(self) -> int:
        return self.local.rank

    def all_gather_object(self, found: list[Any], value: Any) -> None:
        self.values[self.local.rank] = value
        self.barrier.wait(WAIT)
        found[:] = self.values
        self.barrier.wait(WAIT)

    def run(self, action: Callable[[int], Any]) -> list[BaseException | None]:
        """What ``action`` raised on each rank."""

        def one(rank: int) -> None:
            self.local.rank = rank
            action(rank)

        with ThreadPoolExecutor(RANKS) as pool:
            return [future.exception(WAIT) for future in [pool.submit(one, rank) for rank in range(RANKS)]]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    stand_in = SimpleNamespace(
        is_initialized=lambda: True,
        get_rank=group.get_rank,
        get_world_size=lambda: RANKS,
        all_gather_object=group.all_gather_object,
    )
    for module in (all_ranks, checkpoint_folder):
        monkeypatch.setattr(module, "dist", stand_in)
    return group


def full(*arguments: Any, **keywords: Any) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize("broken", ["save_file", "fresh_folder", "replace_folder"])
def test_an_export_that_rank_zero_cannot_write_ends_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: Group, broken: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(checkpoint_folder, "_SHARD_BYTES", 1)
    monkeypatch.setattr(checkpoint_folder, broken, full)

    def gather() -> Iterator[tuple[str, Tensor]]:
        for name in "abc":
            group.barrier.wait(WAIT)  # as in a collective: every rank, every tensor
            yield name, torch.ones(2)

    def export(rank: int) -> None:
        export_hf(gather(), tmp_path, tmp_path / "out", dtype=torch.float32)

    first, second = group.run(export)
    assert isinstance(first, OSError)
    assert isinstance(second, CheckpointError)
    assert "rank 0 could not write: OSError: no space left on device" in str(second)
    assert not (tmp_path / "out").exists()


def test_a_rank_that_cannot_gather_says_so_at_once(tmp_path: Path, group: Group) -> None:
    def gather() -> Iterator[tuple[str, Tensor]]:
        yield "a", torch.ones(2)
        raise RuntimeError("out of memory")

    (tmp_path / "config.json").write_text("{}")
    errors = group.run(lambda rank: export_hf(gather(), tmp_path, tmp_path / "out", dtype=torch.float32))
    assert [str(error) for error in errors] == ["out of memory"] * RANKS


@pytest.mark.parametrize("broken", ["fresh_folder", "replace_folder", "rng_state"])
def test_a_checkpoint_that_one_rank_cannot_write_ends_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: Group, broken: str
) -> None:
    original = getattr(checkpoint_folder, broken)
    failing = 1 if broken == "rng_state" else 0

    def full_on_one(*arguments: Any) -> Any:
        return full() if group.get_rank() == failing else original(*arguments)

    monkeypatch.setattr(checkpoint_folder, broken, full_on_one)
    errors = group.run(lambda rank: checkpoint_folder.write(tmp_path, 3, {}, lambda path: None))
    assert isinstance(errors[failing], OSError)
    assert isinstance(errors[1 - failing], CheckpointError)
    assert f"rank {failing} could not write" in str(errors[1 - failing])
    assert not (tmp_path / "iter_0000003").exists()


def test_a_crash_between_two_renames_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: Group
) -> None:
    """A run that goes back to older weights writes the newest checkpoint again."""
    for meta in ({"weight_version": 4}, {"weight_version": 5}):
        group.run(lambda rank, meta=meta: checkpoint_folder.write(tmp_path, 3, meta, lambda path: None))
        checkpoint_folder.publish(tmp_path, 3, ())
    renames: list[Any] = []

    def killed(source: Any, target: Any) -> None:
        renames.append(target)
        if len(renames) == 2:
            raise KeyboardInterrupt
        Path(source).rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint_folder.replace_folder(tmp_path / "iter_0000003.tmp", tmp_path / "iter_0000003")
    assert not (tmp_path / "iter_0000003").exists()
    found = checkpoint_folder.find(tmp_path)
    assert found is not None
    assert checkpoint_folder.read_meta(found) == {"weight_version": 5}


def test_without_a_process_group_there_is_one_rank() -> None:
    done: list[str] = []
    all_ranks.on_rank_zero(lambda: done.append("x"))
    assert done == ["x"]
    with pytest.raises(OSError):
        all_ranks.on_all_ranks(full)
