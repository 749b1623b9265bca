"""``--canary-engine``: who gets the candidate when, and what an engine's death in between does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

from groundwork.process import Stopped, StopRequested
from slime.args import Arguments
from slime.exceptions import PluginError, TrainerError
from slime.ray import engine_pool
from slime.ray.engine_pool import EnginePool
from slime.ray.processes import Processes, RemoteManager
from slime.rollout.before_push import Canary, CanaryEndedError, Offered, Trained
from slime.updates.decisions import AskedCandidate, PluginThread, WorkForCandidate
from slime.updates.policy_engines import Engines
from slime.weight_sync import Sent
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

    def offer_candidate(self) -> Sent:
        self._do("offer")
        return Sent("weights-1", "ab")

    def take_candidate_back(self) -> None:
        self._do("take back")

    def connect_rollout_engines(self, engines: list[Any]) -> None:
        """Nothing to connect."""

    def update_weights(self) -> str:
        return "1"


class World:
    """The driver's engines on the manager's pool; ``restart`` is what looking after the run does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.group: Any = Group(self.log)
        self.trainer: Any = Trainer(self.log)
        self.args = Arguments(update_weight_mode="adapter")
        self.pool = EnginePool(self.args, [self.group])
        self.restart: Callable[[], None] = lambda: None
        processes = Processes(StopRequested())
        processes.trainer = self.trainer
        processes.manager = RemoteManager(
            SimpleNamespace(
                set_apart=Remote(self.pool.set_apart),
                rejoin=Remote(self.pool.rejoin),
                engine_handles=Remote(self.pool.handles),
                weights_arrived=Remote(self.pool.weights_arrived),
            )
        )
        self.engines = Engines(self.args, processes)
        monkeypatch.setattr(self.engines, "look_after", lambda: self.restart())

    def engines_restarted(self, *engines: int) -> None:
        """All engines got what serves, as after a restart of ``engines``."""
        self.log.append(f"restarted {list(engines)}")
        self.pool._get_weights = list(engines)
        self.engines.push(connect=True)

    def begin(self) -> Canary:
        return self.engines.begin_trial()


def get(value: Any) -> Any:
    """`ray.get` for values, and for errors that a call ends with."""
    if isinstance(value, list):
        return [get(each) for each in value]
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(ray, "get", get)
    return World(monkeypatch)


def test_the_engine_leaves_the_router_before_it_gets_the_candidate(world: World) -> None:
    engine = world.begin()
    assert engine.url == "http://engine-2"
    engine.wait(0.0)
    assert world.log == ["apart 2", "candidate to the first"]
    world.engines.end_trial(accepted=True)
    assert world.log[2:] == ["routed [2]"]
    world.engines.end_trial(accepted=True)  # of the next update, which was tried on no engine
    world.engines.end_trial(accepted=False)
    assert len(world.log) == 3


def test_a_refused_candidate_is_taken_back_before_the_router_knows_the_engine(world: World) -> None:
    world.begin()
    world.engines.end_trial(accepted=False)
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
    world.group.routes = False

    def restart() -> None:
        world.group.routes = True

    world.restart = restart
    world.begin()
    assert world.log == ["apart 2", "routed [2]", "apart 2", "candidate to the first"]


