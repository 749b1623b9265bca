"""The baseline of a reward: the running mean of an owner's earlier rewards, by whose reaction the verdict read.

    b = (sum(r) + k * p) / (n + k)        k = PRIOR * (1 - n / WINDOW)

over the last n <= `WINDOW` rewards of the same owner and role (``user`` or ``tool``). The trainer subtracts b, so a reply
is compared with the replies to the same person before it, and a strict person's replies are pushed down no further than a
lenient one's. p is the baseline of the other owners' rewards among the last `WINDOW` of the role, computed in the same way
with p = 0: a new person begins with what others usually say, and `PRIOR` rewards of p keep the first few of its own from
deciding b. With an adapter per person the others' replies come from other weights, so p = 0 there. The prior fades until the window is full: if all rewards are equal, the advantage then is exactly 0, and an
optimizer that scales its steps has nothing to scale.

Guarantees: a sample's baseline is fixed when its verdict is committed, in the same transaction, so it survives any
restart and a repeated step uses the same number. It costs two indexed reads of `WINDOW` numbers. Rewards of 0 have no
baseline and do not count. Neither do verdicts of a rule: a role did not give them. Such a verdict is compared with the
baseline of the role that reacted if that makes it worse, never if that makes it better, so a broken reply always scores
below the worst honest one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from groundwork.chat_messages import Message
from openclaw.ledger.records import BASELINE, WEIGHT, ReactionReward, Verdict
from openclaw.ledger.store import Ledger
from openclaw.messages.text import next_state_role
from openclaw.owners import owner_of, root
from slime.utils.types import Sample

WINDOW = 64
"""Number of earlier rewards in the mean: four batches of the default size, so that it follows the policy."""
PRIOR = 8


def mean_of(rewards: Sequence[float], prior: float = 0.0) -> float:
    """Return the baseline of up to `WINDOW` earlier rewards; ``prior`` without any."""
    count = len(rewards)
    weight = PRIOR * (1 - count / WINDOW)
    return (sum(rewards) + weight * prior) / (count + weight)


def baseline_of(ledger: Ledger, owner: str, role: str, *, alone: bool = False) -> float:
    """Return the baseline of the next reward that ``role`` gives in a session of ``owner``; ``alone``: without a prior of others."""
    own = ledger.samples.earlier_rewards(owner, role, WINDOW)
    if len(own) == WINDOW or alone:
        return mean_of(own)
    return mean_of(own, mean_of(ledger.samples.rewards_of_others(owner, role, WINDOW)))


def record_judged(
    ledger: Ledger,
    turn_id: str,
    verdict: Verdict,
    samples: Sequence[Sample],
    reason: str | None,
    feedback_seen: int | None = None,
    next_state_seen: Sequence[Message] | None = None,
    made_by: str | None = None,
    *,
    alone: bool = False,
) -> None:
    """Commit a verdict with its samples and their baselines; see `openclaw.ledger.judging.Judging.record` and `baseline_of`."""
    with ledger.transaction():
        rewards: list[ReactionReward | None] = []
        if samples:
            session_id, following = ledger.judging.reaction(turn_id)
            samples, rewards = compared(ledger, samples, verdict, following, root(owner_of(session_id)), alone=alone)
        ledger.judging.record(turn_id, verdict, samples, reason, feedback_seen, next_state_seen, made_by, rewards)


def compared(
    ledger: Ledger,
    samples: Sequence[Sample],
    verdict: Verdict,
    next_state: Sequence[Message],
    owner: str,
    *,
    alone: bool = False,
) -> tuple[list[Sample], list[ReactionReward | None]]:
    """Return a turn's samples with their baselines in the metadata, and what later baselines count of each."""
    role = next_state_role(next_state)
    baseline = baseline_of(ledger, owner, role, alone=alone)
    if verdict.score_source == "rule":
        baseline = max(baseline, 0.0)
    results: list[Sample] = []
    rewards: list[ReactionReward | None] = []
    for sample in samples:
        reward, weight = sample.reward, float(sample.metadata.get(WEIGHT, 1.0))
        counts = isinstance(reward, (int, float)) and bool(reward)
        if counts:
            sample = copy.copy(sample)
            sample.metadata = {**sample.metadata, BASELINE: weight * baseline}
        results.append(sample)
        stated = counts and verdict.score_source != "rule"
        rewards.append(ReactionReward(owner, role, reward / weight) if stated else None)
    return results, rewards
