"""Combine: the next state's sign for the whole reply, plus the hint's correction of each token.

    A[k] = w_rl * r + w_opd * clip(log pi_T(a[k] | s + hint) - log pi_old(a[k] | s), -C, C)

Guarantees: at most one sample per turn. It has the first term if r is +1 or -1, and the second term if there is a hint;
without both there is no sample. The sample's reward includes ``w_rl`` (``OPENCLAW_COMBINE_W_RL``). The trainer applies
``w_opd`` (``OPENCLAW_COMBINE_W_OPD``) through ``--use-opd --opd-kl-coef`` or `combine_loss`. ``C`` is ``--opd-clip``: one token
that the hint forbids otherwise outweighs the reward of a whole reply (measured, see benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groundwork.exceptions import ConfigError
from openclaw.config.method_config import MethodConfig, variable
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

DEFAULT_VOTES = 1


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of Combine."""

    name = "combine"
    rollout_function = "openclaw_combine_rollout.generate_rollout_openclaw_combine"
    fills = frozenset({"teacher_log_probs"})
    recommended = True
    guide_name = "combine"
    guide_keys = {
        "training.binary_weight": "OPENCLAW_COMBINE_W_RL",
        "training.opd_weight": "OPENCLAW_COMBINE_W_OPD",
    }

    w_rl: float = variable("OPENCLAW_COMBINE_W_RL", 1.0, "weight of the judge's score in Combine", minimum=0.0)
    w_opd: float = variable("OPENCLAW_COMBINE_W_OPD", 1.0, "weight of the distillation term in Combine", minimum=0.0)

    def launch_flags(self) -> Sequence[str]:
        """Return the flags for GRPO without normalisation, plus the teacher's term."""
        return (
            *("--advantage-estimator", "grpo", "--disable-rewards-normalization"),
            *("--use-opd", "--opd-kl-coef", str(self.w_opd), "--opd-clip", "0.5", "--eps-clip-high", "0.28"),
        )


class Combine:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-combine"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES
        if own.w_rl == own.w_opd == 0:
            raise ConfigError(
                "OPENCLAW_COMBINE_W_RL=0 and OPENCLAW_COMBINE_W_OPD=0 leave nothing to learn; set one above 0"
            )
        self._w_rl, self._distils = own.w_rl, own.w_opd > 0

    def judges(self) -> JudgePlan:
        """Return the judges of the terms with a weight, and the teacher."""
        return JudgePlan(
            prm_votes=self._votes if self._w_rl else 0,
            hint_votes=self._votes if self._distils else 0,
            needs_teacher=self._distils,
        )

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with the terms that the verdict supports."""
        score = verdict.score or 0
        teacher = verdict.teacher_log_probs if self._distils else None
        if self._w_rl * score == 0 and teacher is None:
            return SampleDecision(
                reason="no_teacher_log_probs" if verdict.hint and self._distils else "score_zero_no_hint"
            )
        metadata = {"hint": verdict.hint} if verdict.hint else {}
        sample = make_sample(turn, self._w_rl * score, score=score, teacher_log_probs=teacher, metadata=metadata)
        return SampleDecision([sample])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: every sample comes from a turn."""
        return []
