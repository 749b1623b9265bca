"""The trial of a candidate on one engine: a real ledger, an engine that answers as a test says, and the note for the gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import make_turn
from openclaw.config.runtime_variables import GateVariables
from openclaw.engine.canary import NAME, Share, ShareReader
from openclaw.engine.client import CACHE_KEY
from openclaw.gate import plugin as plugin_module
from openclaw.gate.plugin import Gate
from openclaw.ledger.records import VersionSpan
from openclaw.ledger.store import Ledger
from slime.args import Arguments
from slime.rollout.before_push import Canary, Decision, DecisionEndedError, Policies
from tests.helpers.probes import judged, leased_batch
from tests.helpers.rollout_args import rollout_args
from tests.helpers.threaded_server import serving
from tests.unit.gate.test_plugin import Asked

BOUNDS = GateVariables(gate_canary=0.5, canary_turns=3)
SCORE = -1.0


class Engine:
    """An engine with the candidate: scores every token with ``score``, and says its version."""

    def __init__(self) -> None:
        self.score: float | None = SCORE
        self.version = "1"
        self.greedy = [5, 6]
        self.fails = 0
        self.requests: list[dict[str, Any]] = []
        self.on_request: Callable[[], object] = lambda: None
        self.lives = True
        self.url = ""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["input_ids"][body.get("logprob_start_len", 0) :]
        meta: dict[str, Any] = {"weight_version": self.version, "finish_reason": {"type": "stop"}}
        if body.get("return_logprob"):
            meta["input_token_logprobs"] = [[None, ids[0], None], *([self.score, token, None] for token in ids[1:])]
        return {"output_ids": self.greedy, "meta_info": meta}


@contextmanager
def served(engine: Engine) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            engine.requests.append(body)
            engine.on_request()
            fails = engine.requests.count(body) <= engine.fails
            self._send(500 if fails else 200, {"error": "no"} if fails else engine.answer(body))

        def _send(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with serving(Handler) as url:
        engine.url = url
        yield


class Candidate(Asked):
    """The candidate's policy; ``trials`` are the engines that had it first."""

    engine: Engine
    trials: list[Canary]
    ends: DecisionEndedError | None = None

    def on_one_engine(self) -> Canary:
        if self.ends is not None:
            raise self.ends
        self.trials.append(Canary(self.engine.url, lambda: self.engine.lives))
        return self.trials[-1]


