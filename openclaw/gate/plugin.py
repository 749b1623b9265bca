"""``--before-push-path openclaw.gate.plugin.decide``: asks both versions of the policy, decides, and records why.

Guarantees: the decision is in the ledger, with the scores of the probes, before the trainer acts on it. If a person
accepts a change while the versions answer, the decision is made again. Any error ends the run, because nobody knows then
whether the update may serve. Without probes and tasks an update passes, which is counted and said once.

An accepted candidate is tried on one engine before the others get it (``--canary-engine``): questions first, then a share of live
conversations. No conversation reaches the candidate before its engine has answered the gate's questions as the trainer does, and
none that begins after the trial does. The trial is bounded in replies and seconds. An engine that dies does not decide once,
because it may have died of something else; the second time it does. Otherwise the trial begins anew.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import httpx

from groundwork.exceptions import ConfigError
from groundwork.paused import WITHOUT_NAME
from openclaw.config.runtime_variables import GateVariables
from openclaw.engine.canary import Share, close_share, failures, open_share
from openclaw.engine.client import CACHE_KEY, new_cache_key, scoring_payload
from openclaw.gate.certificate import OPTIONS, Certificate, certify
from openclaw.gate.decision import Agreement, Evidence, Finding, Live, decide_on, disagrees, does_worse
from openclaw.gate.proof import Proof, facts_of_trainer, fits, log_probs_of
from openclaw.gate.questions import Questions, ask_about, sound, unread
from openclaw.judge.hygiene import is_repetitive
from openclaw.ledger.decisions import SERVING, UNUSED, DecisionRecord
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import ServedTurn
from openclaw.runtime.where import gate_command, ledger_path
from openclaw.training.rollout import until_available, uses_ledger
from slime.args import Arguments
from slime.rollout.before_push import Answer, Canary, CanaryEndedError, Decision, Policies, Probe

T = TypeVar("T")

MAX_DEATHS = 2
"""Deaths of the engine under one candidate that refuse it."""
MAX_FAILURES = 3
"""Requests that a living engine may fail, and tries of a question."""
QUESTIONS = 16
SERVED_TURNS = 200
POLL_SECONDS = 0.2
ANSWER_SECONDS = 120.0
FORGOTTEN = "the samples of its batch were deleted meanwhile"


@dataclass(frozen=True)
class Trial:
    """What speaks against the candidate, one clause each, and numbers for the trackers."""

    refusals: tuple[str, ...]
    metrics: dict[str, float]


class FailedQuestionError(Exception):
    """A living engine does not answer a question."""


def try_first(
    args: Arguments,
    ledger: Ledger,
    policies: Policies,
    asked: tuple[Questions, Sequence[Answer]],
    bounds: GateVariables,
    patiently: Callable[[Callable[[], Any]], Any],
) -> Trial:
    """Try the candidate on one engine.

    Args:
        args: of the run.
        ledger: of the run.
        policies: the versions.
        asked: the gate's questions, and what the trainer answered with the candidate's weights.
        bounds: of the decision.
        patiently: repeats a call while the ledger is unavailable.
    """
    started, deaths = time.monotonic(), 0
    while True:
        engine = policies.candidate.on_one_engine()
        try:
            refusals, metrics = _EngineTrial(args, ledger, policies, engine, bounds, patiently).run(*asked)
            break
        except CanaryEndedError as error:
            deaths += error.died
            logger.warning("the trial of version %s is interrupted: %s", policies.candidate.version, error)
            if deaths >= MAX_DEATHS:
                refusals, metrics = [f"the engine that had it first died {deaths} times"], {}
                break
    return Trial(
        tuple(refusals), {**metrics, "gate/canary_seconds": time.monotonic() - started, "gate/canary_deaths": deaths}
    )


class _EngineTrial:
    def __init__(
        self,
        args: Arguments,
        ledger: Ledger,
        policies: Policies,
        engine: Canary,
        bounds: GateVariables,
        patiently: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._run_dir = args.run_dir
        self._args = args
        self._ledger = ledger
        self._policies = policies
        self._engine = engine
        self._cache_key = new_cache_key()
        self._bounds = bounds
        self._patiently = patiently

    def run(self, questions: Questions, answers: Sequence[Answer]) -> tuple[list[str], dict[str, float]]:
        """Ask the questions, then open the share; a refusal by the first keeps the share closed."""
        try:
            refusals, metrics = self._ask(questions, answers)
        except FailedQuestionError as error:
            return [f"its engine fails at a question: {error}"], {}
        if refusals or not self._bounds.gate_canary:
            return refusals, metrics
        refusals, live = self._serve(self._bounds.gate_canary)
        return refusals, {**metrics, **live}

    # Questions

    def _ask(self, questions: Questions, answers: Sequence[Answer]) -> tuple[list[str], dict[str, float]]:
        differences, replies = list[float](), []
        fitting = [pair for pair in zip(questions.probes, answers, strict=True) if fits(self._args, pair[0])][
            :QUESTIONS
        ]
        limits = httpx.Limits(max_connections=QUESTIONS)
        with (
            httpx.Client(base_url=self._engine.url, timeout=ANSWER_SECONDS, limits=limits, trust_env=False) as client,
            ThreadPoolExecutor(QUESTIONS) as pool,
        ):
            result = list(pool.map(partial(self._answer, client), [probe for probe, _ in fitting]))
        for (probe, trainers), engines in zip(fitting, result, strict=True):
            differences += [abs(a - b) for a, b in zip(engines.log_probs, trainers.log_probs, strict=True)]
            if probe.max_new_tokens:
                replies.append(sound(unread(trainers), unread(engines)))
        mean = math.fsum(differences) / len(differences) if differences else None
        return disagrees(Agreement(mean, replies), self._bounds)

    def _answer(self, client: httpx.Client, probe: Probe) -> Answer:
        """Return the engine's answer to a question."""
        scores = self._scores(client, probe) if probe.reply_ids else []
        if not probe.max_new_tokens:
            return Answer(scores, [], False)
        limits = {"max_new_tokens": probe.max_new_tokens, "temperature": 0.0}
        greedy = self._posted(client, {"input_ids": list(probe.prompt_ids), "sampling_params": limits})
        return Answer(scores, greedy["output_ids"], greedy["meta_info"]["finish_reason"]["type"] == "stop")

    def _scores(self, client: httpx.Client, probe: Probe) -> list[float]:
        """Return the engine's log probabilities of a stored reply; NaN where it has none."""
        return log_probs_of(
            probe, self._posted(client, scoring_payload(probe.prompt_ids, probe.reply_ids))["meta_info"]
        )

    def _posted(self, client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's answer to a request.

        Raises:
            FailedQuestionError: the living engine refuses it.
            CanaryEndedError: the engine loses the candidate meanwhile.
        """
        problem, body = "", {**body, CACHE_KEY: self._cache_key}
        for _ in range(MAX_FAILURES):
            self._engine.wait(0.0)
            try:
                response = client.post("/generate", json=body)
            except httpx.TransportError as error:
                problem = repr(error)
            else:
                document = response.json() if response.status_code == httpx.codes.OK else None
                has = document and str(document["meta_info"]["weight_version"])
                if document and has == self._policies.candidate.version:
                    return document
                problem = f"it has version {has}" if document else f"{response.status_code} {response.text[:200]}"
            self._engine.wait_while_down()
        raise FailedQuestionError(problem)

    # Live conversations

    def _serve(self, share: float) -> tuple[list[str], dict[str, float]]:
        """Give the engine its share of conversations until enough replies ended or the time is up, and compare them."""
        candidate, serving = self._policies.candidate.version, self._policies.serving.version
        after = self._patiently(self._ledger.views.newest_turn)
        deadline = time.monotonic() + self._bounds.canary_seconds
        open_share(self._run_dir, Share(self._engine.url, candidate, share))
        try:
            while True:
                self._engine.wait(POLL_SECONDS)
                if len(lost := failures(self._run_dir)) >= MAX_FAILURES:
                    close_share(self._run_dir)
                    self._engine.wait_while_down()
                    return [f"{len(lost)} requests left its engine without a whole reply: {lost[0]}"], {}
                turns = self._turns(candidate, after)
                if len(turns) >= self._bounds.canary_turns or time.monotonic() > deadline:
                    break
        finally:
            close_share(self._run_dir)
        usual = self._turns(serving, max(0, after - self._most_turns))
        return does_worse(_live(turns), _live(usual), self._bounds)

    @property
    def _most_turns(self) -> int:
        """Turns of one version to look at, and turns before the trial among which those of the serving version are sought."""
        return max(SERVED_TURNS, 2 * self._bounds.canary_turns)

    def _turns(self, version: str, after: int) -> list[ServedTurn]:
        return self._patiently(lambda: self._ledger.views.served_turns(version, after, self._most_turns))


def _live(turns: Sequence[ServedTurn]) -> list[Live]:
    return [
        Live(
            good=not (turn.cut or turn.malformed_calls or is_repetitive(turn.response_ids)),
            liked=turn.score > 0 if turn.score else None,
            pace=turn.seconds / max(1, len(turn.response_ids)),
        )
        for turn in turns
    ]


logger = logging.getLogger(__name__)

T = TypeVar("T")


def decide(args: Arguments, rollout_id: int, data_source: object, policies: Policies) -> Decision:
    """Decide whether the weights after the steps of ``rollout_id`` may serve.

    Raises:
        ConfigError: the data source has no ledger, or a variable of the gate is invalid.
    """
    if not uses_ledger(args):
        raise ConfigError(
            "the gate reads the ledger; add --data-source-path openclaw.training.rollout.LedgerDataSource, "
            "or leave out --before-push-path openclaw.gate.plugin.decide"
        )
    ledger = patiently(lambda: _ledger(ledger_path(args)))
    return Gate(args, ledger, GateVariables.from_env()).decide(rollout_id, policies)


@cache
def _ledger(path: Path) -> Ledger:
    """Return the driver's connection to a ledger, which lasts as long as the process."""
    return Ledger(path)


def patiently(call: Callable[[], T]) -> T:
    """Return ``call()`` once the ledger is available; the thread of the plugin ends with the driver's process at the latest."""
    return until_available(call, threading.Event())


class Gate:
    """Decides about updates of one run; stateless, the ledger remembers."""

    def __init__(self, args: Arguments, ledger: Ledger, bounds: GateVariables) -> None:
        """``args`` and ``ledger`` of the run, ``bounds`` of the decision."""
        self._args = args
        self._ledger = ledger
        self._bounds = bounds

    def decide(self, rollout_id: int, policies: Policies) -> Decision:
        """Ask both versions, decide, and record the decision."""
        started = time.monotonic()
        ledger, bounds, person = self._ledger, self._bounds, None
        if self._args.adapter_per_person:
            person = patiently(lambda: ledger.samples.person_of(rollout_id))
            if person is None:
                return Decision(False, FORGOTTEN)
        if policies.serving.version == policies.candidate.version and not bounds.gate_certificate:
            return Decision(True, "every step was skipped, so the weights are the same")
        first_turn = patiently(lambda: ledger.decisions.middle_turn(rollout_id))
        while True:
            window = patiently(lambda: ledger.decisions.probe_window(first_turn, person))
            questions = patiently(partial(ask_about, self._args, ledger, window, rollout_id, bounds, person))
            proof = Proof(self._args, questions.probes, policies, person) if bounds.gate_certificate else None
            answers = [policy.ask(questions.probes) if questions.probes else [] for policy in policies]
            evidence = questions.evidence(*answers)
            serving = patiently(lambda: self._serving(rollout_id, policies.serving.version, person))
            if serving is None:
                return Decision(False, FORGOTTEN)
            evidence = patiently(partial(self._with_earlier, evidence, serving))
            finding = decide_on(evidence, bounds)
            if patiently(lambda: ledger.decisions.probe_window(first_turn, person)) == window:
                break
            logger.info("rollout %d: a change was accepted meanwhile; both versions are compared again", rollout_id)
        certified = time.monotonic()
        facts = facts_of_trainer(
            policies.candidate.trained,
            patiently(lambda: ledger.decisions.judge_answers(person)),
            patiently(ledger.decisions.accepted_flags),
            as_usual=patiently(lambda: ledger.samples.as_usual(rollout_id)),
        )
        certificate = certify(facts, bounds) if bounds.gate_certificate else Certificate()
        flags = facts.unused if finding.accepted and certificate.red == [OPTIONS] else ()
        finding = _with_certificate(finding, certificate)
        if bounds.gate_certificate and facts.unread:
            _warn_once(", ".join(facts.unread), str(self._args.run_dir))
        seconds = time.monotonic() - certified
        if finding.accepted and self._args.canary_engine:
            trial = try_first(self._args, ledger, policies, (questions, answers[1]), bounds, patiently)
            finding = replace(finding, refusals=trial.refusals, metrics=finding.metrics | trial.metrics)
        if finding.accepted and proof is not None:
            certified = time.monotonic()
            certificate = certify(proof.with_update(facts, *answers), bounds)
            finding = _with_certificate(finding, certificate)
            seconds += time.monotonic() - certified
        why = patiently(lambda: self._why(rollout_id, finding, policies, flags, person))
        metrics = {**finding.metrics, "gate/seconds": time.monotonic() - started, "gate/certificate_seconds": seconds}
        metrics["gate/certificate_red"] = float(certificate.is_red)
        decision = Decision(finding.accepted, why, metrics)
        recorded = patiently(
            lambda: self._record(
                rollout_id, first_turn, policies, finding, decision, evidence, serving, certificate, flags
            )
        )
        return decision if recorded else Decision(False, FORGOTTEN)

    def _serving(self, rollout_id: int, version: str, person: str | None) -> DecisionRecord | None:
        """Return the decision that let the serving version serve; record a start if there is none.

        None, with nothing recorded, if the person was forgotten meanwhile.
        """
        decisions = self._ledger.decisions
        with self._ledger.transaction():
            if self._forgotten(rollout_id, person):
                return None
            serving = decisions.serving(person)
            if serving is None or serving.weight_version != version:
                before = rollout_id - 1 if person is None else decisions.last_batch(person)
                decisions.record(before, "start", version, "the weights of the first comparison", person=person)
                serving = decisions.serving(person)
        assert serving is not None
        return serving

    def _forgotten(self, rollout_id: int, person: str | None) -> bool:
        """Return whether somebody has forgotten the person of a batch, whose samples then are gone."""
        return person is not None and self._ledger.samples.person_of(rollout_id) != person

    def _with_earlier(self, evidence: Evidence, serving: DecisionRecord) -> Evidence:
        """Return the evidence with the scores of the last accepted versions but the serving one."""
        memory = self._bounds.gate_memory
        earlier = self._ledger.decisions.accepted_scores(memory, serving.person)
        newest = self._ledger.decisions.all(
            f"AND person IS ? AND kind IN {SERVING} ORDER BY number DESC LIMIT ?", (serving.person, memory)
        )
        names = {item.number: item.weight_version for item in newest}
        named = {names[number]: scores for number, scores in earlier.items() if number != serving.number}
        return replace(evidence, earlier=named)

    def _record(
        self,
        rollout_id: int,
        first_turn: int | None,
        policies: Policies,
        finding: Finding,
        decision: Decision,
        evidence: Evidence,
        serving: DecisionRecord,
        certificate: Certificate,
        flags: Sequence[str],
    ) -> bool:
        """Record a decision with its certificate, the flags that alone refused, and the probes' scores under both versions.

        Return False, with nothing recorded, if the person was forgotten meanwhile.
        """
        probes = [item for item in evidence.scored if item.liked is not None]
        with self._ledger.transaction():
            if self._forgotten(rollout_id, serving.person):
                return False
            self._ledger.decisions.record(
                rollout_id,
                "step" if decision.accepted else "refused",
                policies.candidate.version,
                decision.why,
                by_margin=finding.by_margin,
                metrics={**decision.metrics, **{f"{UNUSED}{flag}": 1.0 for flag in flags}},
                first_turn=first_turn,
                scores={probe.turn_id: probe.candidate for probe in probes} if decision.accepted else {},
                serving=(serving.number, {probe.turn_id: probe.serving for probe in probes}),
                certificate=certificate.to_dict() if certificate.lines else None,
                person=serving.person,
            )
        return True

    def _why(
        self, rollout_id: int, finding: Finding, policies: Policies, flags: Sequence[str], person: str | None
    ) -> str:
        """Return one line about a decision: what was found, and after a refusal what to type."""
        run_dir = self._args.run_dir
        version = f"{policies.candidate.version}{'' if person is None else f' of {person or WITHOUT_NAME}'}"
        if finding.accepted:
            if finding.too_few:
                _say_once(str(run_dir))
            return f"version {version} may serve: {finding.note}"
        line = f"version {version} is refused, version {policies.serving.version} keeps serving: "
        line += "; ".join(finding.refusals)
        if flags:
            return f"{line}; its samples are in quarantine, to train them with {', '.join(flags)} as before type: {gate_command('accept', run_dir)}"
        others = [
            refusal
            for refusal in self._ledger.decisions.refusals(person)
            if refusal.by_margin and refusal.rollout_id != rollout_id
        ]
        row = 1 + len(others)
        if finding.by_margin and row >= self._bounds.gate_offer:
            accept = gate_command("accept", run_dir, person)
            return f"{line}; this is refusal {row} of a series, and if users changed their mind, type: {accept}"
        return f"{line}; its samples are in quarantine, to see all versions type: {gate_command('versions', run_dir, person)}"


@cache
def _warn_once(flags: str, run_dir: str) -> None:
    logger.warning("%s: no step has read the flags %s so far; they may have no effect", run_dir, flags)


def _with_certificate(finding: Finding, certificate: Certificate) -> Finding:
    """Return a finding that a red certificate refuses, whatever opinions say; no change of opinions accepts it."""
    if not certificate.is_red:
        return finding
    causes = tuple(f"its certificate is red: {cause}" for cause in certificate.causes)
    return replace(finding, refusals=(*finding.refusals, *causes), by_margin=False)


@cache
def _say_once(run_dir: str) -> None:
    """Log that the users' opinions do not decide yet, once per run and process."""
    logger.warning(
        "the gate of %s has too few probes: until it has more, updates pass on its other checks alone. Probes are turns with a score, "
        "so where no judge scores (opd, oel, sdpo) only people's feedback makes them",
        run_dir,
    )
