"""Samples and training steps: the half of the ledger that the trainer writes.

Guarantees, relative to the restored checkpoint: no sample is trained twice and none is lost. A sample is *trained* only
when a checkpoint that contains its step is on disk (`mark_trained`). Restoring an older checkpoint undoes every later
lease, use and drop (`reconcile`). Samples beyond a batch stay ready for the next one. `openclaw.ledger.quota` chooses
among the samples of several owners.

A batch counts in rollouts: the sample of a turn is one, and all samples of an episode together are one. The samples of an
episode are leased, dropped and undone together.
"""

from __future__ import annotations

from collections import Counter

from openclaw.ledger.codec import decode_sample
from openclaw.ledger.corrections import fix_rewards
from openclaw.ledger.database import Database
from openclaw.ledger.quota import BATCHES, Candidate, Quota, choose
from openclaw.ledger.rollbacks import align, line_of
from openclaw.owners import owner_of, prefixes, root
from slime.utils.types import Sample

STATED = (
    "(EXISTS (SELECT 1 FROM feedback WHERE feedback.turn_id = samples.turn_id AND applied"
    " AND (thumbs IS NOT NULL OR score IS NOT NULL)) OR EXISTS (SELECT 1 FROM verdicts"
    " WHERE verdicts.turn_id = samples.turn_id AND json_extract(verdict, '$.score_source') = 'feedback'))"
)
"""Whether a person stated the score of a sample, by feedback or by a message that is only a thumb."""
IN_BATCHES = "samples.rollout_id >= ? AND samples.rollout_id < ? AND +samples.state IN ('leased', 'trained')"
"""Whether a sample is in a batch of a range. The plus keeps SQLite from reading all trained samples."""
NO_QUOTA = Quota(owner=1.0, feedback=1.0)
ROLLOUT = "COALESCE(samples.episode, samples.id)"
"""What the samples of one rollout have in common."""
TOGETHER = "(id = ? OR episode = (SELECT episode FROM samples WHERE id = ?))"
"""Whether a sample belongs to the same rollout as another one, whose id is given twice."""


def rollout_of(sample: Sample) -> str | int:
    """Return what the claimed samples of one rollout have in common."""
    return sample.metadata.get("episode") or sample.metadata["ledger_id"]


