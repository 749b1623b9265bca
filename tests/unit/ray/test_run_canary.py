"""The driver and the manager with ``--canary-engine``: who gets the candidate when, and what an engine's death in between does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from groundwork.process import Stopped
from slime.exceptions import PluginError, TrainerError
from slime.ray import canary as canary_module
from slime.ray import canary_engine as canary_engine_module
from slime.ray.canary import CanaryPush
from slime.ray.canary_engine import CanaryEngine
from slime.ray.decisions import Decisions
from slime.rollout.before_push import Answer, Probe
from slime.rollout.canary import Canary, CanaryEndedError
from slime.rollout.questions import Question, Questions
from slime.weight_sync.remote_engine import RemoteEngine
from tests.unit.ray.test_run_restart import Remote

LAST = 2


class Group:
    """The policy engines of a manager; ``routes`` says whether another one answers."""

    role = "policy"

    def __init__(self, log: list[str]) -> None:
        self.log, self.routes = log, True
        self.starts, self.dead = 1, False
        self.handles = [
            RemoteEngine(
                SimpleNamespace(
                    url=Remote(lambda n=n: f"http://engine-{n}"),
                    starts=Remote(lambda: self.starts),
                    is_dead=Remote(lambda: self.dead),
                )
            )
            for n in range(LAST + 1)
        ]

    def set_apart(self, engine: int) -> bool:
        self.log.append(f"apart {engine}")
        return self.routes

    def answers(self, engines: list[int]) -> None:
        self.log.append(f"routed {engines}")


class Manager(Decisions, CanaryEngine):
    """The manager's part, called directly."""

    def __init__(self, log: list[str]) -> None:
        self.group = Group(log)
        self._groups = [self.group]  # type: ignore[list-item]
        self.args = SimpleNamespace(update_weight_mode="adapter")  # type: ignore[assignment]
        self.lost: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in {*vars(Decisions), *vars(CanaryEngine)} and not name.startswith("_"):
            return CallsOrRemote(value)
        return value


class CallsOrRemote:
    """A method that its object calls, and others by ``remote``."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __call__(self, *words: Any) -> Any:
        return self._method(*words)

    def remote(self, *words: Any) -> Any:
        return self._method(*words)


class Trainer:
    """Writes down pushes; fails at those that ``fails`` names, once each."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.fails = log, list[tuple[str, TrainerError]]()

    def _do(self, words: str) -> None:
        self.log.append(words)
        if self.fails and self.fails[0][0] == words:
            raise self.fails.pop(0)[1]

    def push_candidate(self) -> None:
        self._do("candidate to the first")

    def take_candidate_back(self) -> None:
        self._do("take back")


