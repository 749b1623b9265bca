"""Roles that share a GPU start one after another, all others at the same time; the run does what the dry run prints."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments.placement import Placement, start_lines, start_order, trainer_waits
from slime.ray import engine_pool
from slime.ray import run as run_module
from slime.ray.engine_pool import EnginePool
from slime.ray.placement import ReservedPlacement
from slime.ray.processes import RemoteManager
from slime.ray.run import Run

OWN_GPUS = Placement(actor=(0, 1), rollout=(2,), judge=(3,))
ONE_GPU = Placement(actor=(0,), rollout=(0,), judge=(0,))
COLOCATED = Placement(actor=(0, 1), rollout=(0, 1, 2), judge=(3,), critic=(2,))


@pytest.mark.parametrize(
    ("placement", "order"),
    [
        (OWN_GPUS, (("rollout", "judge", "actor"),)),
        (ONE_GPU, (("rollout",), ("judge",), ("actor",))),
        (COLOCATED, (("rollout", "judge"), ("actor", "critic"))),
        (Placement(actor=(0,), rollout=(), judge=()), (("actor",),)),
        (Placement(actor=(), rollout=(0,), judge=(0,)), (("rollout",), ("judge",))),
        (Placement((), (), ()), ()),
    ],
)
def test_roles_that_share_a_gpu_start_one_after_another(
    placement: Placement, order: tuple[tuple[str, ...], ...]
) -> None:
    assert start_order(placement) == order


def test_roles_for_which_the_memory_is_planned_start_together() -> None:
    placement = replace(ONE_GPU, together=True)
    assert start_order(placement) == (("rollout", "judge", "actor"),)
    assert not trainer_waits(placement)
    assert start_lines(placement) == ["1. rollout + judge + actor"]


def test_the_order_is_printed_as_stages() -> None:
    assert start_lines(ONE_GPU) == ["1. rollout", "2. judge", "3. actor"]
    assert start_lines(OWN_GPUS) == ["1. rollout + judge + actor"]


class Group:
    """Engines of a role that note when they start and when somebody has waited for them."""

    def __init__(self, role: str, events: list[str]) -> None:
        self.role = role
        self._events = events

    def start(self) -> list[str]:
        self._events.append(f"start {self.role}")
        return [f"http://{self.role}:1"]

    def finish_start(self, urls: list[str]) -> Any:
        self._events.append(f"{self.role} is up")
        return SimpleNamespace(host=self.role, port=1)


def engine_events(monkeypatch: pytest.MonkeyPatch, placement: Placement, roles: tuple[str, ...]) -> list[str]:
    events: list[str] = []
    monkeypatch.setattr(engine_pool.ray, "get", lambda references: references)
    args: Any = SimpleNamespace()
    groups: list[Any] = [Group(role, events) for role in roles]
    EnginePool(args, groups).start(placement)
    assert vars(args)[f"{'sglang' if roles[0] == 'policy' else 'prm'}_router_ip"] == roles[0]
    return events


def test_engines_of_one_gpu_start_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    events = engine_events(monkeypatch, ONE_GPU, ("policy", "prm"))
    assert events == ["start policy", "policy is up", "start prm", "prm is up"]


@pytest.mark.parametrize("placement", [OWN_GPUS, COLOCATED])
def test_engines_with_gpus_of_their_own_start_together(monkeypatch: pytest.MonkeyPatch, placement: Placement) -> None:
    events = engine_events(monkeypatch, placement, ("policy", "prm"))
    assert events[:2] == ["start policy", "start prm"]


def test_engines_that_somebody_else_runs_start_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(actor=(0,), rollout=(), judge=(1,))
    assert engine_events(monkeypatch, placement, ("policy", "prm"))[:2] == ["start policy", "start prm"]


@pytest.mark.parametrize(
    ("placement", "first"), [(OWN_GPUS, "trainer"), (ONE_GPU, "engines are up"), (COLOCATED, "engines are up")]
)
def test_the_trainer_of_a_shared_gpu_waits_for_the_engines(
    monkeypatch: pytest.MonkeyPatch, placement: Placement, first: str
) -> None:
    events: list[str] = []
    answers = {
        "addresses": lambda: events.append("engines are up") or {},
        "load": lambda _: None,
        "before_rollouts": lambda: None,
    }
    actor = SimpleNamespace(**{name: SimpleNamespace(remote=answer) for name, answer in answers.items()})
    trainer = SimpleNamespace(init=lambda: events.append("trainer") or 0)
    monkeypatch.setattr(run_module, "create_rollout_manager", lambda *_: RemoteManager(actor))
    monkeypatch.setattr(run_module, "Trainer", lambda *_: trainer)
    run = Run(Arguments(num_rollout=1, debug_train_only=True))
    run.processes.reserved = ReservedPlacement(placement, None, ())
    monkeypatch.setattr(run, "wait", lambda reference: reference)
    run._bring_up(run.args)
    assert events[0] == first
    assert "trainer" in events
