"""An error of a rank: told at once when it is its own, after a look at the others when their death may be behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from slime.exceptions import CheckpointError, LostError, RankLostError, TrainerError
from slime.ray import trainer
from slime.ray.trainer import Asked, TrainGroup

TRAINING: Asked[Any] = Asked("train", ["first", "second"])  # type: ignore[list-item]


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


def group(monkeypatch: pytest.MonkeyPatch, error: Exception, *, dies: bool) -> tuple[TrainGroup, list[list[str]]]:
    """Two ranks: the first raises ``error`` at once; the other dies at the second look at it, or hangs. Second: the looks."""
    looks: list[list[str]] = []

    def wait(references: list[str], **_: Any) -> tuple[list[str], list[str]]:
        looks.append(references)
        if "first" in references:
            return ["first"], references[1:]
        return (["second"], []) if dies and len(looks) > 2 else ([], references)

    def get(reference: str) -> None:
        if reference == "first":
            raise RayTaskError("train", "a traceback", error)
        raise ActorDiedError()

    monkeypatch.setattr(trainer, "ray", SimpleNamespace(wait=wait, get=get))
    made = TrainGroup.__new__(TrainGroup)
    made._nodes, made._noun = {}, "training rank"
    return made, looks


@pytest.mark.parametrize("error", [ValueError("bad"), CheckpointError("none"), OutOfMemoryError("CUDA"), KeyError("x")])
def test_an_error_of_its_own_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    ranks, looks = group(monkeypatch, error, dies=True)
    with pytest.raises(TrainerError, match=f"training rank 0 failed in train: {type(error).__name__}: ") as caught:
        ranks.gather(TRAINING)
    assert not isinstance(caught.value, LostError)
    assert (looks, capsys.readouterr().out) == ([["first", "second"]], "")


@pytest.mark.parametrize(
    "error", [RuntimeError("Connection closed\nby peer"), ConnectionResetError("by peer"), EOFError("")]
)
def test_a_lost_connection_is_told_as_the_death_behind_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    ranks, _ = group(monkeypatch, error, dies=True)
    with pytest.raises(RankLostError, match="training rank 1 died in train"):
        ranks.gather(TRAINING)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"training rank 0 failed in train: {type(error).__name__}: ")
    assert "whether another one has died" in line


def test_where_nobody_died_the_error_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, looks = group(monkeypatch, RuntimeError("device-side assert"), dies=False)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(TrainerError, match="RuntimeError: device-side assert"):
        ranks.gather(TRAINING)
    assert len(looks) == 3
