"""SDPO on raw follow-ups: the target of each token is the policy's own distribution given what the user says next.

    A[k] = clip(log pi(a[k] | s + follow-up) - log pi_old(a[k] | s), -C, C)

Source: Aligning Language Models from User Interactions, arXiv 2603.12273. Guarantees: no judge is asked. A turn gives a
sample if a user spoke after it and the policy scored the reply under these words; otherwise it gives a reason. So does a turn
whose reply becomes unlikely as a whole, because its follow-up asks for something else, and one in which no token changes
much, because its follow-up says nothing new: an optimizer that scales its steps would make a whole step of the rest.
The estimator is ``on_policy_distillation``, so the reward does not affect the gradient. ``C`` is ``--opd-clip``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from groundwork.chat_messages import Message
from openclaw.config.method_config import MethodConfig, Reason, variable
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.messages.classify import user_words
from openclaw.messages.text import clip_middle
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

HEADING = "\n\n[what the user says next]\n"
MAX_CHARACTERS = 4000
"""A longer follow-up keeps its two ends, so that the teacher's prompt fits where the turn's fits."""
ESTIMATOR = ("--advantage-estimator", "on_policy_distillation", "--eps-clip-high", "0.28", "--opd-clip", "1.0")


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of SDPO."""

    name = "sdpo"
    rollout_function = "openclaw_sdpo_rollout.generate_rollout_openclaw_sdpo"
    asks_judge = False
    trains_rewards = False
    reasons = {
        "no_follow_up": Reason(
            "No user spoke after the reply.",
            "Keep one session id per conversation (header X-Session-Id), or send the earlier messages with each request.",
        ),
        "other_request": Reason("The user went on to something else."),
        "nothing_new": Reason("What the user said changes nothing about the reply."),
    }
    # The GPUs that other methods give to the judge serve the policy, which is also the teacher.
    defaults = {"ROLLOUT_GPUS": "4"}
    profile_defaults = {
        "gpu4_lora": {"ROLLOUT_GPUS": "2"},
        # Measured, see README.md: a tiny model takes a next question for the one to answer, which costs 0.2 or more.
        "tiny_cpu": {"LEARNING_RATE": 1e-4, "KL_LOSS_COEF": 0.1, "BATCH_SIZE": 8, "OPENCLAW_SDPO_MOST_SURPRISE": 0.15},
    }

    most_surprise: float = variable(
        "OPENCLAW_SDPO_MOST_SURPRISE",
        1.0,
        "a reply that its follow-up makes less likely by more than this, in nats per token, is not trained",
        above=0.0,
    )
    least_change: float = variable(
        "OPENCLAW_SDPO_LEAST_CHANGE",
        0.5,
        "a reply none of whose tokens its follow-up makes less or more likely by this many nats is not trained",
        minimum=0.0,
    )

    def launch_flags(self) -> Sequence[str]:
        """Return the flags that make the bounded log ratio the advantage of each token."""
        return ESTIMATOR


def follow_up(turn: Turn) -> str | None:
    """Return what the user said after a reply, without the client's additions; None if nobody spoke.

    A tool's result is not a follow-up. Neither is a regenerated reply, after which the user said nothing.
    """
    heard = [] if turn.signal == "regenerated" else turn.next_state or []
    words = [user_words(message).strip() for message in heard if message.get("role") == "user"]
    return clip_middle("\n\n".join(filter(None, words)), MAX_CHARACTERS) or None


def in_hindsight(turn: Turn, verdict: Verdict) -> list[Message] | None:
    """Return the request with the follow-up at the end of its last user message, or None without a follow-up.

    Raises:
        ValueError: if the request has no user message.
    """
    words = follow_up(turn)
    if words is None:
        return None
    last = max((at for at, message in enumerate(turn.messages) if message.get("role") == "user"), default=None)
    if last is None:
        raise ValueError("no user message to carry the follow-up")
    asked = turn.messages[last]
    content = asked.get("content") or ""
    added = (
        [*content, {"type": "text", "text": HEADING + words}]
        if isinstance(content, list)
        else content + HEADING + words
    )
    return [*turn.messages[:last], {**asked, "content": added}, *turn.messages[last + 1 :]]


class SelfDistillation:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-sdpo"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._own = own

    def judges(self) -> JudgePlan:
        """Return the teacher alone."""
        return JudgePlan(needs_teacher=True, teacher_context=in_hindsight)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with teacher log-probabilities, or none without a follow-up."""
        if verdict.teacher_log_probs is None:
            return SampleDecision(reason="no_teacher_log_probs" if follow_up(turn) else "no_follow_up")
        changes = [t - old for t, old in zip(verdict.teacher_log_probs, turn.response_logprobs, strict=True)]
        if -math.fsum(changes) / len(changes) > self._own.most_surprise:
            return SampleDecision(reason="other_request")
        if max(map(abs, changes)) < self._own.least_change:
            return SampleDecision(reason="nothing_new")
        sample = make_sample(
            turn,
            0.0,
            score=None,
            teacher_log_probs=verdict.teacher_log_probs,
            teacher_topk=verdict.teacher_topk,
        )
        return SampleDecision([sample])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: every sample comes from a turn."""
        return []
