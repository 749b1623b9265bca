"""Binary RL: the next state's sign is the advantage of every token of the reply.

    A[k] = r,  r in {+1, -1} by majority of the PRM's votes

Guarantees: each judged turn with r = +1 or -1 gives a sample. A turn with r = 0 has no gradient and gives none. But a
session that ends with only zeros contributes its last judged turn with A[k] = w, a small positive behaviour-cloning
weight (``OPENCLAW_RL_SESSION_WEIGHT``, 0 turns it off). A whole conversation without a correction is weak evidence for
its replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.config.method_config import MethodConfig, variable
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

DEFAULT_VOTES = 3
SCORE_ZERO = "score_zero"


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of Binary RL."""

    name = "rl"
    rollout_function = "openclaw_rollout.generate_rollout_openclaw"
    keeps_topk = False
    guide_name = "binary"
    defaults = {"PRM_M": DEFAULT_VOTES}

    session_weight: float = variable(
        "OPENCLAW_RL_SESSION_WEIGHT",
        0.1,
        "Binary RL: advantage of the one turn that a session without any score contributes; 0: none",
        minimum=0.0,
    )


class BinaryRL:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-rl"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES
        self._session_weight = own.session_weight

    def judges(self) -> JudgePlan:
        """Return the PRM alone."""
        return JudgePlan(prm_votes=self._votes)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with reward +1 or -1, or none for 0."""
        if not verdict.score:
            return SampleDecision(reason=SCORE_ZERO)
        return SampleDecision([make_sample(turn, verdict.score, score=verdict.score)])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return the last turn with score 0 of a session without samples."""
        zeros = [item.turn for item in judged if item.turn.reason == SCORE_ZERO]
        contributed = any(item.turn.reason is None for item in judged)
        if contributed or not zeros or self._session_weight == 0:
            return []
        turn = zeros[-1]
        return [(turn.id, make_sample(turn, self._session_weight, score=0, metadata={"session_weight": True}))]
