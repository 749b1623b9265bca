"""Binary RL: the next state's sign is the advantage of every token of the reply.

    A[k] = r,  r in {+1, -1} by majority of the PRM's votes

Guarantees: each judged turn with r = +1 or -1 gives a sample. A turn with r = 0, or without a score, gives none. Neither
does a session without any score: an optimizer that scales its steps, such as AdamW, moves the weights as far for a small
reward as for a large one. With ``OPENCLAW_RL_AT_LEAST_ONE`` above 0 such a session gives one sample when it ends: see
`BinaryRL.session_samples`.
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
    fills = frozenset()
    guide_name = "binary"
    defaults = {"PRM_M": DEFAULT_VOTES}

    at_least_one: float = variable(
        "OPENCLAW_RL_AT_LEAST_ONE",
        0.0,
        "size of the reward of one reply of each session whose judged replies all scored 0; 0: such a session gives none",
        minimum=0.0,
        maximum=1.0,
    )


class BinaryRL:
    """A `Method`; a pure function of its configuration."""

    name = "openclaw-rl"

    def __init__(self, config: RuntimeConfig, own: Config = Config()) -> None:
        self._votes = config.prm_m or DEFAULT_VOTES
        self._at_least_one = own.at_least_one

    def judges(self) -> JudgePlan:
        """Return the PRM alone."""
        return JudgePlan(prm_votes=self._votes)

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return one sample with reward +1 or -1, or none for 0."""
        if not verdict.score:
            return SampleDecision(reason=SCORE_ZERO)
        return SampleDecision([make_sample(turn, verdict.score, score=verdict.score)])

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return the one sample of a session that has none, because its judge scored every reply 0; else nothing.

        It is the reply whose votes lean furthest from 0, the newest of equals. The lean gives the reward's sign; without any,
        the reply is reinforced, because the conversation went on and nobody objected.
        """
        neutral = [item for item in judged if item.turn.reason == SCORE_ZERO and item.verdict.score_source == "judge"]
        if not self._at_least_one or not neutral or any(item.turn.reason is None for item in judged):
            return []
        chosen = max(reversed(neutral), key=lambda item: abs(lean(item.verdict)))
        reward = -self._at_least_one if lean(chosen.verdict) < 0 else self._at_least_one
        return [(chosen.turn.id, make_sample(chosen.turn, reward, score=0))]


def lean(verdict: Verdict) -> float:
    """Return the mean of the valid votes on the score, 0 without any."""
    values = [vote.value for vote in verdict.votes if vote.judge == "prm" and vote.value is not None]
    return sum(values) / len(values) if values else 0.0
