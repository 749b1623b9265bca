"""The numbers of weight versions where one engine has a candidate first: a refused one's is not used again, because tokens carry it."""

from __future__ import annotations

from typing import Any

import pytest

from lab.testkit.trainer import trainer_args
from tests.helpers.idle_ranks import IdleRank, idle_rank

OLD, BAD, GOOD = 0, 1, 2


class Pushes:
    """Writes down who gets which weight as which version."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        whom = {"push": "all", "push_to_canary": "one", "take_back": "one, back", "offer": "all, offered"}[name]
        return lambda weights, version: self.log.append(f"{int(dict(weights())['weight'])} as {version} to {whom}")


@pytest.fixture
def rank() -> IdleRank:
    made = idle_rank(trainer_args(""))
    made._pushes = Pushes()  # type: ignore[assignment]
    made._versions.load({"weight_version": 1})
    return made


def step(rank: IdleRank, weight: int) -> None:
    rank.take_snapshot()
    rank.backend.weight.fill_(weight)
    rank._versions.changed()


def test_a_refused_candidate_takes_its_number_along(rank: Any) -> None:
    step(rank, BAD)
    rank.push_candidate()
    rank.push_candidate()  # after its engine restarted: the same weights have the same number
    rank.undo_steps()
    rank.take_candidate_back()
    assert rank.versions() == ("1", "1")
    step(rank, GOOD)
    assert rank.versions() == ("1", "3")
    rank.push_candidate()
    rank.keep_steps()
    assert rank.update_weights() == "3"
    assert rank._pushes.log == [
        f"{BAD} as 2 to one",
        f"{BAD} as 2 to one",
        f"{OLD} as 1 to one, back",
        f"{GOOD} as 3 to one",
        f"{GOOD} as 3 to all",
    ]
    step(rank, BAD)
    assert rank.versions() == ("3", "4")


def test_a_refused_offer_takes_its_number_along(rank: Any) -> None:
    step(rank, BAD)
    rank.offer_candidate()
    assert rank.update_weights() == "1", "an engine restarted meanwhile"
    rank.undo_steps()
    rank.take_candidate_back()
    step(rank, GOOD)
    rank.offer_candidate()
    rank.keep_steps()
    assert rank.update_weights() == "3"
    assert rank._pushes.log == [
        f"{BAD} as 2 to all, offered",
        f"{OLD} as 1 to all",
        f"{OLD} as 1 to one, back",
        f"{GOOD} as 3 to all, offered",
        f"{GOOD} as 3 to all",
    ]


def test_engines_get_what_serves_until_the_steps_are_kept(rank: Any) -> None:
    step(rank, GOOD)
    assert rank.update_weights() == "1"
    rank.keep_steps()
    assert rank.update_weights() == "2"
    assert rank._pushes.log == [f"{OLD} as 1 to all", f"{GOOD} as 2 to all"]


def test_a_candidate_that_no_engine_had_gives_its_number_back(rank: IdleRank) -> None:
    step(rank, BAD)
    rank.undo_steps()
    step(rank, GOOD)
    assert rank.versions() == ("1", "2")


def test_a_checkpoint_remembers_the_numbers(rank: IdleRank) -> None:
    step(rank, BAD)
    rank.push_candidate()
    rank.undo_steps()
    assert rank._versions.state() == {"weight_version": 1, "newest_version": 2}