class World:
    """A driver's part with a manager and a trainer; ``restart`` is what looking after the run does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.manager, self.trainer = Manager(self.log), Trainer(self.log)
        processes: Any = SimpleNamespace(
            manager=self.manager, trainer=self.trainer, value=lambda reference, stop: reference
        )
        self.restart: Callable[[], None] = lambda: None
        self.push = CanaryPush(processes, lambda: self.restart())
        self.questions = self.manager._questions = Questions()

    def engines_restarted(self, *engines: int) -> None:
        """All engines got what serves, as after a restart of ``engines``."""
        self.log.append(f"restarted {list(engines)}")
        self.manager.group.answers([*engines, *self.manager.canary_lost(engines)])

    def begin(self) -> Canary:
        """Ask as the plugin does, answer as the driver does, and return what the plugin gets."""
        found: list[Canary] = []
        plugin = threading.Thread(target=lambda: found.append(self.candidate().on_one_engine()), daemon=True)
        plugin.start()
        question = self.questions.next()
        assert question == Question(False, [])
        self.push.begin()
        plugin.join(10)
        return found[0]

    def candidate(self, canary: bool = True) -> Any:
        return self.questions.policies("1", "2", canary=canary).candidate


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(canary_module.ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(canary_engine_module.ray, "get", lambda value: value)
    return World()


def test_the_engine_leaves_the_router_before_it_gets_the_candidate(world: World) -> None:
    engine = world.begin()
    assert engine.url == "http://engine-2"
    engine.wait(0.0)
    assert world.log == ["apart 2", "candidate to the first"]
    world.push.accepted()
    assert world.log[2:] == ["routed [2]"]
    world.push.accepted()  # of the next update, which was tried on no engine
    world.push.refused()
    assert len(world.log) == 3


def test_a_refused_candidate_is_taken_back_before_the_router_knows_the_engine(world: World) -> None:
    world.begin()
    world.push.refused()
    assert world.log[2:] == ["take back", "routed [2]"]


@pytest.mark.parametrize(("restarted", "died"), [((2,), True), ((0,), False), ((0, 2), True)])
def test_a_restart_ends_the_trial_and_says_who_died(world: World, restarted: tuple[int, ...], died: bool) -> None:
    engine = world.begin()
    world.engines_restarted(*restarted)
    assert world.log[-1] == f"routed {[*restarted, 2]}"
    with pytest.raises(CanaryEndedError) as caught:
        engine.wait(60.0)
    assert caught.value.died is died
    assert world.begin().ended is False, "another trial begins anew"


def test_no_engine_is_first_while_it_is_the_only_one(world: World) -> None:
    world.manager.group.routes = False

    def restart() -> None:
        world.manager.group.routes = True

    world.restart = restart
    world.begin()
    assert world.log == ["apart 2", "routed [2]", "apart 2", "candidate to the first"]


@pytest.mark.parametrize("call", ["url", "starts"])
def test_an_engine_that_dies_as_it_is_set_apart_is_restarted_before_it_gets_the_candidate(
    world: World, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def restart() -> None:
        setattr(world.manager.group.handles[LAST].actor, call, well)
        world.engines_restarted(LAST)

    monkeypatch.setattr(canary_engine_module.ray, "get", get)
    well = getattr(world.manager.group.handles[LAST].actor, call)
    setattr(world.manager.group.handles[LAST].actor, call, Remote(ActorDiedError))
    world.restart = restart
    world.begin().wait(0.0)
    assert world.log == ["apart 2", "restarted [2]", "routed [2]", "apart 2", "candidate to the first"]


def test_a_push_that_kills_its_engine_is_sent_again_after_the_restart(world: World) -> None:
    world.trainer.fails = [("candidate to the first", TrainerError("rank 0 failed: engine 2 died"))]
    world.restart = lambda: world.engines_restarted(2)
    world.begin().wait(0.0)
    assert world.log[2:] == ["restarted [2]", "routed [2, 2]", "apart 2", "candidate to the first"]


def test_a_push_that_fails_with_all_engines_alive_ends_the_run(world: World) -> None:
    world.trainer.fails = [("candidate to the first", TrainerError("no memory"))]
    with pytest.raises(TrainerError, match="no memory"):
        world.push.begin()


def test_an_engine_that_dies_as_it_goes_back_restarts_with_what_serves(world: World) -> None:
    world.begin()
    world.trainer.fails = [("take back", TrainerError("engine 2 died"))]
    world.restart = lambda: world.engines_restarted(2)
    world.push.refused()
    assert world.log[2:] == ["take back", "restarted [2]", "routed [2, 2]", "routed []"]
    world.begin()
    world.restart = lambda: None
    world.trainer.fails = [("take back", TrainerError("no memory"))]
    with pytest.raises(TrainerError, match="no memory"):
        world.push.refused()


def test_a_signal_while_the_engine_finishes_its_requests_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise Stopped

    monkeypatch.setattr(canary_module.ray, "wait", lambda references, timeout: ([], references))
    world.restart = stop
    with pytest.raises(Stopped):
        world.push.begin()


@pytest.mark.parametrize("decision", ["accepted", "refused"])
def test_a_signal_after_the_decision_waits_until_it_counts(
    world: World, decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise Stopped

    world.begin()
    world.restart = stop
    monkeypatch.setattr(canary_module.ray, "wait", lambda found, timeout: ([], found))
    getattr(world.push, decision)()
    assert world.log[-1] == f"routed {[LAST]}"


def test_a_trainer_that_dies_ends_the_plugins_wait_and_the_next_push_brings_the_engine_back(world: World) -> None:
    engine = world.begin()
    world.manager.end_questions("the trainer died")
    with pytest.raises(CanaryEndedError, match="the trainer died"):
        engine.wait(60.0)
    assert world.manager.canary_lost(()) == [2]


def test_an_engine_gets_the_candidate_when_it_has_finished_its_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([2, 1, 0])
    busy: list[str] = []

    def is_idle(client: Any, url: str) -> bool:
        busy.append(url)
        return next(loads) == 0

    monkeypatch.setattr(canary_engine_module, "_is_idle", is_idle)
    monkeypatch.setattr(canary_engine_module, "_POLL_SECONDS", 0.0)
    world.manager.args.update_weight_mode = "full"
    world.begin()
    assert busy == ["http://engine-2"] * 3


def test_requests_that_do_not_end_hold_nothing_up_for_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_engine_module, "_is_idle", lambda client, url: False)
    monkeypatch.setattr(canary_engine_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(canary_engine_module, "_POLL_SECONDS", 0.0)
    world.manager.args.update_weight_mode = "full"
    world.begin().wait(0.0)


def test_weights_that_arrive_while_it_finishes_its_requests_begin_it_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = iter([lambda: world.engines_restarted(0), lambda: None])

    def is_idle(client: Any, url: str) -> bool:
        next(restarts)()
        return True

    monkeypatch.setattr(canary_engine_module, "_is_idle", is_idle)
    world.manager.args.update_weight_mode = "full"
    world.begin().wait(0.0)
    assert world.log == ["apart 2", "restarted [0]", "routed [0, 2]", "apart 2", "candidate to the first"]


def test_a_restarted_engine_is_not_the_one_that_got_the_candidate(world: World) -> None:
    engine, group = world.begin(), world.manager.group
    assert engine.lives()
    group.dead = True
    assert not engine.lives()
    group.dead, group.starts = False, 2
    assert not engine.lives(), "it answers again, and has the start weights"


def test_a_plugin_that_asks_for_the_engine_without_the_flag_is_told(world: World) -> None:
    with pytest.raises(PluginError, match="no engine may be first without --canary-engine; add it"):
        world.candidate(canary=False).on_one_engine()


def test_questions_to_the_trainer_still_have_answers(world: World) -> None:
    found: list[Any] = []
    plugin = threading.Thread(target=lambda: found.append(world.candidate().ask([Probe([1], [2])])))
    plugin.start()
    assert world.questions.next() == Question(False, [Probe([1], [2], 0)])
    world.questions.answer([Answer([-1.0], [], False)])
    plugin.join(10)
    assert found == [[Answer([-1.0], [], False)]]
