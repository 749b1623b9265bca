"""The certificate in the gate: engines that answer as a test says, on a real ledger with stored replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.runtime_variables import GateVariables
from openclaw.credit.baseline import WINDOW
from openclaw.engine.client import CACHE_KEY
from openclaw.gate import accept, proof
from openclaw.gate.plugin import Gate
from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.records import Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from slime.rollout.before_push import Canary, Decision, Offered, Policies, Trained
from tests.helpers.probes import judged, leased_batch
from tests.helpers.rollout_args import rollout_args
from tests.helpers.threaded_server import serving
from tests.unit.gate.test_plugin import Asked

BOUNDS = GateVariables(gate_certificate=True)
ADAPTER, DIGEST = "weights-1-0123abcd-7", "ab" * 32
BEFORE, UPDATED, BASE = -1.0, -1.02, -1.3
METRICS = {"rollout/loss_tokens": 9.0, "rollout/signal_share": 1.0, "rollout/update_rms": 1e-4}
TRAINED = Trained(METRICS, [{"train/grad_norm": 0.2}])


class Engine:
    """Answers by the name of an adapter; ``scores`` has the log probability of every token, None without a name."""

    def __init__(self) -> None:
        self.scores: dict[str | None, float] = {None: BEFORE, ADAPTER: UPDATED, "base": BASE}
        self.versions: dict[str | None, str] = {None: "0", ADAPTER: "1", "base": "base"}
        self.digest = DIGEST
        self.requests: list[dict[str, Any]] = []
        self.on_request: Callable[[str | None], object] = lambda adapter: None

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        name = body.get("lora_path")
        self.requests.append(body)
        self.on_request(name)
        return [self._score(name, *each) for each in zip(body["input_ids"], body["logprob_start_len"], strict=True)]

    def _score(self, name: str | None, ids: list[int], start: int) -> dict[str, Any]:
        scores = [[None, ids[start], None], *([self.scores[name], token, None] for token in ids[start + 1 :])]
        meta = {"weight_version": self.versions[name], "input_token_logprobs": scores}
        return {"meta_info": meta | ({"adapter_sha256": self.digest} if name == ADAPTER else {})}


@contextmanager
def served(engine: Engine) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({})

        def do_POST(self) -> None:
            self._send(engine.answer(json.loads(self.rfile.read(int(self.headers["content-length"])))))

        def _send(self, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with serving(Handler) as url:
        yield url


class Candidate(Asked):
    """The update; ``adapter`` is its name on the engine, None for whole weights."""

    url = ""
    adapter: str | None = ADAPTER
    offers: int = 0
    engine = Canary("")
    lives: Callable[[], bool] = staticmethod(lambda: True)

    def engines(self) -> list[str]:
        return [self.url]

    def on_all_engines(self) -> Offered:
        self.offers += 1
        self.engine = Canary(self.url, self.lives)
        return Offered([self.engine], self.adapter, DIGEST if self.adapter else None)


class World:
    """A gate on a ledger with a batch and stored replies, and an engine."""

    def __init__(self, folder: Path, url: str, engine: Engine) -> None:
        self.ledger, self.engine = Ledger(folder / "ledger.sqlite"), engine
        self.args = rollout_args(folder).changed(use_lora=True)
        for number in range(6):
            judged(self.ledger, f"liked-{number}", 1, probe=True)
            judged(self.ledger, f"disliked-{number}", -1, probe=True, reply=4)
        leased_batch(self.ledger, 0)
        self.candidate = Candidate("1", lambda probe: UPDATED)
        self.candidate.url, self.candidate.trained = url, TRAINED

    def decide(self, bounds: GateVariables = BOUNDS, rollout_id: int = 0) -> Decision:
        serving = Asked("0", lambda probe: BEFORE)
        return Gate(self.args, self.ledger, bounds).decide(rollout_id, Policies(serving, self.candidate))

    def certified(self) -> DecisionRecord:
        record = self.ledger.decisions.last_certified()
        assert record is not None
        return record

    def red(self, rollout_id: int = 0) -> set[str]:
        """Decide, and return the red lines of what was recorded; a red certificate refuses."""
        decision = self.decide(rollout_id=rollout_id)
        record = self.certified()
        assert record.certificate is not None
        lines = {line["name"] for line in record.certificate["lines"] if line["verdict"] == "red"}
        assert decision.accepted == (record.kind == "step") == (not lines)
        assert bool(lines) == ("its certificate is red: " in decision.why)
        assert decision.metrics["gate/certificate_red"] == float(bool(lines))
        assert not record.by_margin, "nobody can accept what was not learned"
        return lines


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    engine = Engine()
    with served(engine) as url:
        yield World(tmp_path, url, engine)


def test_a_healthy_update_serves_with_a_green_certificate(world: World) -> None:
    assert world.red() == set()
    certificate = world.certified().certificate
    assert certificate is not None
    found = {line["name"]: line["verdict"] for line in certificate["lines"]}
    assert found.pop("judge") == "unknown"
    assert set(found.values()) == {"green"}, certificate
    names = [request.get("lora_path") for request in world.engine.requests]
    assert names == [None, "base", ADAPTER], "what serves is asked about first, and each question is one batch"
    assert all(len(request["input_ids"]) == proof.REPLIES for request in world.engine.requests)
    keys = [set(request[CACHE_KEY]) for request in world.engine.requests]
    assert len(set.union(*keys)) == 3, "no answer of other weights is used again"


FAULTS: dict[str, tuple[Callable[[World], object], set[str]]] = {
    "stale adapter": (lambda world: world.engine.scores.update({ADAPTER: BEFORE}), {"stale"}),
    "base weights": (lambda world: world.engine.scores.update({ADAPTER: BASE}), {"named", "base"}),
    "other weights": (lambda world: world.engine.scores.update({ADAPTER: -3.0}), {"named"}),
    "other adapter": (lambda world: setattr(world.engine, "digest", "cd" * 32), {"digest"}),
    "other weights served": (lambda world: world.engine.scores.update({None: -3.0}), {"served"}),
    "old version served": (lambda world: world.engine.versions.update({None: "7"}), {"served"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_with_a_fault_stops_the_publication(world: World, fault: str) -> None:
    plant, lines = FAULTS[fault]
    plant(world)
    assert world.red() == lines


@pytest.mark.parametrize(
    ("trained", "line"),
    [
        (TRAINED._replace(metrics={**METRICS, "rollout/signal_share": 0.0}), "advantages"),
        (TRAINED._replace(metrics={**METRICS, "rollout/loss_tokens": 0.0}), "tokens"),
        (TRAINED._replace(metrics={**METRICS, "rollout/update_rms": 0.0}), "update"),
        (TRAINED._replace(steps=[{"train/grad_norm": float("nan")}]), "gradient"),
        (TRAINED._replace(unread=("--lr",), unused=("--lr",)), "options"),
    ],
)
def test_a_fault_of_the_step_stops_the_publication_before_any_engine_has_it(
    world: World, trained: Trained, line: str
) -> None:
    world.candidate.trained = trained
    assert world.red() == {line}
    assert world.candidate.offers == 0
    assert ADAPTER not in {request.get("lora_path") for request in world.engine.requests}


def test_a_content_person_has_nothing_to_teach_and_no_update_is_refused_for_it(world: World) -> None:
    """After as many equal rewards as a baseline looks at, every advantage of the next batch is zero."""
    for number in range(WINDOW):
        judged(world.ledger, f"content-{number}", 1, session=stored_id("alice", str(number)))
    world.ledger.samples.claim(1, 2 * WINDOW)
    for number in range(2):
        judged(world.ledger, f"as-usual-{number}", 1, session=stored_id("alice", f"next-{number}"))
    world.ledger.samples.claim(2, 2)
    nothing = {**METRICS, "rollout/signal_share": 0.0, "rollout/update_rms": 0.0}
    world.candidate.trained = Trained(nothing, [{"train/grad_norm": 0.0}])
    assert world.red(0) == {"advantages", "gradient", "update"}, "the first batch has rewards that are not as usual"
    assert world.red(2) == set()
    world.candidate.trained = Trained(nothing, [{"train/grad_norm": float("nan")}, {"train/grad_norm": 0.0}])
    assert world.red(2) == {"gradient"}


def test_a_judge_whose_answers_are_lost_stops_the_publication(world: World) -> None:
    lost = Verdict(votes=tuple(Vote("prm", "words", None, invalid="no_box") for _ in range(3)))
    world.ledger.database.rows("SELECT 1")
    with world.ledger.database.transaction() as connection:
        connection.execute("UPDATE verdicts SET verdict = ? WHERE turn_id = 'liked-0'", (json.dumps(lost.to_dict()),))
    assert world.ledger.decisions.judge_answers() == (3, 3)
    assert world.red() == {"judge"}
    assert world.ledger.decisions.judge_answers() == (0, 0), "answers count once, for the next update"


def test_a_turn_whose_judging_fails_counts_as_a_lost_answer(world: World) -> None:
    for name in ("one", "two", "three"):
        judged(world.ledger, name, 1)
    with world.ledger.database.transaction() as connection:
        connection.execute("DROP TRIGGER turns_next_state")
        connection.execute("UPDATE turns SET state = 'pending', judge_attempts = 1 WHERE id IN ('one', 'two', 'three')")
    assert world.red() == {"judge"}


def test_a_flag_that_was_not_needed_yet_is_named_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.candidate.trained = TRAINED._replace(unread=("--tis-clip",))
    assert world.red() == world.red() == set()
    assert [record.message for record in caplog.records if "--tis-clip" in record.message] == [
        f"{world.args.run_dir}: no step has read the flags --tis-clip so far; they may have no effect"
    ]


def test_a_person_may_accept_flags_without_effect(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.candidate.trained = TRAINED._replace(unread=("--lr",), unused=("--lr",))
    assert world.red() == {"options"}
    why = world.certified().why
    assert "to train them with --lr as before type: " in why
    assert why.endswith(f"openclaw-rl accept {world.args.run_dir}")
    assert world.ledger.decisions.quarantine(0) > 0
    assert accept.main([str(world.args.run_dir)]) == 0
    said = capsys.readouterr().out
    assert "a person accepted flags without effect: --lr; " in said
    assert "no later update is refused for these flags" in said
    assert world.ledger.samples.ready_count() > 0
    assert accept.main([str(world.args.run_dir)]) == 2, "nothing is left to accept"
    assert world.red() == set()
    world.candidate.trained = TRAINED._replace(unread=("--lr", "--gamma"), unused=("--lr", "--gamma"))
    assert world.red() == {"options"}, "another flag"
    assert "no code reads --gamma)" in world.certified().why


def test_flags_beside_another_fault_are_not_accepted(world: World) -> None:
    world.candidate.trained = TRAINED._replace(
        metrics={**METRICS, "rollout/loss_tokens": 0.0}, unread=("--lr",), unused=("--lr",)
    )
    assert world.red() == {"options", "tokens"}
    assert world.ledger.decisions.accept_flags() is None


def test_whole_weights_are_asked_as_conversations_ask(world: World) -> None:
    world.candidate.adapter, world.args = None, world.args.changed(use_lora=False)
    offered: list[int] = []
    plain = world.candidate.on_all_engines

    def on_all_engines() -> Offered:
        world.engine.scores[None], world.engine.versions[None] = UPDATED, "1"
        offered.append(1)
        return plain()

    world.candidate.on_all_engines = on_all_engines  # type: ignore[method-assign]
    assert world.red() == set()
    assert offered == [1]
    assert {request.get("lora_path") for request in world.engine.requests} == {None}


def test_an_engine_that_restarts_gets_the_update_again(world: World) -> None:
    def restart(adapter: str | None) -> None:
        if adapter == ADAPTER and world.candidate.offers == 1:
            world.candidate.engine.end("all engines got the same weights")

    world.engine.on_request = restart
    assert world.red() == set()
    assert world.candidate.offers == 2


def test_an_engine_that_died_is_awaited_until_it_has_what_serves_and_gets_the_update_again(world: World) -> None:
    """A restarted engine answers before it has any weights of the run: that says nothing about the update."""
    asked = list[bool]()

    def lives() -> bool:
        asked.append(True)
        if len(asked) == 3:
            world.candidate.engine.end("all engines got the same weights")
        return False

    def die(adapter: str | None) -> None:
        if adapter == ADAPTER and world.candidate.offers == 1:
            world.candidate.engine.lives = lives
            world.engine.scores.update({ADAPTER: -3.0})
        elif adapter == ADAPTER:
            world.engine.scores.update({ADAPTER: UPDATED})

    world.engine.on_request = die
    assert world.red() == set()
    assert (world.candidate.offers, len(asked)) == (2, 3)


def test_an_engine_that_nobody_restarts_makes_the_certificate_red(world: World) -> None:
    world.args = world.args.changed(use_fault_tolerance=False)
    world.candidate.lives = lambda: False
    world.engine.scores.update({ADAPTER: -3.0})
    assert world.red() == {"named"}


def test_an_engine_that_never_keeps_the_update_makes_the_certificate_red(world: World) -> None:
    def restart(adapter: str | None) -> None:
        if adapter == ADAPTER:
            world.candidate.engine.end("all engines got the same weights")

    world.engine.on_request = restart
    assert "named" in world.red()
    assert world.candidate.offers == proof.OFFERS


def test_without_the_certificate_no_engine_is_asked(world: World) -> None:
    world.candidate.trained = TRAINED._replace(unread=("--lr",), unused=("--lr",))
    assert world.decide(GateVariables(gate_certificate=False)).accepted
    assert (world.ledger.decisions.last_certified(), world.engine.requests) == (None, [])
