"""The baseline of a reward: the running mean of an owner's earlier rewards, by whose reaction the verdict read.

    b = (sum(r) + k * p) / (n + k)        k = PRIOR * (1 - n / WINDOW)

over the last n <= `WINDOW` rewards of the same owner and role (``user`` or ``tool``). The trainer subtracts b, so a reply
is compared with the replies to the same person before it, and a strict person's replies are pushed down no further than a
lenient one's. p is the baseline of the other owners' rewards among the last `WINDOW` of the role, computed in the same way
with p = 0: a new person begins with what others usually say, and `PRIOR` rewards of p keep the first few of its own from
deciding b. The prior fades until the window is full: if all rewards are equal, the advantage then is exactly 0, and an
optimizer that scales its steps has nothing to scale.

Guarantees: a sample's baseline is fixed when its verdict is committed, in the same transaction, so it survives any
restart and a repeated step uses the same number. It costs two indexed reads of `WINDOW` numbers. Rewards of 0 have no
baseline and do not count. Neither do verdicts of a rule: a role did not give them. Such a verdict is compared with the
baseline of the role that reacted if that makes it worse, never if that makes it better, so a broken reply always scores
below the worst honest one.
"""

from __future__ import annotations

import copy
import sqlite3
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.ledger.opinion import WEIGHT
from openclaw.ledger.records import Verdict
from openclaw.messages.text import next_state_role
from slime.utils.types import Sample

Role = Literal["user", "tool"]

WINDOW = 64
"""Number of earlier rewards in the mean: four batches of the default size, so that it follows the policy."""
PRIOR = 8
BASELINE = "baseline"
"""Key in a sample's metadata: what the trainer subtracts from its reward."""


OF_OWNER = "SELECT baseline_reward FROM samples WHERE baseline_owner = ? AND baseline_role = ? ORDER BY id DESC LIMIT ?"
OF_ALL = "SELECT baseline_reward, baseline_owner FROM samples WHERE baseline_role = ? ORDER BY id DESC LIMIT ?"


def mean_of(rewards: list[float], prior: float = 0.0) -> float:
    """Return the baseline of up to `WINDOW` earlier rewards; ``prior`` without any."""
    count = len(rewards)
    weight = PRIOR * (1 - count / WINDOW)
    return (sum(rewards) + weight * prior) / (count + weight)


def baseline_of(connection: sqlite3.Connection, owner: str, role: Role) -> float:
    """Return the baseline of the next reward that ``role`` gives in a session of ``owner``."""
    own = [row[0] for row in connection.execute(OF_OWNER, (owner, role, WINDOW))]
    if len(own) == WINDOW:
        return mean_of(own)
    recent = connection.execute(OF_ALL, (role, WINDOW)).fetchall()
    return mean_of(own, mean_of([reward for reward, other in recent if other != owner]))


def compared(
    connection: sqlite3.Connection, samples: list[Sample], verdict: Verdict, next_state: list[Message], owner: str
) -> list[tuple[Sample, dict[str, object]]]:
    """Return a turn's samples with their baselines in the metadata, and the columns by which later ones count them."""
    role = next_state_role(next_state)
    baseline = baseline_of(connection, owner, role)
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
        columns: dict[str, object] = {
            "baseline_role": role,
            "baseline_reward": reward / weight,
            "baseline_owner": owner,
        }
        found.append((sample, {} if verdict.score_source == "rule" else columns))
    return found