class World:
    """A gate on a ledger with probes; ``polls`` runs whenever the trial looks at live traffic."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger, self.engine = Ledger(folder / "ledger.sqlite"), Engine()
        self.args: Arguments = rollout_args(folder).changed(canary_engine=True, run_dir=str(folder))
        self.folder = folder
        self.reader = ShareReader(folder)
        for number in range(6):
            judged(self.ledger, f"liked-{number}", 1, probe=True)
            judged(self.ledger, f"disliked-{number}", -1, probe=True, reply=4)
        leased_batch(self.ledger, 0)
        self.candidate = Candidate("1", lambda probe: SCORE)
        self.candidate.engine, self.candidate.trials = self.engine, []
        self.open: list[Share] = []
        self.polls: Callable[[], object] = lambda: None
        plain = plugin_module.failures

        def failures(run_dir: str) -> list[str]:
            self.open.append(Share(**json.loads((folder / NAME).read_text())))
            self.polls()
            return plain(run_dir)

        monkeypatch.setattr(plugin_module, "failures", failures)
        monkeypatch.setattr(plugin_module, "POLL_SECONDS", 0.0)

    def decide(self, bounds: GateVariables = BOUNDS) -> Decision:
        gate = Gate(self.args, self.ledger, bounds)
        decision = gate.decide(0, Policies(Asked("0", lambda probe: SCORE), self.candidate))
        assert not (self.folder / NAME).exists(), "the share is closed, however the trial ends"
        return decision

    def serves(self, count: int, *versions: str, reply: list[int] | None = None, finish: str = "stop") -> None:
        """Record replies of live conversations."""
        ids = reply or [5, 6, 7]
        spans = [VersionSpan(version, number, number + 1) for number, version in enumerate(versions)]
        for _ in range(count):
            name = f"live-{self.ledger.views.newest_turn()}"
            changes: dict[str, Any] = {"response_ids": ids, "response_logprobs": [-0.5] * len(ids)}
            self.ledger.turns.record(
                make_turn(name, session_id=name, weight_versions=spans, finish_reason=finish, **changes)
            )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    with served(world.engine):
        yield world


def test_a_candidate_that_does_well_on_its_engine_serves(world: World) -> None:
    world.polls = lambda: world.serves(1, "1")
    decision = world.decide()
    assert decision.accepted
    assert decision.metrics["gate/canary_turns"] == 3.0
    assert decision.metrics["gate/canary_difference"] == 0.0
    assert decision.metrics["gate/canary_deaths"] == 0.0
    assert set(world.open) == {Share(world.engine.url, "1", 0.5)}
    assert len(world.open) == 3
    (step,) = [each for each in world.ledger.decisions.all() if each.kind == "step"]
    assert step.metrics["gate/canary_turns"] == 3.0


def test_the_engine_is_asked_what_the_trainer_was_asked(world: World) -> None:
    world.decide(replace(BOUNDS, gate_canary=0.0))
    turn = world.ledger.turns.get("disliked-5")
    scored = [each for each in world.engine.requests if each["sampling_params"]["max_new_tokens"] == 0]
    assert [*turn.prompt_ids, *turn.response_ids] in [each["input_ids"] for each in scored]
    assert len(scored) == 12
    assert len(world.engine.requests) == 12 + BOUNDS.gate_replies
    assert len({each[CACHE_KEY] for each in world.engine.requests}) == 1


def test_a_question_that_the_engines_context_does_not_hold_is_left_out(world: World) -> None:
    turn = world.ledger.turns.get("disliked-5")  # one token longer than the liked ones
    longest = len(turn.prompt_ids) + len(turn.response_ids)
    bounds = replace(BOUNDS, gate_canary=0.0, gate_reply_tokens=0)
    for context, asked in ((longest - 1, 0), (longest, 6), (longest + 1, 12)):
        world.args = world.args.changed(rollout_max_context_len=context)
        world.engine.requests.clear()
        assert world.decide(bounds).accepted
        assert len(world.engine.requests) == asked
    world.engine.requests.clear()
    assert world.decide(replace(BOUNDS, gate_canary=0.0)).accepted
    assert len(world.engine.requests) == 12 - BOUNDS.gate_replies, "their greedy replies would not fit"


def test_without_a_share_no_conversation_goes_there(world: World) -> None:
    for share in (0.0, None):
        assert world.decide(replace(BOUNDS, gate_canary=share)).accepted
    assert not world.open


def test_without_the_flag_no_engine_is_first(world: World) -> None:
    world.args = world.args.changed(canary_engine=False)
    assert world.decide().accepted
    assert not world.candidate.trials


def test_what_the_trainer_refuses_reaches_no_engine(world: World) -> None:
    world.candidate.score = lambda probe: SCORE - 5.0
    assert not world.decide().accepted
    assert not world.candidate.trials


@pytest.mark.parametrize("score", [SCORE - 0.2, None])
def test_an_engine_that_disagrees_with_the_trainer_gets_no_conversation(world: World, score: float | None) -> None:
    world.engine.score = score
    decision = world.decide()
    assert not decision.accepted
    assert "version 1 is refused, version 0 keeps serving: its engine gives stored replies other log" in decision.why
    assert "its samples are in quarantine" in decision.why
    assert not world.open
    assert [each.kind for each in world.ledger.decisions.all()] == ["start", "refused"]
    (refused,) = world.ledger.decisions.refusals()
    assert not refused.by_margin, "nobody is offered to accept it"


def test_an_engine_with_another_version_is_refused(world: World) -> None:
    world.engine.version = "0"
    assert "its engine fails at a question: it has version 0" in world.decide().why


def test_a_living_engine_that_fails_at_a_question_is_refused_after_three_tries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_module, "QUESTIONS", 1)
    world.engine.fails = 2
    assert world.decide(replace(BOUNDS, gate_canary=0.0)).accepted
    world.engine.requests.clear()
    world.engine.fails = 3
    assert "its engine fails at a question: 500" in world.decide(replace(BOUNDS, gate_canary=0.0)).why


def test_time_runs_out_without_replies(world: World) -> None:
    world.polls = lambda: world.serves(1, "0")
    decision = world.decide(replace(BOUNDS, canary_seconds=0.05))
    assert decision.accepted
    assert decision.metrics["gate/canary_turns"] == 0.0


def test_degenerate_live_replies_refuse(world: World) -> None:
    world.serves(20, "0")
    world.polls = lambda: (world.serves(2, "1", finish="length"), world.serves(2, "1", reply=[7] * 64))
    decision = world.decide()
    assert "100% of 4 live replies are degenerate, of the serving version 0%" in decision.why
    assert not decision.accepted


def test_replies_of_two_versions_and_aborted_ones_count_for_none(world: World) -> None:
    world.polls = lambda: (world.serves(1, "1"), world.serves(2, "0", "1"), world.serves(2, "1", finish="abort"))
    world.decide()
    assert len(world.open) == 3


def test_many_replies_of_other_engines_hide_none_of_the_candidates(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small share of much traffic: the candidate's replies lie far apart."""
    monkeypatch.setattr(plugin_module, "SERVED_TURNS", 1)
    world.polls = lambda: (world.serves(1, "1"), world.serves(10, "0"))
    assert world.decide().metrics["gate/canary_turns"] == 3.0
    assert len(world.open) == 3


