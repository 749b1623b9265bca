"""A canned turn and the verdicts that a plan's judges can give on it.

Guarantees: nothing here is sampled, so two checks see the same. The turn passes `openclaw.judge.hygiene`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from openclaw.ledger.records import TopK, Turn, Verdict, VersionSpan, Vote
from openclaw.method.interface import JudgePlan

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
