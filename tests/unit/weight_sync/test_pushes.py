"""Which engines a push reaches with ``--canary-engine``: the last one first, the others once it is accepted, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.args import Arguments
from slime.exceptions import EngineError
from slime.weight_sync import Sent
from slime.weight_sync import pushes as pushes_module
from slime.weight_sync.pushes import Pushes

ENGINES = ["engine 0", "engine 1", "engine 2"]


class Sync:
    """A transport that writes down what it does, and fails at ``fails``."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.fails = log, name, ""
        self.engines: list[Any] = []
        self.sent = Sent(f"adapter of {name}")

    def connect(self, engines: list[Any]) -> None:
        self.engines = engines

    def push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        values = [name for name, _ in weights]
        if self.fails:
            raise EngineError(self.fails)
        self.log.append(f"{version} {' '.join(values)} to {', '.join(self.engines)}")

    def offer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        assert [name for name, _ in weights] == ["w"]
        self.log.append(f"offer {version} to {', '.join(self.engines)}")

    def serve(self, version: str) -> None:
        self.log.append(f"serve {version} on {', '.join(self.engines)}")

    def close(self) -> None:
        self.log.append(f"close {self.name}")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def make(log: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Pushes]:
    names = iter(("most", "last"))
    monkeypatch.setattr(pushes_module, "make_weight_sync", lambda args, **_: Sync(log, next(names)))

    def make(canary: bool) -> Pushes:
        pushes = Pushes(Arguments(canary_engine=canary), device=torch.device("cpu"), address="127.0.0.1")
        pushes.connect(ENGINES)
        return pushes

    return make


def weights() -> Iterator[tuple[str, Tensor]]:
    yield "w", torch.zeros(1)


def test_all_engines_get_a_push_at_once_without_the_flag(make: Callable[[bool], Pushes], log: list[str]) -> None:
    pushes = make(False)
    pushes.push(weights, "1")
    pushes.take_back(weights, "1")
    assert log == ["1 w to engine 0, engine 1, engine 2"]
    with pytest.raises(ValueError, match="no engine is first without --canary-engine"):
        pushes.push_to_canary(weights, "2")


def test_an_accepted_candidate_goes_to_the_others_only(make: Callable[[bool], Pushes], log: list[str]) -> None:
    pushes = make(True)
    pushes.push(weights, "1")
    pushes.push_to_canary(weights, "2")
    pushes.push(weights, "2")
    assert log == ["1 w to engine 0, engine 1", "1 w to engine 2", "2 w to engine 2", "2 w to engine 0, engine 1"]
    pushes.push(weights, "2")  # the same version again, after a restart
    assert log[4:] == ["2 w to engine 0, engine 1", "2 w to engine 2"]


def test_a_refused_candidate_leaves_its_engine_and_disturbs_no_other(
    make: Callable[[bool], Pushes], log: list[str]
) -> None:
    pushes = make(True)
    pushes.push_to_canary(weights, "2")
    pushes.take_back(weights, "1")
    pushes.take_back(weights, "1")
    assert log == ["2 w to engine 2", "1 w to engine 2"]


def test_what_serves_reaches_all_engines_while_one_is_ahead(make: Callable[[bool], Pushes], log: list[str]) -> None:
    pushes = make(True)
    pushes.push_to_canary(weights, "2")
    pushes.push(weights, "1")
    pushes.take_back(weights, "1")
    assert log[1:] == ["1 w to engine 0, engine 1", "1 w to engine 2"]


def test_engines_that_are_connected_anew_get_everything(make: Callable[[bool], Pushes], log: list[str]) -> None:
    pushes = make(True)
    pushes.push_to_canary(weights, "2")
    pushes.connect(ENGINES)
    pushes.push(weights, "2")
    assert log[1:] == ["2 w to engine 0, engine 1", "2 w to engine 2"]


def test_after_a_failure_the_other_ranks_are_helped_to_gather_the_rest(
    make: Callable[[bool], Pushes], log: list[str]
) -> None:
    pushes = make(True)
    gathered: list[int] = []

    def counted() -> Iterator[tuple[str, Tensor]]:
        yield from weights()
        gathered.append(1)

    pushes._most.fails = "engine 0 died"  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="engine 0 died"):
        pushes.push(counted, "1")
    assert (len(gathered), log) == (2, [])


def test_a_failed_first_push_is_not_ahead(make: Callable[[bool], Pushes], log: list[str]) -> None:
    pushes = make(True)
    pushes._last.fails = "engine 2 died"  # type: ignore[union-attr, attr-defined]
    with pytest.raises(EngineError, match="engine 2 died"):
        pushes.push_to_canary(weights, "2")
    pushes.take_back(weights, "1")
    assert not log
    pushes.close()
    assert log == ["close most", "close last"]


def test_an_offered_update_is_sent_once_and_serves_or_is_taken_back(
    make: Callable[[bool], Pushes], log: list[str]
) -> None:
    pushes = make(True)
    assert pushes.offer(weights, "2") == Sent("adapter of most")
    pushes.push(weights, "2")
    pushes.offer(weights, "3")
    pushes.take_back(weights, "2")
    pushes.take_back(weights, "2")
    assert log == [
        "offer 2 to engine 0, engine 1", "offer 2 to engine 2",
        "serve 2 on engine 0, engine 1", "serve 2 on engine 2",
        "offer 3 to engine 0, engine 1", "offer 3 to engine 2",
        "2 w to engine 0, engine 1", "2 w to engine 2",
    ]  # fmt: skip


def test_engines_that_were_connected_anew_get_an_accepted_offer_as_a_push(
    make: Callable[[bool], Pushes], log: list[str]
) -> None:
    pushes = make(False)
    pushes.offer(weights, "2")
    pushes.push(weights, "1")  # an engine restarted, and all get what serves
    pushes.push(weights, "2")
    pushes.offer(weights, "3")
    pushes.connect(ENGINES)
    pushes.push(weights, "3")
    assert [line.partition(" to ")[0] for line in log] == ["offer 2", "1 w", "2 w", "offer 3", "3 w"]
