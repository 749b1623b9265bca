"""A person's opinion on a reply that a step has learned from: a further sample of the same turn turns the reward around.

    reward of the correction = what the person's opinion gives - the sum of what steps have learned from the turn

So all steps together have learned what the person says: after a +1 a thumbs-down gives -2. The sample has the ids and
log-probabilities with which the reply was sampled, so its ratio is that of any other stale sample, and the bound on staleness holds
for it. It has no teacher and no baseline, since the difference of two rewards needs none.

Guarantees: at most one correction up and one down per turn are trained. Each is trained at most once, as every sample. One
that waits is replaced by a later opinion. The reward is fixed when a batch takes the correction: if the first sample's step
was undone or refused meanwhile, only what is still learned counts. Later baselines count the person's opinion. The samples
of episodes, and those of a method without rewards, have nothing to turn around.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw.ledger.baseline import BASELINE
from openclaw.ledger.opinion import WEIGHT
from openclaw.ledger.records import BLAMED
from slime.utils.types import Sample

CORRECTS, TARGET = "corrects", "target"
"""Keys in a correction's metadata: that it is one, and the reward that all samples of its turn shall have together."""
NO_TEACHER = (
    "teacher_log_probs", "teacher_topk_log_probs", "teacher_topk_indices", "rollout_topk_log_probs",
)  # fmt: skip
EQUAL = 1e-9
OF_TURN = "SELECT * FROM samples WHERE turn_id = ? AND episode IS NULL ORDER BY id"


def correct(
    connection: sqlite3.Connection, turn_id: str, score: int, choices: int, superseded: str, now: float
) -> bool:
    """Commit an opinion on a turn whose samples steps have used; return False, with nothing written, if it cannot count.

    Args:
        connection: in a transaction.
        turn_id: a judged turn.
        score: what the person states: -1, 0 or 1.
        choices: of the turn's request; they share the weight of a reply.
        superseded: the reason of a correction that waits and that this opinion replaces.
        now: seconds since the epoch.
    """
    rows = connection.execute(OF_TURN, (turn_id,)).fetchall()
    used = [row for row in rows if row["state"] in ("leased", "trained")]
    first = next((row for row in used if _reward(row) and CORRECTS not in _metadata(row)), None)
    if first is None or not _metadata(first).get("raw_reward"):
        return False
    said = connection.execute("SELECT verdict FROM verdicts WHERE turn_id = ?", (turn_id,)).fetchone()
    if json.loads(said["verdict"])["score"] == score:
        return True
    metadata = _metadata(first)
    scale = _reward(first) / metadata["raw_reward"] / metadata.get(WEIGHT, 1.0)
    target, learned = scale * score / choices, sum(map(_reward, used))
    amount = 0.0 if score * learned > 0 else target - learned
    if any(_reward(row) * amount > 0 for row in used if CORRECTS in _metadata(row)):
        return False
    for row in rows:
        if row["state"] == "ready" and CORRECTS in _metadata(row):
            connection.execute(
                "UPDATE samples SET state = 'dropped', reason = ?, rollout_id = NULL WHERE id = ?",
                (superseded, row["id"]),
            )
    if abs(amount) > EQUAL:
        kept = {name: value for name, value in metadata.items() if name not in (BASELINE, BLAMED, "hint")}
        own = {WEIGHT: 1 / choices, "raw_reward": float(score), CORRECTS: True, TARGET: target}
        sample = {**json.loads(first["sample"]), "reward": amount, "metadata": {**kept, **own}}
        columns = {**dict(first), **dict.fromkeys(NO_TEACHER), "sample": json.dumps(sample), "state": "ready"}
        columns |= {"reason": None, "rollout_id": None, "created_at": now, "baseline_role": None}
        del columns["id"]
        marks = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO samples ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))
    connection.execute(
        "UPDATE samples SET baseline_reward = ?, baseline_role = CASE WHEN ? THEN baseline_role END WHERE id = ?",
        (scale * score, score != 0, first["id"]),
    )
    connection.execute(
        "UPDATE verdicts SET verdict = json_set(verdict, '$.score', ?, '$.score_source', 'feedback') WHERE turn_id = ?",
        (score, turn_id),
    )
    return True


def fix_rewards(connection: sqlite3.Connection, samples: Sequence[Sample]) -> None:
    """Set the rewards of the corrections among leased samples to what is missing now; each call gives the same."""
    for sample in samples:
        if CORRECTS not in sample.metadata:
            continue
        own, turn_id = sample.metadata["ledger_id"], sample.metadata["turn_id"]
        others = connection.execute(
            "SELECT TOTAL(json_extract(sample, '$.reward')) FROM samples"
            " WHERE turn_id = ? AND episode IS NULL AND id < ? AND state IN ('leased', 'trained')",
            (turn_id, own),
        ).fetchone()
        sample.reward = sample.metadata[TARGET] - others[0]
        connection.execute(
            "UPDATE samples SET sample = json_set(sample, '$.reward', ?) WHERE id = ?", (sample.reward, own)
        )


def _reward(row: Mapping[str, Any] | sqlite3.Row) -> float:
    return float(json.loads(row["sample"])["reward"] or 0.0)


def _metadata(row: Mapping[str, Any] | sqlite3.Row) -> dict[str, Any]:
    return json.loads(row["sample"])["metadata"]
