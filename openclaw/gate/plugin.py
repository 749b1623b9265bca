"""``--before-push-path openclaw.gate.plugin.decide``: asks both versions of the policy, decides, and records why.

Guarantees: the decision is in the ledger, with the scores of the probes, before the trainer acts on it. If a person
accepts a change while the versions answer, the decision is made again. Any error ends the run, because nobody knows then
whether the update may serve. Without probes and tasks an update passes, which is counted and said once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.canary import try_first
from openclaw.gate.decision import Evidence, Finding, decide_on
from openclaw.gate.questions import ask_about
from openclaw.ledger.decisions import SERVING, DecisionRecord
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import gate_command, ledger_path
from openclaw.training.rollout import until_available, uses_ledger
from slime.args import Arguments
from slime.rollout.before_push import Decision, Policies

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
        ledger, bounds = self._ledger, self._bounds
        first_turn = patiently(lambda: ledger.decisions.middle_turn(rollout_id))
        while True:
            window = patiently(lambda: ledger.decisions.probe_window(first_turn))
            questions = patiently(partial(ask_about, self._args, ledger, window, rollout_id, bounds))
            answers = [policy.ask(questions.probes) if questions.probes else [] for policy in policies]
            evidence = questions.evidence(*answers)
            serving = patiently(lambda: self._serving(rollout_id, policies.serving.version))
            evidence = patiently(partial(self._with_earlier, evidence, serving))
            finding = decide_on(evidence, bounds)
            if patiently(lambda: ledger.decisions.probe_window(first_turn)) == window:
                break
            logger.info("rollout %d: a change was accepted meanwhile; both versions are compared again", rollout_id)
        if finding.accepted and self._args.canary_engine:
            trial = try_first(self._args, ledger, policies, (questions, answers[1]), bounds, patiently)
            finding = replace(finding, refusals=trial.refusals, metrics=finding.metrics | trial.metrics)
        why = patiently(lambda: self._why(rollout_id, finding, policies))
        metrics = {**finding.metrics, "gate/seconds": time.monotonic() - started}
        decision = Decision(finding.accepted, why, metrics)
        patiently(lambda: self._record(rollout_id, first_turn, policies, finding, decision, evidence, serving.number))
        return decision

    def _serving(self, rollout_id: int, version: str) -> DecisionRecord:
        """Return the decision that let the serving version serve; record a start if there is none."""
        serving = self._ledger.decisions.serving()
        if serving is None or serving.weight_version != version:
            self._ledger.decisions.record(rollout_id - 1, "start", version, "the weights of the first comparison")
            serving = self._ledger.decisions.serving()
        assert serving is not None
        return serving

    def _with_earlier(self, evidence: Evidence, serving: DecisionRecord) -> Evidence:
        """Return the evidence with the scores of the last accepted versions but the serving one."""
        memory = self._bounds.gate_memory
        earlier = self._ledger.decisions.accepted_scores(memory)
        newest = self._ledger.decisions.all(f"AND kind IN {SERVING} ORDER BY number DESC LIMIT ?", (memory,))
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
        serving: int,
    ) -> None:
        """Record a decision with the scores of the probes under both versions."""
        probes = [item for item in evidence.scored if item.liked is not None]
        self._ledger.decisions.record(
            rollout_id,
            "step" if decision.accepted else "refused",
            policies.candidate.version,
            decision.why,
            by_margin=finding.by_margin,
            metrics=decision.metrics,
            first_turn=first_turn,
            scores={probe.turn_id: probe.candidate for probe in probes} if decision.accepted else {},
            serving=(serving, {probe.turn_id: probe.serving for probe in probes}),
        )

    def _why(self, rollout_id: int, finding: Finding, policies: Policies) -> str:
        """Return one line about a decision: what was found, and after a refusal what to type."""
        version, run_dir = policies.candidate.version, self._args.run_dir
        if finding.accepted:
            if finding.too_few:
                _say_once(str(run_dir))
            return f"version {version} may serve: {finding.note}"
        line = f"version {version} is refused, version {policies.serving.version} keeps serving: "
        line += "; ".join(finding.refusals)
        others = [
            refusal
            for refusal in self._ledger.decisions.refusals()
            if refusal.by_margin and refusal.rollout_id != rollout_id
        ]
        row = 1 + len(others)
        if finding.by_margin and row >= self._bounds.gate_offer:
            accept = gate_command("accept", run_dir)
            return f"{line}; this is refusal {row} of a series, and if users changed their mind, type: {accept}"
        return f"{line}; its samples are in quarantine, to see all versions type: {gate_command('versions', run_dir)}"


@cache
def _say_once(run_dir: str) -> None:
    """Log that the users' opinions do not decide yet, once per run and process."""
    logger.warning(
        "the gate of %s has too few probes: until it has more, updates pass on its other checks alone. Probes are turns with a score, "
        "so where no judge scores (opd, oel, sdpo) only people's feedback makes them",
        run_dir,
    )
