"""The numbers of weight versions where one engine has a candidate first: a refused one's is not used again, because tokens carry it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.backends.trainer.actor import TrainActor


class Pushes:
    """Writes down who gets which weights as which version."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def _to(self, whom: str) -> Callable[[Callable[[], str], str], None]:
        return lambda weights, version: self.log.append(f"{weights()} as {version} to {whom}")

    def __getattr__(self, name: str) -> Any:
        return self._to({"push": "all", "push_to_canary": "one", "take_back": "one, back"}[name])


class Actor(TrainActor):
    """A rank whose weights are a word."""

    words = ""

    def _sync_weights(self) -> Any:
        return self.words

    def _changing(self) -> Any:
        return self

    def _check_memory(self) -> None:
        """Nothing is offloaded."""


Actor.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


@pytest.fixture
def actor() -> Any:
    actor: Any = object.__new__(Actor)
    actor.words, actor.rank, actor._seconds = "old", 0, {"update_weights": 0.0}
    actor.weight_version = actor._newest_version = 1
    actor._changed_since_push = actor._changed_before = False
    actor._snapshot = SimpleNamespace(take=lambda it: None, put=lambda it: setattr(actor, "words", "old"))
    actor._sync, actor.args = Pushes(), Arguments(use_pytorch_profiler=False)
    return actor


def step(actor: Any, words: str) -> None:
    actor.take_snapshot()
    actor.words, actor._changed_since_push = words, True


def test_a_refused_candidate_takes_its_number_along(actor: Any) -> None:
    step(actor, "bad")
    actor.push_candidate()
    actor.push_candidate()  # after its engine restarted: the same weights have the same number
    actor.undo_steps()
    actor.take_candidate_back()
    assert actor.versions() == ("1", "1")
    step(actor, "good")
    assert actor.versions() == ("1", "3")
    actor.push_candidate()
    actor.keep_steps()
    assert actor.update_weights() == "3"
    assert actor._sync.log == [
        "bad as 2 to one",
        "bad as 2 to one",
        "old as 1 to one, back",
        "good as 3 to one",
        "good as 3 to all",
    ]
    step(actor, "better")
    assert actor.versions() == ("3", "4")


def test_a_candidate_that_no_engine_had_gives_its_number_back(actor: Any) -> None:
    step(actor, "bad")
    actor.undo_steps()
    step(actor, "good")
    assert actor.versions() == ("1", "2")


def test_a_checkpoint_remembers_the_numbers(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Actor, "_common_meta", lambda self, rollout_id: {})
    step(actor, "bad")
    actor.push_candidate()
    actor.undo_steps()
    assert actor._meta(0) == {"weight_version": 1, "newest_version": 2}
