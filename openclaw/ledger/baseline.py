"""The baseline of a reward: the running mean of earlier rewards, by whose reaction the verdict read.

    b = sum(r) / (n + PRIOR * (1 - n / WINDOW))

over the last n <= `WINDOW` rewards of the same role (``user`` or ``tool``). The trainer subtracts b, so a reply is
compared with the replies before it. Without rewards b is 0, and `PRIOR` rewards of 0 keep the first few from deciding it.
The prior fades until the window is full: if all rewards are equal, the advantage then is exactly 0, and an optimizer that
scales its steps has nothing to scale.

Guarantees: a sample's baseline is fixed when its verdict is committed, in the same transaction, so it survives any
restart and a repeated step uses the same number. It costs one indexed read of `WINDOW` numbers. Rewards of 0 have no
baseline and do not count. Neither do verdicts of a rule: a role did not give them. Such a verdict is compared with the
baseline of the role that reacted if that makes it worse, never if that makes it better, so a broken reply always scores
below the worst honest one.
"""

from __future__ import annotations

import copy
import sqlite3
from typing import Literal

from openclaw.ledger.opinion import WEIGHT
from openclaw.ledger.records import Message, Verdict
from openclaw.messages.text import next_state_role
from slime.utils.types import Sample

Role = Literal["user", "tool"]

WINDOW = 64
"""Number of earlier rewards in the mean: four batches of the default size, so that it follows the policy."""
PRIOR = 8
BASELINE = "baseline"
"""Key in a sample's metadata: what the trainer subtracts from its reward."""


def mean_of(rewards: list[float]) -> float:
    """Return the baseline of up to `WINDOW` earlier rewards; 0 without any."""
    count = len(rewards)
    return sum(rewards) / (count + PRIOR * (1 - count / WINDOW)) if count else 0.0


def earlier_rewards(connection: sqlite3.Connection, role: Role) -> list[float]:
    """Return the last `WINDOW` rewards that ``role`` gave, newest first."""
    query = "SELECT baseline_reward FROM samples WHERE baseline_role = ? ORDER BY id DESC LIMIT ?"
    return [row[0] for row in connection.execute(query, (role, WINDOW))]


def compared(
    connection: sqlite3.Connection, samples: list[Sample], verdict: Verdict, next_state: list[Message]
) -> list[tuple[Sample, dict[str, object]]]:
    """Return a turn's samples with their baselines in the metadata, and the columns by which later ones count them."""
    role = next_state_role(next_state)
    baseline = mean_of(earlier_rewards(connection, role))
    if verdict.score_source == "rule":
        baseline = max(baseline, 0.0)
    found: list[tuple[Sample, dict[str, object]]] = []
    for sample in samples:
        reward, weight = sample.reward, float(sample.metadata.get(WEIGHT, 1.0))
        if not isinstance(reward, (int, float)) or not reward:
            found.append((sample, {}))
            continue
        sample = copy.copy(sample)
        sample.metadata = {**sample.metadata, BASELINE: weight * baseline}
        counted = verdict.score_source != "rule"
        found.append((sample, {"baseline_role": role, "baseline_reward": reward / weight} if counted else {}))
    return found
