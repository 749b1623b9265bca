"""Snapshots of GPU memory: when they are written and where, and who cannot have one. What is in them is torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit.trainer import shards, train_data, trainer_args
from slime.arguments import parse_args
from slime.backends.trainer import rank as rank_module
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only
from tests.helpers.idle_ranks import IdleBackend, IdleRank, idle_rank


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch was told."""
    told: list[Any] = []

    def record(**keywords: Any) -> None:
        told.append("off" if keywords.get("enabled", 1) is None else "on")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: told.append(Path(file)))
    return told


def rank_of(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> IdleRank:
    monkeypatch.setattr(rank_module, "means_of_streams", lambda *_: {})
    return idle_rank(trainer_args("", record_memory_history=True, loss_type="sft_loss", **flags), rank=3)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_rank_records_from_its_start_where_the_flag_wants_it(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    def make(*given: Any) -> IdleBackend:
        calls.append("built")
        return IdleBackend(*given)

    monkeypatch.setattr(IdleRank, "make_backend", staticmethod(make))
    idle_rank(trainer_args("", record_memory_history=wanted), rank=3)
    assert calls == [*["on"] * wanted, "built"]


def train(rank: IdleRank, rollouts: int) -> None:
    for rollout in range(rollouts):
        rank.train(rollout, shards(rank.args, train_data(2), 1)[0])


@pytest.mark.parametrize(("steps", "before"), [(None, 0), (1, 0), (3, 2)])
def test_a_snapshot_is_written_where_and_when_the_flags_say(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int | None, before: int
) -> None:
    place = {"memory_snapshot_dir": str(tmp_path / "memory"), "memory_snapshot_path": "x.pickle"}
    rank = rank_of(monkeypatch, memory_snapshot_num_steps=steps, **place)
    train(rank, before)
    assert calls == ["on"]
    train(rank, 3)
    assert calls == ["on", tmp_path / "memory" / "rank3_x.pickle", "off"], "it is written once"
    assert (tmp_path / "memory").is_dir()


def test_running_out_of_memory_writes_it_at_once(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    rank = rank_of(monkeypatch, memory_snapshot_num_steps=5, memory_snapshot_dir=str(tmp_path))
    rank.backend.step = full
    with pytest.raises(torch.OutOfMemoryError):
        train(rank, 1)
    assert calls == ["on", tmp_path / "rank3_snapshot.pickle", "off"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--record-memory-history --device cpu", "--record-memory-history needs a GPU"),
        ("--memory-snapshot-dir x", "--memory-snapshot-dir has no effect without --record-memory-history"),
        ("--memory-snapshot-num-steps 0", "--memory-snapshot-num-steps 0: give 1 or more"),
        ("--memory-recorder memray", "--memory-recorder is not supported; use --record-memory-history"),
    ],
)
def test_what_cannot_be_recorded(capsys: Any, tmp_path: Path, words: str, says: str) -> None:
    base = f"--hf-checkpoint {config_only(tmp_path / 'model')} --rollout-batch-size 16 --num-rollout 2".split()
    assert says in refusal(capsys, [*base, *words.split()])
    assert parse_args([*base, "--device", "cuda", "--record-memory-history"]).record_memory_history is True
