"""A judged turn as a training sample.

Guarantees: the sample has exactly the turn's ids and log-probabilities; every response token is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw.ledger.records import SCORED, TopK, Turn
from openclaw.messages.text import response_text
from slime.utils.types import Sample


def make_sample(
    turn: Turn,
    reward: float,
    *,
    score: int | None = None,
    teacher_log_probs: Sequence[float] | None = None,
    teacher_topk: TopK | None = None,
    rollout_topk: TopK | None = None,
    metadata: dict[str, Any] | None = None,
) -> Sample:
    """Return the sample that trains all response tokens of ``turn`` with ``reward``.

    Args:
        turn: the judged turn.
        reward: the number that becomes the advantage of each token (Binary RL) or its first term (Combine).
        score: the PRM's verdict, logged as raw reward; None if the PRM was not asked.
        teacher_log_probs: one per response token, or None for a sample without a distillation term.
        teacher_topk: tokens at each position with the teacher's log-probabilities, for a top-K loss.
        rollout_topk: the same tokens with the log-probabilities of the policy that sampled the reply.
        metadata: further data of the method.

    Raises:
        ValueError: ``teacher_topk`` and ``rollout_topk`` are about different tokens.
    """
    if rollout_topk is not None and (teacher_topk is None or teacher_topk.ids != rollout_topk.ids):
        raise ValueError(f"turn {turn.id}: the teacher scored other tokens than the policy's own top K")
    return Sample(
        prompt=turn.messages,
        tokens=[*turn.prompt_ids, *turn.response_ids],
        response=response_text(turn.response_message),
        response_length=len(turn.response_ids),
        reward=float(reward),
        loss_mask=[1] * len(turn.response_ids),
        weight_versions=list(dict.fromkeys(span.version for span in turn.weight_versions)),
        weight_spans=[[span.version, span.start, span.end] for span in turn.weight_versions],
        rollout_log_probs=list(turn.response_logprobs),
        teacher_log_probs=None if teacher_log_probs is None else list(teacher_log_probs),
        teacher_topk_log_probs=None if teacher_topk is None else teacher_topk.log_probs,
        teacher_topk_indices=None if teacher_topk is None else teacher_topk.ids,
        rollout_topk_log_probs=None if rollout_topk is None else rollout_topk.log_probs,
        session_id=turn.session_id,
        status=Sample.Status.TRUNCATED if turn.finish_reason == "length" else Sample.Status.COMPLETED,
        metadata={
            "turn_index": turn.index,
            "next_state_at": turn.next_state_at,
            "raw_reward": float(score or 0),
            **({SCORED: True} if turn.scored else {}),
            **(metadata or {}),
        },
    )
