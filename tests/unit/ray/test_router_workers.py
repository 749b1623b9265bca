"""An engine that was started again is in no router's list until it has the trainer's weights, unless no other one answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from slime.args import Arguments
from slime.exceptions import EngineError
from slime.ray import engine_group
from slime.ray.engine_group import RESTART_ATTEMPTS, EngineGroup, RouterWorkers
from slime.ray.engine_pool import EnginePool
from slime.weight_sync.remote_engine import RemoteEngine

URLS = ["http://10.0.0.1:1", "http://10.0.0.1:2", "http://10.0.0.2:1"]


class Router:
    """The list of a router, by the routes that change it."""

    def __init__(self, count: int) -> None:
        self.has = URLS[:count]
        self.fails = False
        self.workers = RouterWorkers("http://router", URLS[:count])
        self.workers._client = httpx.Client(transport=httpx.MockTransport(self.handle), base_url="http://router")

    def handle(self, request: httpx.Request) -> httpx.Response:
        if self.fails:
            return httpx.Response(500)
        if request.method == "POST":
            self.has.append(json.loads(request.content)["url"])
        elif request.method == "DELETE":
            self.has.remove(URLS[int(request.url.path.rpartition("-")[2])])
        return httpx.Response(200, json={"workers": [{"url": url, "id": f"id-{URLS.index(url)}"} for url in self.has]})


def test_requests_go_to_the_engines_that_answer() -> None:
    router = Router(3)
    router.workers.lost([1])
    router.workers.lost([1, 2])
    assert router.has == [URLS[0]]
    router.workers.answers([0, 1])
    assert router.has == [URLS[0], URLS[1]]
    router.workers.answers([1, 2])
    assert sorted(router.has) == URLS


def test_an_engine_is_apart_only_while_another_one_answers() -> None:
    router = Router(2)
    assert router.workers.apart(1)
    assert router.has == [URLS[0]]
    router.workers.lost([0])  # requests go to the engine apart rather than nowhere
    assert sorted(router.has) == URLS[:2]
    router.workers.answers([0, 1])
    router.workers.lost([0])
    assert not router.workers.apart(1)
    assert URLS[1] in router.has
    router.workers.answers([0])
    router.fails = True
    assert not router.workers.apart(1), "the router has to comply"


def test_requests_are_held_where_no_engine_answers() -> None:
    router = Router(2)
    router.workers.lost([0, 1])
    assert router.has == URLS[:2]
    router.workers.lost([0])
    assert router.has == [URLS[1]]
    router.workers.lost([1])  # the first holds its requests by now
    assert sorted(router.has) == URLS[:2]


def test_what_the_router_refuses_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(2)
    router.workers.lost([1])
    router.fails = True
    router.workers.answers([1])
    assert "the router did not add http://10.0.0.1:2; trying again" in caplog.text
    router.fails = False
    router.workers.lost([])
    assert router.has == URLS[:2]


def test_an_engine_that_dies_while_it_is_due_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_group, "_JOIN_SECONDS", 0.0)
    router = Router(2)
    router.workers.lost([1])
    router.fails = True
    router.workers.answers([1])
    router.fails = False
    router.workers.lost([1])
    assert router.has == [URLS[0]]


class Handle:
    """An engine's actor: dead or alive, or gone; what it is asked goes to a list."""

    def __init__(self, index: int, dead: Any, asked: list[str]) -> None:
        self._index, self._dead, self._asked = index, dead, asked

    def __getattr__(self, name: str) -> Any:
        def remote(*_: Any) -> Any:
            self._asked.append(f"{name} {self._index}")
            return self._dead

        return SimpleNamespace(remote=remote)


