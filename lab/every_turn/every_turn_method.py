"""On-policy distillation of every turn: the target of each token is another model's distribution, given the turn itself.

    A[k] = clip(log pi_T(a[k] | s) - log pi_old(a[k] | s), -C, C)

Guarantees: no judge is asked and no hint is read, so all that a run learns comes from the teacher that `OPENCLAW_TEACHER_URL`
names. A turn gives a sample if the teacher scored it. ``C`` is ``--opd-clip``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration."""

    name = "every_turn"
    rollout_function = "every_turn_rollout.generate_rollout_every_turn"
    trains_rewards = False
    asks_judge = False
    # Those of openclaw-opd.
    profile_defaults = {"tiny_cpu": {"LEARNING_RATE": 1e-4, "KL_LOSS_COEF": 0.1, "BATCH_SIZE": 8}}

    def launch_flags(self) -> Sequence[str]:
        """Return the flags of on-policy distillation."""
        return ("--advantage-estimator", "on_policy_distillation", "--eps-clip-high", "0.28", "--opd-clip", "1.0")


def of_the_turn(turn: Turn, verdict: Verdict) -> list[Message]:
    """Return what the teacher reads: the request as the policy read it."""
    return list(turn.messages)


class EveryTurn:
    """A `Method`."""

    name = "every-turn"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        if not config.teacher_url:
            raise ConfigError(
                "every_turn learns from another model only; set OPENCLAW_TEACHER_URL, see instructions/teachers.md"
            )

    def judges(self) -> JudgePlan:
        """Return the teacher, and no judge."""
        return JudgePlan(needs_teacher=True, teacher_context=of_the_turn)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with teacher log-probabilities."""
        if verdict.teacher_log_probs is None:
            return SampleDecision(reason="no_teacher_log_probs")
        return SampleDecision([make_sample(turn, 0.0, score=None, teacher_log_probs=verdict.teacher_log_probs)])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: every sample comes from a turn."""
        return []
