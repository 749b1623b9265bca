"""Binary RL: the next state's sign is the advantage of every token of the reply.

    A[k] = r,  r in {+1, -1} by majority of the PRM's votes

Guarantees: each judged turn with r = +1 or -1 gives a sample. A turn with r = 0, or without a score, gives none, and
neither does a session without any score: an optimizer that scales its steps, such as AdamW, moves the weights as far for
a small reward as for a large one.
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


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    """The launcher's declaration of Binary RL."""

    name = "rl"
    rollout_function = "openclaw_rollout.generate_rollout_openclaw"
    fills = frozenset()
    guide_name = "binary"
    defaults = {"PRM_M": DEFAULT_VOTES}


class BinaryRL:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-rl"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES

    def judges(self) -> JudgePlan:
        """Return the PRM alone."""
        return JudgePlan(prm_votes=self._votes)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with reward +1 or -1, or none for 0."""
        if not verdict.score:
            return SampleDecision(reason="score_zero")
        return SampleDecision([make_sample(turn, verdict.score, score=verdict.score)])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return nothing: every sample comes from a turn."""
        return []
