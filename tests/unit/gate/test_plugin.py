"""The plugin on a real ledger, with policies that answer as a test says: what is asked, decided and recorded."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from openclaw.config.runtime_variables import GateVariables
from openclaw.gate import plugin
from openclaw.gate.plugin import Gate, decide
from openclaw.ledger.codec import pack_ids
from openclaw.ledger.store import Ledger
from openclaw.owners import stored_id
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments
from slime.rollout.before_push import Answer, Decision, Offered, Policies, Probe, Trained
from tests.helpers.probes import judged, leased_batch, probes, states
from tests.helpers.rollout_args import rollout_args

BOUNDS = GateVariables()
REPETITIVE = [7] * 64


@dataclass
class Asked:
    """A policy whose score of a reply is ``score`` of its prompt and reply; remembers what it was asked."""

    version: str
    score: Callable[[Probe], float]
    greedy: Callable[[Probe], list[int]] = lambda probe: [5, 6]
    asked: list[Probe] = field(default_factory=list[Probe])
    on_ask: Callable[[], object] = lambda: None
    trained: Trained = field(default_factory=Trained)

    def engines(self) -> list[str]:
        return []

    def on_all_engines(self) -> Offered:
        return Offered()

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        self.on_ask()
        self.asked = list(probes)
        return [
            Answer([self.score(probe)] * len(probe.reply_ids), self.greedy(probe) if probe.max_new_tokens else [], True)
            for probe in probes
        ]


@dataclass
class World:
    """A ledger with liked replies of three tokens and disliked ones of four, and a gate on it."""

    ledger: Ledger
    args: Arguments

    def gate(self, bounds: GateVariables = BOUNDS) -> Gate:
        return Gate(self.args, self.ledger, bounds)

    def decide(self, rollout_id: int, liked: float, disliked: float, bounds: GateVariables = BOUNDS) -> Decision:
        """Decide about a batch whose step changes the scores of liked and disliked replies."""
        serving = Asked(str(rollout_id), lambda probe: -1.0)
        moved = {3: liked, 4: disliked}
        candidate = Asked(str(rollout_id + 1), lambda probe: -1.0 + moved[len(probe.reply_ids)])
        return self.gate(bounds).decide(rollout_id, Policies(serving, candidate))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(Ledger(tmp_path / "ledger.sqlite"), rollout_args(tmp_path))
    for number in range(6):
        judged(world.ledger, f"liked-{number}", 1, probe=True)
        judged(world.ledger, f"disliked-{number}", -1, probe=True, reply=4)
    leased_batch(world.ledger, 0)
    return world


def test_an_update_with_the_users_serves_and_is_recorded(world: World) -> None:
    decision = world.decide(0, 0.1, -0.1)
    assert decision.accepted
    assert decision.why == (
        "version 1 may serve: margin +0.200 ± 0.000 nats/token, 6 liked and 6 disliked parts of sessions"
    )
    start, step = world.ledger.decisions.all()
    assert (start.kind, start.weight_version, start.rollout_id) == ("start", "0", -1)
    assert (step.kind, step.weight_version, step.rollout_id) == ("step", "1", 0)
    assert step.metrics["gate/margin"] == pytest.approx(0.2)
    scores = world.ledger.decisions.accepted_scores(9)
    assert scores[start.number] == pytest.approx(dict.fromkeys(scores[start.number], -1.0))
    assert len(scores[start.number]) == len(scores[step.number]) == 12
    assert scores[step.number]["liked-0"] == pytest.approx(-0.9)


def test_an_update_against_the_users_is_refused_with_what_to_type(world: World) -> None:
    decision = world.decide(0, -0.1, 0.1)
    assert not decision.accepted
    assert decision.why.startswith(
        "version 1 is refused, version 0 keeps serving: it moves towards what users disliked: margin -0.200 ± 0.000"
    )
    assert "openclaw-rl versions " in decision.why
    (refused,) = world.ledger.decisions.refusals()
    assert refused.by_margin
    assert refused.first_turn == 14
    assert refused.number not in world.ledger.decisions.accepted_scores(9)


def test_the_third_refusal_in_a_row_offers_to_accept(world: World) -> None:
    whys = []
    for rollout_id in range(3):
        if rollout_id:
            leased_batch(world.ledger, rollout_id)
        whys.append(world.decide(rollout_id, -0.1, 0.1).why)
        world.ledger.decisions.quarantine(rollout_id)
    assert ["openclaw-rl accept " in why for why in whys] == [False, False, True], whys
    assert "this is refusal 3 of a series" in whys[2]
    assert world.ledger.decisions.accept_refused(3) is not None
    world.ledger.samples.claim(3, 12)
    decision = world.decide(3, -0.1, 0.1)  # the old probes are retired
    assert decision.accepted
    assert "too few probes" in decision.why


def test_a_decision_that_is_repeated_counts_once(world: World) -> None:
    for _ in range(3):
        assert "openclaw-rl versions" in world.decide(0, -0.1, 0.1).why
    assert len(world.ledger.decisions.refusals()) == 1


def test_the_probes_are_stored_ids_and_those_of_the_batch_do_not_count(world: World) -> None:
    judged(world.ledger, "newer", 1, probe=True)
    serving, candidate = (Asked(version, lambda probe: -1.0) for version in "01")
    world.gate().decide(0, Policies(serving, candidate))
    assert serving.asked == candidate.asked
    assert len(serving.asked) == 12
    turn = world.ledger.turns.get("disliked-5")
    assert Probe(turn.prompt_ids, turn.response_ids, 40) in serving.asked
    assert sum(probe.max_new_tokens > 0 for probe in serving.asked) == BOUNDS.gate_replies


def test_a_probe_under_lessons_is_asked_without_them(world: World) -> None:
    with world.ledger.transaction() as connection:
        plain = "lesson_start = 0, lesson_end = 1, plain_middle = ?"
        connection.execute(f"UPDATE turns SET {plain} WHERE id = 'disliked-5'", (pack_ids([77, 78]),))
    serving, candidate = (Asked(version, lambda probe: -1.0) for version in "01")
    world.gate().decide(0, Policies(serving, candidate))
    turn = world.ledger.turns.get("disliked-5")
    assert Probe([77, 78, *turn.prompt_ids[1:]], turn.response_ids, 40) in serving.asked


def test_small_falls_add_up(world: World) -> None:
    bounds = replace(BOUNDS, gate_margin=0.05)
    for rollout_id, level in enumerate((0.0, -0.02, -0.04, -0.06)):
        if rollout_id:
            leased_batch(world.ledger, rollout_id)
        before, after = (Asked(str(rollout_id + n), lambda probe: 0.0) for n in (0, 1))
        moved = {3: level, 4: 0.0}
        before.score = lambda probe, moved=moved: moved[len(probe.reply_ids)] + 0.02 * (len(probe.reply_ids) == 3)
        after.score = lambda probe, moved=moved: moved[len(probe.reply_ids)]
        decision = world.gate(bounds).decide(rollout_id, Policies(before, after))
        world.ledger.samples.record_step(rollout_id, str(rollout_id + 1), 1.0, 2.0)
        assert decision.accepted == (rollout_id < 2), decision.why
        if not decision.accepted:
            assert "small steps away from version 0 add up: margin -0.060" in decision.why
            return


def test_degenerate_replies_are_refused(world: World) -> None:
    serving = Asked("0", lambda probe: -1.0)
    candidate = Asked("1", lambda probe: -1.0, greedy=lambda probe: REPETITIVE)
    decision = world.gate().decide(0, Policies(serving, candidate))
    assert "100% of its greedy replies are degenerate, of the serving version 0%" in decision.why
    assert not world.ledger.decisions.refusals()[0].by_margin


def test_without_anything_to_compare_an_update_serves_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin._say_once.cache_clear()
    world = World(Ledger(tmp_path / "ledger.sqlite"), rollout_args(tmp_path))
    with caplog.at_level(logging.WARNING):
        for rollout_id in range(2):
            decision = world.decide(rollout_id, 0.0, 0.0)
            assert decision.accepted
            assert decision.metrics["gate/too_few_probes"] == 1.0
    assert caplog.text.count("has too few probes") == 1


def test_trained_turns_tell_about_drift_while_there_are_few_probes(tmp_path: Path) -> None:
    world = World(Ledger(tmp_path / "ledger.sqlite"), rollout_args(tmp_path))
    leased_batch(world.ledger, 0)
    assert "scores moved by 9.00 nats/token" in world.decide(0, -9.0, 0.0).why
    assert world.ledger.decisions.accepted_scores(9) == {1: {}}  # trained turns are not probes


def test_a_change_that_is_accepted_meanwhile_counts(world: World) -> None:
    leased_batch(world.ledger, 1)
    assert not world.decide(1, -0.1, 0.1).accepted
    world.ledger.decisions.quarantine(1)
    serving = Asked("0", lambda probe: -1.0)
    candidate = Asked("1", lambda probe: -1.0 + (-0.1 if len(probe.reply_ids) == 3 else 0.1))
    candidate.on_ask = lambda: world.ledger.decisions.accept_refused(1)
    leased_batch(world.ledger, 2)
    decision = world.gate().decide(2, Policies(serving, candidate))
    assert decision.accepted
    assert "too few probes" in decision.why


def test_tasks_are_asked_and_verified(world: World, tiny_random_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"messages": [{"role": "user", "content": "2 + 3?"}], "number": 5}\n' * 6)
    tokenizer = AutoTokenizer.from_pretrained(tiny_random_model)
    world.args.hf_checkpoint = str(tiny_random_model)
    bounds = replace(BOUNDS, gate_tasks=str(tasks), gate_task_tokens=99)

    def reply(text: str) -> Callable[[Probe], list[int]]:
        return lambda probe: [*tokenizer(text, add_special_tokens=False)["input_ids"], 0]

    serving, candidate = (
        Asked(version, lambda probe: -1.0, greedy=reply(text)) for version, text in (("0", "It is 5"), ("1", "It is 6"))
    )
    decision = world.gate(bounds).decide(0, Policies(serving, candidate))
    asked = [probe for probe in serving.asked if not probe.reply_ids]
    assert [probe.max_new_tokens for probe in asked] == [99] * 6
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "2 + 3?"}], add_generation_prompt=True)
    assert list(asked[0].prompt_ids) == list(prompt["input_ids"] if hasattr(prompt, "keys") else prompt)
    assert "it solves 0% of the verified tasks, the serving version 100%" in decision.why


def test_an_answer_about_other_tokens_is_an_error(world: World) -> None:
    class Short(Asked):
        def ask(self, probes: Sequence[Probe]) -> list[Answer]:
            return [Answer([-1.0], [5], True) for _ in probes]

    with pytest.raises(ValueError, match="1 log-probabilities for"):
        world.gate().decide(0, Policies(Short("0", lambda probe: 0.0), Asked("1", lambda probe: 0.0)))


def test_scores_that_are_no_numbers_are_refused(world: World) -> None:
    assert not world.decide(0, math.nan, 0.0).accepted


def test_the_plugin_needs_the_ledger(tmp_path: Path) -> None:
    policies = Policies(Asked("0", lambda probe: 0.0), Asked("1", lambda probe: 0.0))
    with pytest.raises(ValueError, match="leave out --before-push-path"):
        decide(rollout_args(tmp_path), 0, object(), policies)


def test_the_data_source_keeps_what_the_gate_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_LEDGER", raising=False)
    args = rollout_args(tmp_path).changed(data_source_path="openclaw.training.rollout.LedgerDataSource")
    source = LedgerDataSource(args)
    probes(source.ledger, 6)
    first, second = (leased_batch(source.ledger, number) for number in range(2))
    worse = Asked("1", lambda probe: -1.0)
    decision = decide(source.args, 0, source, Policies(Asked("0", lambda probe: -1.0), worse))
    source.gate_decided(0, decision)
    source.weights_live(0, "1")
    source.step_undone(1, "worse")
    source.save(1)
    found = states(source.ledger)
    assert {found[sample][:2] for sample in first} == {("trained", None)}
    assert {found[sample][:2] for sample in second} == {("dropped", "quarantine")}
    source.weights_restored(-1, 1, "2")
    assert {states(source.ledger)[sample][:2] for sample in first} == {("dropped", "rollback")}
    assert source.ledger.samples.live_weight_version() == "2"


def test_with_an_adapter_per_person_a_persons_own_probes_decide(tmp_path: Path) -> None:
    """Bob's opinions speak against Alice's update, and nobody asks them; versions and refusals are hers."""
    world = World(Ledger(tmp_path / "ledger.sqlite"), rollout_args(tmp_path, adapter_per_person=True))
    for person, (liked, disliked) in {"alice": (3, 4), "bob": (4, 3)}.items():
        for number in range(6):
            session = stored_id(person, str(number))
            judged(world.ledger, f"{person}-l{number}", 1, probe=True, reply=liked, session=session)
            judged(world.ledger, f"{person}-d{number}", -1, probe=True, reply=disliked, session=session, index=16)
        judged(world.ledger, f"{person}-sample", 1, session=stored_id(person, "s"))
    for batch, person in enumerate(("alice", "bob")):
        world.ledger.samples.claim(batch, 1, person=person)
    decision = world.decide(0, 0.1, -0.1)
    assert decision.accepted
    assert decision.why.startswith("version 1 of alice may serve: margin +0.200")
    assert {each.person for each in world.ledger.decisions.all()} == {"alice"}
    refused = world.decide(1, 0.1, -0.1)
    assert not refused.accepted
    assert refused.why.startswith("version 2 of bob is refused, version 1 keeps serving: it moves towards what users")
    assert "--person bob" in refused.why
    assert [len(world.ledger.decisions.refusals(person)) for person in ("alice", "bob", None)] == [0, 1, 0]
    start = world.ledger.decisions.serving("bob")
    assert start is not None
    assert (start.kind, start.rollout_id, start.weight_version) == ("start", -1, "1")


def test_a_batch_whose_person_was_forgotten_meanwhile_is_undone(tmp_path: Path) -> None:
    world = World(Ledger(tmp_path / "ledger.sqlite"), rollout_args(tmp_path, adapter_per_person=True))
    judged(world.ledger, "sample", 1, session=stored_id("alice", "s"))
    world.ledger.samples.claim(0, 1, person="alice")
    world.ledger.sessions.forget_person("alice")
    decision = world.decide(0, 0.1, -0.1)
    assert (decision.accepted, decision.why) == (False, "the samples of its batch were deleted meanwhile")


def test_nothing_is_recorded_of_a_person_who_is_forgotten_while_the_versions_answer(tmp_path: Path) -> None:
    world = World(Ledger(tmp_path / "ledger.sqlite"), rollout_args(tmp_path, adapter_per_person=True))
    for number in range(6):
        judged(world.ledger, f"l{number}", 1, probe=True, reply=3, session=stored_id("alice", str(number)))
        judged(world.ledger, f"d{number}", -1, probe=True, reply=4, session=stored_id("alice", str(number)), index=16)
    judged(world.ledger, "sample", 1, session=stored_id("alice", "s"))
    world.ledger.samples.claim(0, 1, person="alice")
    serving, candidate = (Asked(version, lambda probe: -1.0) for version in "12")
    candidate.on_ask = lambda: world.ledger.sessions.forget_person("alice")
    decision = world.gate().decide(0, Policies(serving, candidate))
    assert (decision.accepted, decision.why) == (False, "the samples of its batch were deleted meanwhile")
    assert world.ledger.decisions.all() == []
