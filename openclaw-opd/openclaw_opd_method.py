"""On-policy distillation: the target of each token is the policy's own distribution given the hint.

    A[k] = clip(log pi_T(a[k] | s + hint) - log pi_old(a[k] | s), -C, C)

Guarantees: a turn gives a sample if a hint was accepted and the teacher scored the reply under it; otherwise it gives a
reason. The estimator is ``on_policy_distillation``, so the reward does not affect the gradient. ``C`` is
``--opd-clip``. With ``--distill-topk`` the sample also has the teacher's top K, for `topk_distillation_loss`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

DEFAULT_VOTES = 1
ESTIMATOR = ("--advantage-estimator", "on_policy_distillation")
CLIP = ("--eps-clip-high", "0.28", "--opd-clip", "1.0")


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of on-policy distillation."""

    name = "opd"
    rollout_function = "openclaw_opd_rollout.generate_rollout_openclaw_opd"
    guide_name = "opd"
    trains_rewards = False
    defaults = {"PRM_M": DEFAULT_VOTES}
    # Measured, see log/tiny_demo.md#tiny-profile: KL keeps the tiny model's arithmetic while its style changes.
    profile_defaults = {"tiny_cpu": {"LEARNING_RATE": 1e-4, "KL_LOSS_COEF": 0.1, "BATCH_SIZE": 8}}

    def launch_flags(self) -> Sequence[str]:
        """Return the flags that make the teacher's log ratio the advantage of each token."""
        return (*ESTIMATOR, *CLIP)


@dataclass(frozen=True, kw_only=True)
class TopKConfig(Config):
    """The variant that matches the teacher's 50 most likely tokens at every position."""

    name = "opd_topk"
    guide_name = None
    defaults = {"PRM_M": 3, "LEARNING_RATE": 1e-6, "BATCH_SIZE": 4}
    profile_defaults = {}

    def launch_flags(self) -> Sequence[str]:
        """Return the flags for a custom loss instead of advantages."""
        return (
            *(*ESTIMATOR, "--disable-compute-advantages-and-returns"),
            *("--distill-topk", "50", "--loss-type", "custom_loss"),
            *("--custom-loss-function-path", "topk_distillation_loss.topk_distillation_loss_function"),
        )


class OnPolicyDistillation:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-opd"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES

    def judges(self) -> JudgePlan:
        """Return the hint judge and the teacher."""
        return JudgePlan(hint_votes=self._votes, needs_teacher=True)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with teacher log-probabilities, or none without a hint."""
        if verdict.hint is None:
            return SampleDecision(reason="no_hint")
        if verdict.teacher_log_probs is None:
            return SampleDecision(reason="no_teacher_log_probs")
        sample = make_sample(
            *(turn, 0.0),
            score=None,
            teacher_log_probs=verdict.teacher_log_probs,
            teacher_topk=verdict.teacher_topk,
            metadata={"hint": verdict.hint},
        )
        return SampleDecision([sample])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: a session without a hint has no target."""
        return []