@pytest.mark.parametrize("mark", ["copied", "scored"])
def test_replies_that_no_engine_of_this_run_gave_count_for_no_version(world: World, mark: str) -> None:
    """Versions are numbers, so another run has the same ones."""
    world.serves(20, "0")
    with world.ledger.transaction() as connection:
        connection.execute(f"UPDATE turns SET {mark} = 1 WHERE id LIKE 'live-%'")
    world.polls = lambda: world.serves(4, "1", finish="length")
    assert world.decide().accepted


def test_requests_that_leave_a_living_engine_refuse(world: World) -> None:
    world.polls = lambda: world.reader.failed("EngineReportedError: answered\n500")
    decision = world.decide()
    assert "3 requests left its engine without a whole reply: EngineReportedError: answered 500" in decision.why
    assert len(world.open) == 3


def test_an_engine_that_dies_once_is_tried_again(world: World) -> None:
    def die() -> None:
        world.serves(1, "1")
        if len(world.open) == 1:
            world.candidate.trials[-1].end("the engine died", died=True)

    world.polls = die
    decision = world.decide()
    assert decision.accepted
    assert decision.metrics["gate/canary_deaths"] == 1.0
    assert len(world.candidate.trials) == 2


def test_an_engine_that_dies_twice_is_refused(world: World) -> None:
    world.engine.on_request = lambda: world.candidate.trials[-1].end("the engine died", died=True)
    decision = world.decide()
    assert "the engine that had it first died 2 times" in decision.why
    assert len(world.candidate.trials) == 2


def test_other_engines_deaths_never_refuse(world: World) -> None:
    def restart() -> None:
        if len(world.candidate.trials) < 5:
            world.candidate.trials[-1].end("another engine restarted")

    world.engine.on_request = restart
    assert world.decide(replace(BOUNDS, gate_canary=0.0)).accepted
    assert len(world.candidate.trials) == 5


def test_a_dead_engine_that_fails_requests_is_waited_for(world: World) -> None:
    """It is the driver that restarts it and says that it died."""

    def poll() -> None:
        if len(world.candidate.trials) == 1:
            world.engine.lives = False
            for _ in range(3):
                world.reader.failed("the connection ended")
            threading.Timer(0.05, restart).start()
        else:
            world.serves(3, "1")

    def restart() -> None:
        world.candidate.trials[0].end("the engine died", died=True)
        world.engine.lives = True

    world.polls = poll
    decision = world.decide()
    assert decision.accepted, decision.why


def test_a_trainer_that_dies_ends_the_trial(world: World) -> None:
    def end() -> None:
        world.candidate.ends = DecisionEndedError("the trainer died")
        world.candidate.trials[-1].end("the trainer died")

    world.polls = end
    with pytest.raises(DecisionEndedError):
        world.decide()
    assert not (world.folder / NAME).exists()