@pytest.mark.parametrize(("role", "back"), [("policy", ["answers []"]), ("prm", ["answers [1, 2]"])])
def test_an_engine_leaves_the_router_before_it_is_started(
    monkeypatch: pytest.MonkeyPatch, role: Any, back: list[str]
) -> None:
    def get(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    asked: list[str] = []
    monkeypatch.setattr(engine_group.ray, "get", get)
    group = EngineGroup.__new__(EngineGroup)
    group.role, group._args = role, Arguments(debug_rollout_only=False)
    group.specs = [SimpleNamespace(name=f"engine {index}") for index in range(3)]  # type: ignore[assignment]
    group.handles = [
        RemoteEngine(Handle(index, dead, asked)) for index, dead in enumerate((False, True, ActorDiedError()))
    ]
    group._create = lambda index: RemoteEngine(Handle(index, True, asked))  # type: ignore[method-assign]
    group._discard = lambda index: asked.append(f"discard {index}")  # type: ignore[method-assign]
    group._workers = SimpleNamespace(  # type: ignore[assignment]
        lost=lambda dead: asked.append(f"lost {dead}"), answers=lambda indices: asked.append(f"answers {indices}")
    )
    assert group.revive() == [1, 2]
    paused = ["pause_generation 1", "pause_generation 2"] if role == "policy" else []
    looks = ["is_dead 0", "is_dead 1", "is_dead 2", "lost [1, 2]"]
    assert asked == [*looks, "restart_if_dead 1", "restart_if_dead 2", "discard 2", "start 2", *paused, *back]


class Dying:
    """Three dead engines; the second meets ``fates`` in order, one for each call that a restart makes of it.

    A fate is the exception of the call, or None. After the fates it is well.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, role: Any, fates: Sequence[Exception | None]) -> None:
        self.fates, self.alive, self.gone = iter(fates), [False] * 3, False
        self.starts, self.held, self.back = [0] * 3, list[int](), list[int]()
        self.group = group = EngineGroup.__new__(EngineGroup)
        group.role, group._args = role, Arguments(debug_rollout_only=False)
        group.specs = [SimpleNamespace(name=f"engine {index}") for index in range(3)]  # type: ignore[assignment]
        group.handles = [self.handle(index) for index in range(3)]
        group._workers = SimpleNamespace(lost=lambda dead: None, answers=self.back.extend)  # type: ignore[assignment]
        group._create, group._discard = self.handle, lambda index: None  # type: ignore[method-assign]
        monkeypatch.setattr(engine_group.ray, "get", self.get)

    def handle(self, index: int) -> RemoteEngine:
        if index == 1:
            self.gone = False
        actor = SimpleNamespace(
            is_dead=SimpleNamespace(remote=lambda: ActorDiedError() if self.is_gone(index) else not self.alive[index]),
            restart_if_dead=SimpleNamespace(remote=lambda hold: self.start(index)),
            start=SimpleNamespace(remote=lambda hold: self.start(index)),
            pause_generation=SimpleNamespace(remote=lambda mode: self.pause(index)),
        )
        return RemoteEngine(actor)

    def is_gone(self, index: int) -> bool:
        return index == 1 and self.gone

    def start(self, index: int) -> Any:
        if self.is_gone(index):
            return ActorDiedError()
        self.starts[index] += 1
        fate = next(self.fates, None) if index == 1 else None
        self.alive[index] = fate is None
        self.gone = self.gone or isinstance(fate, RayActorError)
        return fate or True

    def pause(self, index: int) -> Any:
        fate = next(self.fates, None) if index == 1 else None
        if fate is not None:
            self.alive[1], self.gone = False, isinstance(fate, RayActorError)
            return fate
        self.held.append(index)
        return None

    def get(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.get(each) for each in value]
        if isinstance(value, Exception):
            raise value
        return value


SERVER_DIES = RayTaskError("restart_if_dead", "", EngineError("engine-policy-1 ended with status -9 while it started"))
ACTOR_DIES = ActorDiedError()


@pytest.mark.parametrize("role", ["policy", "prm"])
@pytest.mark.parametrize(
    "fates",
    [
        [SERVER_DIES],
        [ACTOR_DIES],
        [SERVER_DIES, SERVER_DIES],
        [ACTOR_DIES, SERVER_DIES],
        [ACTOR_DIES, ACTOR_DIES],
        [SERVER_DIES, ACTOR_DIES],
        [None, SERVER_DIES],  # it dies before it holds its requests
        [None, ACTOR_DIES],
    ],
)
def test_an_engine_that_dies_again_while_it_restarts_is_restarted_again(
    monkeypatch: pytest.MonkeyPatch, role: Any, fates: list[Exception | None]
) -> None:
    world = Dying(monkeypatch, role, fates)
    assert world.group.revive() == [0, 1, 2]
    assert world.alive == [True] * 3
    assert (world.starts[0], world.starts[2]) == (1, 1)
    everyone = {0, 1, 2}
    held, back = (everyone, set()) if role == "policy" else (set(), everyone)
    assert ({*world.held}, {*world.back}) == (held, back), "the router uses policy engines after the push"
    assert world.group.revive() == []


@pytest.mark.parametrize("role", ["policy", "prm"])
@pytest.mark.parametrize("death", [SERVER_DIES, ACTOR_DIES])
def test_an_engine_that_always_dies_ends_the_restarts_and_keeps_no_other_one_out(
    monkeypatch: pytest.MonkeyPatch, role: Any, death: Exception
) -> None:
    world = Dying(monkeypatch, role, [death] * 5)
    cause = "engine-policy-1 ended with status -9" if death is SERVER_DIES else "actor"
    with pytest.raises(EngineError, match=f"(?s)each of {RESTART_ATTEMPTS} restarts.* with --resume.*{cause}"):
        world.group.revive()
    assert (world.starts[0], world.starts[2], world.back) == (1, 1, [])
    world.fates = iter(())
    assert world.group.revive() == [0, 1, 2]


def test_an_engine_is_back_in_the_router_after_the_push_that_knew_of_it() -> None:
    revived = iter([[0], [1], [], []])
    back: list[list[int]] = []
    group: Any = SimpleNamespace(role="policy", revive=lambda: next(revived), answers=back.append)
    pool = EnginePool(Arguments(use_fault_tolerance=True), [group])
    assert pool.recover() == 1
    pool.revive()  # another one, while the first gets the weights
    pool.weights_arrived()
    assert pool.recover() == 1
    pool.weights_arrived()
    assert pool.recover() == 0
    assert back == [[0], [1]]
