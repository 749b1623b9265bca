"""Personal learning: lessons act at once, practice moves them into adapters, rewards train what was said without them.

    practised reply:  KL(pi || q), on the 50 most likely tokens of each position; q is the base model that reads the lessons
                      and means them a little more (`openclaw.practice.plan.emphasised`)
    turn:             A[k] = r,  r in {+1, -1} by majority of the PRM's votes

Guarantees: a judged turn whose prompt had no lesson gives a sample if r is +1 or -1. The samples of practice are the runtime's
(`openclaw.practice`), not the method's. The loss is `slime.algorithms.losses.practice.practice_loss`: a sample adds one of the two
terms, never both.
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

DEFAULT_VOTES = 3
SCORE_ZERO = "score_zero"
LOSS = "slime.algorithms.losses.practice.practice_loss"
TOPK = 50


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of personal learning."""

    name = "personal"
    rollout_function = "openclaw_personal_rollout.generate_rollout_openclaw_personal"
    fills = frozenset({"teacher_topk_log_probs"})
    defaults = {
        "PRM_M": DEFAULT_VOTES,
        "USE_LORA": True,
        "LEARNING_RATE": 1e-5,
        "OPENCLAW_LESSONS": "auto",
        "OPENCLAW_PRACTICE": "liked",
        "OPENCLAW_PACE": "session",
    }
    # With LoRA the launcher takes ten times the rate. Measured, see log/practice.md#practice-live.
    profile_defaults = {"tiny_cpu": {"LEARNING_RATE": 5e-4, "KL_LOSS_COEF": 0.2, "BATCH_SIZE": 16}}

    def launch_flags(self) -> Sequence[str]:
        """Return the flags for rewards as advantages, and for the loss that distils practised replies."""
        return (
            *super().launch_flags(),
            *("--distill-topk", str(TOPK), "--loss-type", "custom_loss", "--custom-loss-function-path", LOSS),
        )


class Personal:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-personal"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES

    def judges(self) -> JudgePlan:
        """Return the PRM alone; lessons ask the judge for themselves."""
        return JudgePlan(prm_votes=self._votes)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with reward +1 or -1, or none for 0."""
        if verdict.score:
            return SampleDecision([make_sample(turn, verdict.score, score=verdict.score)])
        return SampleDecision(reason=SCORE_ZERO)

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: every sample comes from a turn, or from practice."""
        return []
