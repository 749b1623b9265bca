"""Checks a method on canned turns: no engine, no ledger, no GPU.

Guarantees: every broken clause is found in one pass, once, with what was seen. A clause that cannot be tried because an
earlier one is broken is left out.

The canned turn passes `openclaw.judge.hygiene`, and gets each verdict that a plan's judges can give. Nothing is sampled, so two
checks see the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from openclaw.ledger.records import JudgedTurn, TopK, Turn, Verdict, VersionSpan, Vote
from openclaw.method.interface import JudgePlan, SampleDecision, SessionPlan
from openclaw.method.loading import missing_parts, raised
from slime.exceptions import SampleError
from slime.utils.types import Sample

HINT = "Answer in one sentence, without bold type."
RESPONSE_LOGPROBS = (-0.25, -1.5, -0.03125, -2.0, -0.5, -0.125, -3.0, -0.0625)


def canned_topk(count: int, difference: float = 0.0) -> TopK:
    """Return the policy's ``count`` likeliest tokens at each position of the canned reply, or a teacher's numbers of them."""
    first = len(RESPONSE_LOGPROBS)
    values = [[-0.5 * (n + 1) - difference for n in range(count)] for _ in RESPONSE_LOGPROBS]
    return TopK(values, [[21 + position + n for n in range(count)] for position in range(first)])


def canned_turn(temperature: float, topk: int = 0) -> Turn:
    """Return a pending reply of eight tokens, followed by a user's message; ``topk`` as in `JudgePlan.student_topk`."""
    length = len(RESPONSE_LOGPROBS)
    return Turn(
        id="canned-turn",
        session_id="canned-session",
        index=0,
        kind="main",
        created_at=100.0,
        finished_at=101.0,
        messages=[{"role": "user", "content": "What is 2 + 3?"}],
        prompt_ids=[11, 12, 13, 14, 15, 16],
        response_ids=[*range(21, 21 + length)],
        response_logprobs=[*RESPONSE_LOGPROBS],
        finish_reason="stop",
        response_message={"role": "assistant", "content": "The sum is **5**."},
        temperature=temperature,
        top_p=1.0,
        weight_versions=[VersionSpan("1", 0, length)],
        state="pending",
        next_state=[{"role": "user", "content": "No bold please, write it again."}],
        next_state_at=102.0,
        response_topk=canned_topk(topk) if topk else None,
    )


def other_turns(turn: Turn) -> Iterator[tuple[str, Turn]]:
    """Yield variants of `canned_turn` as they come in a live run, each with its name: other reactions and another reply."""
    reactions = {
        "thanks": {"role": "user", "content": "Thanks!"},
        "an empty message": {"role": "user", "content": ""},
        "a message in parts": {"role": "user", "content": [{"type": "text", "text": "Too long."}]},
        "a tool's result": {"role": "tool", "tool_call_id": "call-1", "content": "Error: no such file"},
    }
    for name, message in reactions.items():
        yield f"{name} as the next state", replace(turn, next_state=[message])
    yield "a thumb without words", replace(turn, next_state=[], signal="feedback")
    call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    yield "a tool call as the reply", replace(turn, response_message=reply, finish_reason="tool_calls")


def canned_verdicts(plan: JudgePlan) -> Iterator[tuple[str, Verdict]]:
    """Yield each verdict that the judges of ``plan`` can give on `canned_turn`, with its name.

    A person's feedback can state a score although the plan has no votes on it, so that verdict is among them.
    """
    teacher = tuple(value / 2 for value in RESPONSE_LOGPROBS)
    hints: list[tuple[str, str | None, tuple[float, ...] | None]] = [("no hint", None, None)]
    if plan.hint_votes:
        hints.append(("a hint", HINT, None))
    if plan.needs_teacher:
        hints.append(("a hint and a teacher", HINT, teacher) if plan.hint_votes else ("a teacher", None, teacher))
    for score in (1, -1, 0) if plan.prm_votes else (None, 1):
        for named, hint, log_probs in hints:
            votes = [Vote("prm", f"\\boxed{{{score}}}", score)] * plan.prm_votes
            votes += [Vote("hint", HINT, 1 if hint else -1, hint)] * plan.hint_votes
            name = f"the verdict score {'none' if score is None else f'{score:+d}'}, {named}"
            yield (
                name,
                Verdict(
                    score=score,
                    hint=hint,
                    votes=tuple(votes),
                    teacher_log_probs=None if plan.student_topk else log_probs,
                    teacher_topk=canned_topk(plan.student_topk, 0.25) if plan.student_topk and log_probs else None,
                    teacher_versions=("1",) if log_probs else (),
                    score_source="judge" if plan.prm_votes or score is None else "feedback",
                ),
            )


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