class SampleQueries(Database):
    """The ledger's queries for the rollout function and the data source."""

    def ready_count(self, owner: str | None = None) -> int:
        """Return the number of ready rollouts: samples of turns, and whole episodes.

        Only those of ``owner``, which is not `LOCAL`, and its children; of all owners if it is None.
        """
        if owner is None:
            return self.rows(f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n FROM samples WHERE state = 'ready'")[0]["n"]
        own, children = prefixes(owner)
        return self.rows(
            f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n FROM samples JOIN turns ON turns.id = samples.turn_id"
            " WHERE samples.state = 'ready' AND (substr(session_id, 1, ?) = ? OR substr(session_id, 1, ?) = ?)",
            (len(own), own, len(children), children),
        )[0]["n"]

    def leased_count(self, rollout_id: int) -> int:
        """Return the number of rollouts, as `ready_count` counts them, that are leased to a batch."""
        return self.rows(
            f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n FROM samples WHERE state = 'leased' AND rollout_id = ?",
            (rollout_id,),
        )[0]["n"]

    def untrained_leases(self) -> int:
        """Return the number of samples leased to rollouts whose step is not live yet."""
        return self.rows(
            "SELECT COUNT(*) AS n FROM samples WHERE state = 'leased' AND rollout_id NOT IN"
            " (SELECT rollout_id FROM steps WHERE undone_at IS NULL)"
        )[0]["n"]

    def batch_sizes(self) -> list[int]:
        """Return the number of rollouts, as `ready_count` counts them, of each step that was not undone, oldest first.

        A deleted sample counts as one.
        """
        found = self.rows(
            f"SELECT COUNT(*) AS n FROM steps JOIN (SELECT rollout_id, {ROLLOUT} AS rollout FROM samples"
            " WHERE state IN ('leased', 'trained') UNION SELECT rollout_id, id FROM forgotten_samples)"
            " USING (rollout_id) WHERE undone_at IS NULL GROUP BY rollout_id ORDER BY rollout_id"
        )
        return [row["n"] for row in found]

    def claim_samples(self, rollout_id: int, count: int, quota: Quota = NO_QUOTA) -> list[Sample]:
        """Lease ready samples to a batch until it has ``count`` rollouts, oldest first within ``quota``; return all of them.

        Claiming again for the same rollout returns the same samples, so a caller that died in between loses none. Fewer
        are returned if another process forgets or leases some of them meanwhile.
        """
        held = self._candidates("samples.state = 'leased' AND samples.rollout_id = ?", (rollout_id,))
        ready = self._candidates("samples.state = 'ready'") if len(held) < count else []  # long, so outside the lock
        before = self._candidates(IN_BATCHES, (rollout_id - BATCHES + 1, rollout_id)) if ready else []
        recent = Counter(sample.owner for sample in before)
        chosen = [(rollout_id, sample_id, sample_id) for sample_id in choose(ready, held, count, quota, recent)]
        with self.transaction() as connection:
            connection.executemany(
                f"UPDATE samples SET state = 'leased', rollout_id = ? WHERE {TOGETHER} AND state = 'ready'", chosen
            )
            leased = connection.execute(
                "SELECT * FROM samples WHERE state = 'leased' AND rollout_id = ? ORDER BY id", (rollout_id,)
            ).fetchall()
            samples = [decode_sample(row) for row in leased]
            fix_rewards(connection, samples)
        return samples

    def _candidates(self, condition: str, parameters: tuple[int, ...] = ()) -> list[Candidate]:
        """Return the first sample of each rollout whose samples meet ``condition``, oldest first."""
        first = "samples.id = COALESCE((SELECT MIN(id) FROM samples AS other WHERE other.episode = samples.episode), samples.id)"
        found = self.rows(
            f"SELECT samples.id, turns.session_id, {STATED} AS stated FROM samples"
            f" JOIN turns ON turns.id = samples.turn_id WHERE {condition} AND {first} ORDER BY samples.id",
            parameters,
        )
        return [Candidate(row["id"], root(owner_of(row["session_id"])), bool(row["stated"])) for row in found]

    def drop_sample(self, sample_id: int, reason: str, rollout_id: int) -> None:
        """Drop a ready or leased sample, with the others of its episode; ``rollout_id`` is the batch that had them.

        If the sample was deleted after its lease, its tombstone now says that no step used it.
        """
        with self.transaction() as connection:
            forgotten = connection.execute(
                "UPDATE forgotten_samples SET rollout_id = NULL WHERE id = ?", (sample_id,)
            ).rowcount
            if forgotten:
                return
            found = connection.execute(f"SELECT id FROM samples WHERE {TOGETHER}", (sample_id, sample_id)).fetchall()
            for each in [row["id"] for row in found] or [sample_id]:
                self.update_one(connection, "samples", each, state="dropped", reason=reason, rollout_id=rollout_id)

    def drop_leased(self, rollout_id: int, reason: str) -> int:
        """Drop the samples leased to a rollout whose step was not taken; return their number."""
        with self.transaction() as connection:
            connection.execute("UPDATE forgotten_samples SET rollout_id = NULL WHERE rollout_id = ?", (rollout_id,))
            return connection.execute(
                "UPDATE samples SET state = 'dropped', reason = ? WHERE state = 'leased' AND rollout_id = ?",
                (reason, rollout_id),
            ).rowcount

    def mark_trained(self, rollout_id: int) -> int:
        """Mark samples up to ``rollout_id`` as trained, because a checkpoint has their steps; return their number."""
        with self.transaction() as connection:
            return connection.execute(
                "UPDATE samples SET state = 'trained' WHERE state = 'leased' AND rollout_id <= ?", (rollout_id,)
            ).rowcount

    def reconcile(self, rollout_id: int) -> dict[str, int]:
        """Align the ledger with a restored checkpoint that contains every step up to ``rollout_id``.

        Args:
            rollout_id: last rollout in the checkpoint, -1 for the initial weights.

        Returns:
            ``trained``: leased samples whose step the checkpoint contains; ``ready``: samples that became ready again.
        """
        with self.transaction() as connection:
            trained = connection.execute(
                "UPDATE samples SET state = 'trained' WHERE state = 'leased' AND rollout_id <= ?", (rollout_id,)
            ).rowcount
            ready = connection.execute(
                "UPDATE samples SET state = 'ready', rollout_id = NULL, reason = NULL"
                " WHERE state IN ('leased', 'trained', 'dropped') AND rollout_id > ?",
                (rollout_id,),
            ).rowcount
            connection.execute("UPDATE forgotten_samples SET rollout_id = NULL WHERE rollout_id > ?", (rollout_id,))
            connection.execute(
                "UPDATE steps SET undone_at = ? WHERE rollout_id > ? AND undone_at IS NULL", (self.clock(), rollout_id)
            )
            connection.execute(
                "UPDATE decisions SET undone_at = ? WHERE rollout_id > ? AND undone_at IS NULL AND kind <> 'accept'",
                (self.clock(), rollout_id),
            )
            align(connection, line_of(connection, rollout_id), rollout_id, self.clock())
        return {"trained": trained, "ready": ready}

    def record_step(self, rollout_id: int, weight_version: str, trained_at: float, live_at: float) -> None:
        """Record that the weights after the step of ``rollout_id`` are live since ``live_at``.

        A second push of the same step, after an engine restart, is a no-op.
        """
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO steps (rollout_id, weight_version, trained_at, live_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (rollout_id, str(weight_version), trained_at, live_at),
            )

    def live_weight_version(self) -> str | None:
        """Return the weight version of the last live step, None before the first."""
        found = self.rows("SELECT weight_version FROM steps WHERE undone_at IS NULL ORDER BY number DESC LIMIT 1")
        return found[0]["weight_version"] if found else None

    def feedback_to_live_seconds(self) -> list[float]:
        """Return the seconds from feedback to live weights for each sample whose step is live."""
        found = self.rows(
            "SELECT steps.live_at - turns.next_state_at AS seconds FROM samples"
            " JOIN turns ON turns.id = samples.turn_id JOIN steps ON steps.rollout_id = samples.rollout_id"
            " WHERE samples.state IN ('leased', 'trained') AND steps.undone_at IS NULL"
            " AND turns.next_state_at IS NOT NULL ORDER BY samples.id"
        )
        return [row["seconds"] for row in found]
