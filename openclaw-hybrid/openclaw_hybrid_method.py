"""Hybrid: the next state's sign for the whole reply, plus distillation on the policy's own K likeliest tokens.

    L = w_rl * L_GRPO(r) + w_opd * L_OPD

``L_OPD`` and its formula are in `slime.algorithms.losses.hybrid_distillation` (OpenClaw-RL, arXiv 2603.10165v2).

Guarantees: at most one sample per turn. It has the first term if r is +1 or -1, and the second if a hint was accepted and the
teacher scored the policy's top K under it; without both there is no sample. The sample's reward includes ``w_rl``
(``OPENCLAW_HYBRID_W_RL``). The loss applies ``w_opd`` (``OPENCLAW_HYBRID_W_OPD``) through ``--opd-kl-coef``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from groundwork.exceptions import ConfigError
from openclaw.config.method_config import MethodConfig, variable
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

DEFAULT_VOTES = 3
LOSS = "slime.algorithms.losses.hybrid_distillation.hybrid_loss"
# Of the teacher's likeliest tokens at a position; with fewer, more positions need a request of their own.
TEACHER_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of Hybrid."""

    name = "hybrid"
    rollout_function = "openclaw_hybrid_rollout.generate_rollout_openclaw_hybrid"
    fills = frozenset({"rollout_topk_log_probs"})
    defaults = {"PRM_M": DEFAULT_VOTES}

    w_rl: float = variable("OPENCLAW_HYBRID_W_RL", 1.0, "weight of the judge's score in Hybrid", minimum=0.0)
    w_opd: float = variable("OPENCLAW_HYBRID_W_OPD", 1.0, "weight of the distillation term in Hybrid", minimum=0.0)
    topk: int = variable(
        "OPENCLAW_HYBRID_TOPK",
        4,
        "the policy's likeliest tokens per position that Hybrid distils",
        minimum=1,
        maximum=TEACHER_ROWS,
    )
    hint_choice: Literal["sequence_optimal", "token_optimal", "shortest"] = variable(
        "OPENCLAW_HYBRID_HINT_CHOICE",
        "sequence_optimal",
        "which of up to three hints the teacher reads: by overlap over the reply, by overlap per token, or the shortest",
    )

    def launch_flags(self) -> Sequence[str]:
        """Return the flags for GRPO without normalisation, and for the loss with its bound of 1 on a log ratio."""
        return (
            *("--advantage-estimator", "grpo", "--disable-rewards-normalization", "--eps-clip-high", "0.28"),
            *("--loss-type", "custom_loss", "--custom-loss-function-path", LOSS),
            *("--distill-topk", str(TEACHER_ROWS), "--opd-kl-coef", str(self.w_opd), "--opd-clip", "1.0"),
        )


class Hybrid:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-hybrid"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        if own.w_rl == own.w_opd == 0:
            raise ConfigError(
                "OPENCLAW_HYBRID_W_RL=0 and OPENCLAW_HYBRID_W_OPD=0 leave nothing to learn; set one above 0"
            )
        votes, distils = config.prm_m or DEFAULT_VOTES, own.w_opd > 0
        self._w_rl, self._distils = own.w_rl, distils
        self._plan = JudgePlan(
            prm_votes=votes if own.w_rl else 0,
            hint_votes=votes if distils else 0,
            needs_teacher=distils,
            student_topk=own.topk if distils else 0,
            hint_choice=own.hint_choice,
        )

    def judges(self) -> JudgePlan:
        """Return the judges of the terms with a weight, and the teacher of the policy's top K."""
        return self._plan

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with the terms that the verdict supports."""
        score = verdict.score or 0
        teacher = verdict.teacher_topk if self._distils else None
        if self._w_rl * score == 0 and teacher is None:
            return SampleDecision(reason="no_teacher_topk" if verdict.hint and self._distils else "score_zero_no_hint")
        sample = make_sample(
            *(turn, self._w_rl * score),
            score=score,
            teacher_topk=teacher,
            rollout_topk=None if teacher is None else turn.response_topk,
            metadata={"hint": verdict.hint} if verdict.hint else {},
        )
        return SampleDecision([sample])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: every sample comes from a turn."""
        return []
