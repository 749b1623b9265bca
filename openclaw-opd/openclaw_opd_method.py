"""On-policy distillation: what the policy would have said, had it known the hint, is the target of each token.

    A[k] = log pi_T(a[k] | s + hint) - log pi_old(a[k] | s)

Guarantees: a turn is a sample when a hint was accepted and the teacher scored the reply under it; else it is none and
says why. The estimator is ``on_policy_distillation``, so that the reward of a sample has no part in its gradient. With
``--distill-topk`` the sample has the teacher's top K as well, for `topk_distillation_loss`.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

DEFAULT_VOTES = 1


class OnPolicyDistillation:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-opd"

    def __init__(self, config: RuntimeConfig) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES

    def judges(self) -> JudgePlan:
        """The hint judge, and the teacher."""
        return JudgePlan(hint_votes=self._votes, needs_teacher=True)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """One sample with teacher log-probabilities, none without a hint."""
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
        """Nothing: a session without a hint has no target."""
        return []
