"""Checks a method on canned turns: no engine, no ledger, no GPU.

Guarantees: every broken clause is found in one pass, once, with what was seen. A clause that cannot be tried because an
earlier one is broken is left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method.canned import canned_turn, canned_verdicts, other_turns
from openclaw.method.interface import JudgePlan, SampleDecision, SessionPlan
from openclaw.method.loading import missing_parts, raised
from slime.exceptions import SampleError
from slime.utils.types import Sample

CLAUSES = {
    "method-1": "has a name, judges(), samples(turn, verdict) and session_samples(judged)",
    "method-2": "returns a JudgePlan from judges()",
    "method-3": "handles every verdict that its judges can give, and every kind of turn: samples() raises no exception",
    "method-4": "returns a SampleDecision from samples(): a list of samples, or the reason for none",
    "method-5": "gives samples with the turn's own tokens, per-token lists as long as the reply, and a finite reward",
    "method-6": "decides the same about the same turn and verdict, and changes neither",
    "method-7": "returns from session_samples() a list of pairs: the id of one of the turns, and a sample",
    "method-8": "returns from teacher_context() a list of messages, or None; ValueError also means none",
    "method-9": "gives a sample for at least one verdict",
    "method-10": "returns from session.questions() a list of prompts, each a list of messages, for every kind of turns",
}


@dataclass(frozen=True)
class Broken:
    """A clause that a method breaks, and what the check saw."""

    clause: str
    seen: str

    def __str__(self) -> str:
        return f"clause {self.clause}: a method {CLAUSES[self.clause]}; {self.seen}"


class MethodCheck:
    """One pass over a method; `broken` has the first violation of each clause."""

    def __init__(self, method: object) -> None:
        """Create the check of ``method``, which may lack parts."""
        self._method: Any = method
        self._broken: dict[str, Broken] = {}
        self._gave_sample = False

    @property
    def broken(self) -> list[Broken]:
        """The broken clauses, in their order."""
        return [self._broken[clause] for clause in CLAUSES if clause in self._broken]

    def run(self, temperature: float) -> list[Broken]:
        """Call the method as the judge worker does, on a turn sampled at ``temperature``; return `broken`."""
        if missing := missing_parts(self._method):
            self._report("method-1", "; ".join(missing))
        plan = self._check_plan() if self._has("judges") else None
        turn = canned_turn(temperature, plan.student_topk if plan else 0)
        judged: list[JudgedTurn] = []
        # Without a plan nobody knows which verdicts it gets, so it gets those of all judges.
        verdicts = list(canned_verdicts(plan or JudgePlan(prm_votes=1, hint_votes=1, needs_teacher=True)))
        for name, verdict in verdicts:
            self._check_context(plan, turn, verdict, name)
            decision = self._check_decision(turn, verdict, name) if self._has("samples") else None
            reason = decision.reason if decision is not None else None
            number = len(judged)
            own = replace(turn, id=f"{turn.id}-{number}", index=number, state="judged", reason=reason)
            judged.append(JudgedTurn(own, verdict))
        if self._has("samples") and "method-3" not in self._broken:
            for named, other in other_turns(turn):
                for name, verdict in verdicts:
                    self._check_decision(other, verdict, f"{name}, and {named},")
        if self._has("session_samples"):
            self._check_session(judged)
            self._check_session([item for item in judged if item.turn.reason is not None])
        if plan is not None and plan.session is not None:
            self._check_questions(plan.session, turn)
        if not self._gave_sample and not self._broken:
            self._report("method-9", f"it gave reasons only: {', '.join(sorted({str(j.turn.reason) for j in judged}))}")
        return self.broken

    def _has(self, part: str) -> bool:
        return callable(getattr(self._method, part, None))

    def _check_plan(self) -> JudgePlan | None:
        failed, judges = self._call("method-2", self._method.judges, "judges()")
        if failed or isinstance(judges, JudgePlan):
            return judges
        self._report("method-2", f"judges() returned {judges!r:.80}")
        return None

    def _report(self, clause: str, seen: str) -> None:
        self._broken.setdefault(clause, Broken(clause, seen))

    def _call(self, clause: str, function: Callable[..., Any], shown: str, *arguments: Any) -> tuple[bool, Any]:
        """Return whether ``function`` raised, which breaks ``clause``, and what it returned."""
        try:
            return False, function(*arguments)
        except Exception as error:  # noqa: BLE001 - a broken clause, which is reported
            self._report(clause, f"{shown} raised {raised(error)}")
            return True, None

    def _check_context(self, plan: JudgePlan | None, turn: Turn, verdict: Verdict, name: str) -> None:
        if plan is None or plan.teacher_context is None:
            return
        try:
            messages = plan.teacher_context(turn, verdict)
        except ValueError:
            return
        except Exception as error:  # noqa: BLE001 - a broken clause, which is reported
            self._report("method-8", f"for {name} it raised {raised(error)}")
            return
        if messages is not None and not _are_messages(messages):
            self._report("method-8", f"for {name} it returned {messages!r:.80}")

    def _check_questions(self, session: SessionPlan, turn: Turn) -> None:
        others = other_turns(turn)
        sessions = {"one turn": [turn], **{f"two turns, and {named}": [turn, other] for named, other in others}}
        for named, turns in sessions.items():
            shown = f"for a session of {named}, it"
            failed, prompts = self._call("method-10", session.questions, shown, turns)
            wrong = not failed and not (
                isinstance(prompts, list) and all(map(_are_messages, cast("list[Any]", prompts)))
            )
            if wrong:
                self._report("method-10", f"{shown} returned {prompts!r:.80}")

    def _check_decision(self, turn: Turn, verdict: Verdict, name: str) -> SampleDecision | None:
        """Call `samples` twice; return the first decision."""
        before = copy.deepcopy((turn, verdict))
        shown = f"for {name} samples()"
        failed, decision = self._call("method-3", self._method.samples, shown, turn, verdict)
        if failed:
            return None
        if not isinstance(decision, SampleDecision):
            self._report("method-4", f"{shown} returned {decision!r:.80}")
            return None
        for sample in decision.samples:
            self._gave_sample = True
            for wrong in misfits(sample, turn):
                self._report("method-5", f"for {name} {wrong}")
        if (turn, verdict) != before:
            self._report("method-6", f"{shown} changed the turn or the verdict")
        failed, again = self._call("method-3", self._method.samples, shown, *copy.deepcopy(before))
        if not failed and (not isinstance(again, SampleDecision) or _contents(again) != _contents(decision)):
            self._report("method-6", f"{shown} returned another decision when it was called again")
        return decision

    def _check_session(self, judged: Sequence[JudgedTurn]) -> None:
        turns = {item.turn.id: item.turn for item in judged}
        shown = f"for a session of {len(judged)} turns it"
        failed, pairs = self._call("method-7", self._method.session_samples, shown, judged)
        if failed:
            return
        if not isinstance(pairs, list):
            self._report("method-7", f"{shown} returned {pairs!r:.80}")
            return
        for pair in cast("list[Any]", pairs):
            if not (isinstance(pair, tuple) and len(pair) == 2 and pair[0] in turns):
                self._report("method-7", f"{shown} returned the entry {pair!r:.80}")
                continue
            self._gave_sample = True
            for wrong in misfits(pair[1], turns[pair[0]]):
                self._report("method-5", f"{shown} gave a sample: {wrong}")


def misfits(sample: object, turn: Turn) -> Iterator[str]:
    """Yield what keeps ``sample`` from training ``turn``."""
    if not isinstance(sample, Sample):
        yield f"a sample is {sample!r:.80}; return what make_sample() of openclaw.training.samples returns"
        return
    tokens = [*turn.prompt_ids, *turn.response_ids]
    if sample.tokens != tokens:
        yield f"a sample has {len(sample.tokens)} tokens that are not the turn's {len(tokens)}; use make_sample()"
    try:
        sample.validate()
    except SampleError as error:
        yield str(error)
    reward = sample.reward
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        yield f"a sample has the reward {reward!r}"


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, Sequence) and all(isinstance(item, dict) and "role" in item for item in value) and bool(value)
    )


def _contents(decision: SampleDecision) -> tuple[list[Any], str | None]:
    return [sample.to_dict() if isinstance(sample, Sample) else sample for sample in decision.samples], decision.reason