@pytest.mark.parametrize("call", ["url", "starts"])
def test_an_engine_that_dies_as_it_is_set_apart_is_restarted_before_it_gets_the_candidate(
    world: World, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restart() -> None:
        setattr(world.group.handles[LAST].actor, call, well)
        world.engines_restarted(LAST)

    well = getattr(world.group.handles[LAST].actor, call)
    setattr(world.group.handles[LAST].actor, call, Remote(ActorDiedError))
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
        world.begin()


def test_an_engine_that_dies_as_it_goes_back_restarts_with_what_serves(world: World) -> None:
    world.begin()
    world.trainer.fails = [("take back", TrainerError("engine 2 died"))]
    world.restart = lambda: world.engines_restarted(2)
    world.engines.end_trial(accepted=False)
    assert world.log[2:] == ["take back", "restarted [2]", "routed [2, 2]", "routed []"]
    world.begin()
    world.restart = lambda: None
    world.trainer.fails = [("take back", TrainerError("no memory"))]
    with pytest.raises(TrainerError, match="no memory"):
        world.engines.end_trial(accepted=False)


def test_a_signal_while_the_engine_finishes_its_requests_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise Stopped

    monkeypatch.setattr(ray, "wait", lambda references, timeout: ([], references))
    world.restart = stop
    with pytest.raises(Stopped):
        world.begin()


@pytest.mark.parametrize("decision", ["accepted", "refused"])
def test_a_signal_after_the_decision_waits_until_it_counts(
    world: World, decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise Stopped

    world.begin()
    world.restart = stop
    world.engines._processes.stop._handle(15, None)
    waits = iter([False])
    monkeypatch.setattr(ray, "wait", lambda found, timeout: (found if next(waits, True) else [], []))
    world.engines.end_trial(accepted=decision == "accepted")
    assert world.log[-1] == f"routed {[LAST]}"


def test_a_trainer_that_dies_ends_the_plugins_wait_and_the_next_push_brings_the_engine_back(world: World) -> None:
    engine = world.begin()
    world.engines.abandon_trial("the trainer died")
    with pytest.raises(CanaryEndedError, match="the trainer died"):
        engine.wait(60.0)
    world.engines.push(connect=True)
    assert world.log[-1] == "routed [2]"


def test_an_engine_gets_the_candidate_when_it_has_finished_its_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([2, 1, 0])
    busy: list[str] = []

    def is_idle(client: Any, url: str) -> bool:
        busy.append(url)
        return next(loads) == 0

    monkeypatch.setattr(engine_pool, "is_idle", is_idle)
    monkeypatch.setattr(engine_pool, "_POLL_SECONDS", 0.0)
    world.args.update_weight_mode = "full"
    world.begin()
    assert busy == ["http://engine-2"] * 3


def test_requests_that_do_not_end_hold_nothing_up_for_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "is_idle", lambda client, url: False)
    monkeypatch.setattr(engine_pool, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(engine_pool, "_POLL_SECONDS", 0.0)
    world.args.update_weight_mode = "full"
    world.begin().wait(0.0)


def test_weights_that_arrive_while_it_finishes_its_requests_begin_it_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = iter([lambda: world.engines_restarted(0), lambda: None])

    def is_idle(client: Any, url: str) -> bool:
        next(restarts)()
        return True

    monkeypatch.setattr(engine_pool, "is_idle", is_idle)
    world.args.update_weight_mode = "full"
    world.begin().wait(0.0)
    assert world.log == ["apart 2", "restarted [0]", "routed [0, 2]", "apart 2", "candidate to the first"]


def test_weights_that_arrive_when_it_has_finished_its_requests_begin_it_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver restarts another engine before it looks at the answer, and the router knows this one again."""
    answered, restarts = iter([False]), iter([lambda: world.engines_restarted(0)])
    monkeypatch.setattr(ray, "wait", lambda found, timeout: (found if next(answered, True) else [], []))
    world.restart = lambda: next(restarts, lambda: None)()
    world.begin().wait(0.0)
    assert world.log == ["apart 2", "restarted [0]", "routed [0, 2]", "apart 2", "candidate to the first"]


def test_a_restarted_engine_is_not_the_one_that_got_the_candidate(world: World) -> None:
    engine, group = world.begin(), world.group
    assert engine.lives()
    group.dead = True
    assert not engine.lives()
    group.dead, group.starts = False, 2
    assert not engine.lives(), "it answers again, and has the start weights"


def test_all_engines_have_an_offer_until_the_gate_decides(world: World) -> None:
    offered = world.engines.offer()
    assert [engine.url for engine in offered.engines] == [f"http://engine-{n}" for n in range(LAST + 1)]
    assert (offered.adapter, offered.digest) == ("weights-1", "ab")
    world.engines.end_trial(accepted=True)
    assert all(engine.ended for engine in offered.engines)
    assert world.log == ["offer"], "the push that follows lets it serve"


def test_a_refused_offer_is_taken_back(world: World) -> None:
    world.engines.offer()
    world.engines.end_trial(accepted=False)
    world.engines.end_trial(accepted=False)
    assert world.log == ["offer", "take back"]


def test_an_engine_that_restarts_ends_an_offer(world: World) -> None:
    offered = world.engines.offer()
    world.engines_restarted(0)
    with pytest.raises(CanaryEndedError, match="all engines got the same weights"):
        offered.engines[1].wait(0.0)
    assert not world.engines.offer().engines[1].ended


def test_an_engine_that_died_has_no_offer_any_more(world: World) -> None:
    first, *_ = world.engines.offer().engines
    assert first.lives()
    world.group.dead = True
    assert not first.lives()
    world.group.dead, world.group.starts = False, 2
    assert not first.lives(), "it answers again, and has the start weights"


def test_an_offer_is_sent_again_after_an_engine_died_of_it(world: World) -> None:
    world.trainer.fails = [("offer", TrainerError("engine 1 died"))]
    world.restart = lambda: world.engines_restarted(1)
    assert not world.engines.offer().engines[0].ended
    assert world.log == ["offer", "restarted [1]", "routed [1]", "offer"]


def test_an_engine_whose_actor_is_gone_restarts_before_it_is_offered_an_update(world: World) -> None:
    """Its process and its actor may die together, such as with its machine; the run goes on."""
    gone = world.group.handles[1]
    world.group.handles[1] = RemoteEngine(SimpleNamespace(url=Remote(ActorDiedError), starts=Remote(ActorDiedError)))

    def recreate() -> None:
        world.group.handles[1] = gone
        world.engines_restarted(1)

    world.restart = recreate
    offered = world.engines.offer()
    assert [engine.url for engine in offered.engines] == [f"http://engine-{n}" for n in range(LAST + 1)]
    assert not any(engine.ended for engine in offered.engines)
    assert world.log == ["restarted [1]", "routed [1]", "offer"], "the restart took nothing back that was offered"


def test_engines_that_sleep_while_the_trainer_works_get_no_offer(world: World) -> None:
    world.engines.sleep = True
    assert world.engines.offer() == Offered()
    assert world.log == []


def test_a_plugin_that_asks_for_the_engine_without_the_flag_is_told() -> None:
    candidate = AskedCandidate(
        PluginThread(lambda: None), "2", lambda probes: [], WorkForCandidate(Trained(), list, Offered)
    )
    with pytest.raises(PluginError, match="no engine may be first without --canary-engine; add it"):
        candidate.on_one_engine()
