"""Samples and training steps: what the trainer takes, and what became of it.

Guarantees, relative to the restored checkpoint: no sample is trained twice and none is lost. A sample is *trained* only
when a checkpoint that contains its step is on disk (`Samples.mark_trained`). Restoring an older checkpoint undoes every later
lease, use and drop (`Samples.reconcile`). Samples beyond a batch stay ready for the next one.

A batch counts in rollouts: the sample of a turn is one, and all samples of an episode together are one. The samples of an
episode are leased, dropped and undone together.

When several owners have ready samples (`choose`), and while another owner has ready samples left: an owner holds at most
its share of the batch, and samples that the owner scored by feedback at most theirs. The owner's share goes first: when both
cannot hold, more feedback is taken. Within the shares, and where they cannot fill the batch, the owner is next that has had
the fewest samples in this batch and those before it (max-min fairness). So of N owners each gets all that it sends, or at
least the N-th part of what is trained over `BATCHES` batches, however much the others send and however old their samples
are. A batch is full whenever enough samples are ready, so nobody waits for an owner who sends little. The samples of a single
owner are taken oldest first, whatever the shares.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, NamedTuple, cast

from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.ledger.codec import decode_sample, encode_sample
from openclaw.ledger.database import Database, move_samples
from openclaw.ledger.decisions import OF_STEPS, align, line_of, people_of_steps
from openclaw.ledger.feedback import fix_rewards
from openclaw.ledger.lessons import Lessons
from openclaw.ledger.records import BASELINE, Origin
from openclaw.owners import owner_of, prefixes, root
from slime.utils.types import Sample

BATCHES = 10
"""Batches over which owners get equal parts: the one that is being filled and those before it."""
NOBODY: Mapping[str, int] = {}


@dataclass(frozen=True)
class Quota:
    """Shares of a batch, above 0 and at most 1; 1 means no bound.

    Attributes:
        owner: samples of one owner.
        feedback: samples of one owner whose score its own feedback stated.
    """

    owner: float = RuntimeVariables.owner_share
    feedback: float = RuntimeVariables.feedback_share

    @staticmethod
    def from_env(environment: Mapping[str, str] = os.environ) -> Quota:
        """Return the shares that the environment sets.

        Raises:
            ConfigError: a variable is invalid; the message says what to type.
        """
        values = (RuntimeVariables.declared(f"{field.name}_share").read(environment)[0] for field in fields(Quota))
        return Quota(*cast("Iterator[float]", values))


class Candidate(NamedTuple):
    """A sample as the choice sees it; ``stated``: feedback scored it."""

    id: int
    owner: str
    stated: bool


def most(share: float, batch: int) -> int:
    """Return how many samples of a batch a share allows, rounded up."""
    return math.ceil(Decimal(str(share)) * batch)


def choose(
    ready: Sequence[Candidate], held: Sequence[Candidate], batch: int, quota: Quota, recent: Mapping[str, int] = NOBODY
) -> list[int]:
    """Return the ids of the ready samples that join a batch.

    Args:
        ready: the samples to choose from, oldest first.
        held: the samples that the batch has already.
        batch: number of samples of a full batch.
        quota: the shares.
        recent: how many samples of each owner are in the `BATCHES` - 1 batches before.
    """
    wanted = max(0, batch - len(held))
    queues: dict[str, dict[bool, deque[Candidate]]] = {}
    for sample in ready:
        queues.setdefault(sample.owner, {True: deque(), False: deque()})[sample.stated].append(sample)
    if len(ready) <= wanted or len(queues) == 1:
        return [sample.id for sample in ready[:wanted]]
    samples = Counter(sample.owner for sample in held)
    stated = Counter(sample.owner for sample in held if sample.stated)
    most_samples, most_stated = most(quota.owner, batch), most(quota.feedback, batch)

    def within_share(sample: Candidate) -> bool:
        return samples[sample.owner] < most_samples

    def within_both(sample: Candidate) -> bool:
        return within_share(sample) and not (sample.stated and stated[sample.owner] >= most_stated)

    def next_of(owner: str) -> tuple[tuple[int, int, int], Candidate]:
        """Return an owner's next sample after its rank: what the shares allow, then who has had the fewest, then its age."""
        heads = [queue[0] for queue in queues[owner].values() if queue]
        sample = min(heads, key=lambda each: (not within_both(each), each.id))
        tier = 0 if within_both(sample) else 1 if within_share(sample) else 2
        return (tier, recent.get(owner, 0) + samples[owner], sample.id), sample

    chosen: list[int] = []
    while len(chosen) < wanted:
        _, sample = min(map(next_of, queues))
        chosen.append(sample.id)
        samples[sample.owner] += 1
        stated[sample.owner] += sample.stated
        queues[sample.owner][sample.stated].popleft()
        if not any(queues[sample.owner].values()):
            del queues[sample.owner]
    return chosen


STATED = (
    "(samples.origin = 'live' AND (EXISTS (SELECT 1 FROM feedback WHERE feedback.turn_id = samples.turn_id AND applied"
    " AND (thumbs IS NOT NULL OR score IS NOT NULL)) OR EXISTS (SELECT 1 FROM verdicts"
    " WHERE verdicts.turn_id = samples.turn_id AND json_extract(verdict, '$.score_source') = 'feedback')))"
)
"""Whether a person stated the score of a reply that gave a sample, by feedback or by a message that is only a thumb."""
IN_BATCHES = (
    "samples.rollout_id >= ? AND samples.rollout_id < ? AND +samples.state IN ('leased', 'trained')"
    " AND samples.origin = 'live'"
)
"""Whether a sample of a conversation is in a batch of a range. The plus keeps SQLite from reading all trained samples."""
NO_QUOTA = Quota(owner=1.0, feedback=1.0)
OF_OWNER = "SELECT baseline_reward FROM samples WHERE baseline_owner = ? AND baseline_role = ? ORDER BY id DESC LIMIT ?"
OF_ALL = "SELECT baseline_reward, baseline_owner FROM samples WHERE baseline_role = ? ORDER BY id DESC LIMIT ?"
ROLLOUT = "COALESCE(samples.episode, samples.id)"
"""What the samples of one rollout have in common."""
TOGETHER = "(id = ? OR episode = (SELECT episode FROM samples WHERE id = ?))"
"""Whether a sample belongs to the same rollout as another one, whose id is given twice."""


def insert_sample(
    database: Database,
    connection: sqlite3.Connection,
    turn_id: str,
    sample: Sample,
    *,
    origin: Origin = "live",
    **columns: Any,
) -> int:
    """Add a ready sample inside a transaction and return its number.

    Args:
        database: the ledger's.
        connection: in a transaction.
        turn_id: the turn it is of; its session says whose it is.
        sample: what the trainer gets.
        origin: what it is of.
        columns: of ``samples``, beside these.

    Raises:
        UnknownRecordError: if the ledger does not hold the turn.
        ValueError: if the sample is inconsistent.
    """
    person = root(owner_of(database.turn_row(turn_id, "session_id")["session_id"]))
    own = {"turn_id": turn_id, "person": person, "origin": origin, "state": "ready", "created_at": database.clock()}
    return database.insert(connection, "samples", {**own, **encode_sample(sample), **columns})


def rollout_of(sample: Sample) -> str | int:
    """Return what the claimed samples of one rollout have in common."""
    return sample.metadata.get("episode") or sample.metadata["ledger_id"]


def not_of(people: Collection[str]) -> str:
    """Return the condition that a sample is of none of some people, who are its parameters."""
    return f"samples.person NOT IN ({', '.join('?' for _ in people)})" if people else "1"


def _of(person: str | None, origin: Origin, without: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return the condition that samples are of an origin and, unless it is None, of a person, and of none of some people."""
    whose, parameters = ("1", ()) if person is None else ("samples.person = ?", (person,))
    return f"{whose} AND samples.origin = ? AND {not_of(without)}", (*parameters, origin, *without)


class Samples:
    """The samples of the ledger and the steps that used them.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from lab.testkit.ledger_records import judged_sample
        >>> from openclaw.ledger.store import Ledger
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")
        >>> judged_sample(ledger, "chatcmpl-1")
        >>> [sample] = ledger.samples.claim(rollout_id=0, count=8)
        >>> ledger.samples.ready_count(), ledger.samples.untrained_leases()
        (0, 1)
        >>> ledger.samples.mark_trained(rollout_id=0)  # a checkpoint holds the step
        1
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def ready_count(self, person: str | None = None, origin: Origin = "live", without: Collection[str] = ()) -> int:
        """Return the number of ready rollouts: samples of turns, and whole episodes.

        Only those of ``person`` (`openclaw.owners.root`), or of all people if it is None, and none of ``without``.
        """
        of, parameters = _of(person, origin, without)
        return self._database.rows(
            f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n FROM samples WHERE state = 'ready' AND {of}", parameters
        )[0]["n"]

    def ready_count_of(self, owner: str) -> int:
        """Return the number of ready rollouts of ``owner``, which is not `LOCAL`, and its children."""
        own, children = prefixes(owner)
        return self._database.rows(
            f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n FROM samples JOIN turns ON turns.id = samples.turn_id"
            " WHERE samples.state = 'ready' AND origin = 'live'"
            " AND (substr(session_id, 1, ?) = ? OR substr(session_id, 1, ?) = ?)",
            (len(own), own, len(children), children),
        )[0]["n"]

    def leased_count(self, rollout_id: int) -> int:
        """Return the number of rollouts, as `ready_count` counts them, that are leased to a batch."""
        return self._database.rows(
            f"SELECT COUNT(DISTINCT {ROLLOUT}) AS n FROM samples WHERE state = 'leased' AND rollout_id = ?",
            (rollout_id,),
        )[0]["n"]

    def taken_count(self, rollout_id: int) -> int:
        """Return the number of rollouts, as `ready_count` counts them, that a batch has or had: dropped and deleted ones count.

        A deleted sample counts as one.
        """
        return self._database.rows(
            f"SELECT COUNT(*) AS n FROM (SELECT {ROLLOUT} FROM samples WHERE rollout_id = ?1"
            " UNION SELECT id FROM forgotten_samples WHERE rollout_id = ?1)",
            (rollout_id,),
        )[0]["n"]

    def untrained_leases(self) -> int:
        """Return the number of samples leased to rollouts whose step is not live yet."""
        return self._database.rows(
            "SELECT COUNT(*) AS n FROM samples WHERE state = 'leased' AND rollout_id NOT IN"
            " (SELECT rollout_id FROM steps WHERE undone_at IS NULL)"
        )[0]["n"]

    def saved_not_live(self) -> int:
        """Return the number of samples that a checkpoint has, but whose step is not live yet.

        With an adapter for each person the checkpoint comes first.
        """
        return self._database.rows(
            "SELECT COUNT(*) AS n FROM samples WHERE state = 'trained' AND rollout_id >"
            " (SELECT COALESCE(MAX(rollout_id), -1) FROM steps WHERE undone_at IS NULL)"
        )[0]["n"]

    def batch_sizes(self) -> list[int]:
        """Return the number of rollouts, as `ready_count` counts them, of each step that was not undone, oldest first.

        A deleted sample counts as one.
        """
        rows = self._database.rows(
            f"SELECT COUNT(*) AS n FROM steps JOIN (SELECT rollout_id, {ROLLOUT} AS rollout FROM samples"
            " WHERE state IN ('leased', 'trained') UNION SELECT rollout_id, id FROM forgotten_samples)"
            " USING (rollout_id) WHERE undone_at IS NULL GROUP BY rollout_id ORDER BY rollout_id"
        )
        return [row["n"] for row in rows]

    def claim(
        self,
        rollout_id: int,
        count: int,
        quota: Quota = NO_QUOTA,
        person: str | None = None,
        origin: Origin = "live",
        without: Collection[str] = (),
    ) -> list[Sample]:
        """Lease ready samples to a batch until it has ``count`` rollouts, oldest first within ``quota``; return all of them.

        Only samples of ``person`` join, unless it is None, only those of ``origin``, and none of people in ``without``.
        Claiming again for the same rollout returns the same samples, so a caller that died in between loses none. Fewer
        are returned if another process forgets or leases some of them meanwhile.
        """
        held = self._candidates("samples.state = 'leased' AND samples.rollout_id = ?", (rollout_id,))
        of, parameters = _of(person, origin, without)
        # Long, so outside the lock.
        ready = self._candidates(f"samples.state = 'ready' AND {of}", parameters) if len(held) < count else []
        before = self._candidates(IN_BATCHES, (rollout_id - BATCHES + 1, rollout_id)) if ready else []
        recent = Counter(sample.owner for sample in before)
        chosen = choose(ready, held, count, quota, recent)
        with self._database.transaction() as connection:
            # The choice is from before the lock. "lease" moves ready samples only, so one that is gone meanwhile is passed over.
            for sample_id in chosen:
                move_samples(connection, "lease", TOGETHER, (sample_id, sample_id), rollout_id=rollout_id)
            leased = connection.execute(
                "SELECT * FROM samples WHERE state = 'leased' AND rollout_id = ? ORDER BY id", (rollout_id,)
            ).fetchall()
            samples = [decode_sample(row) for row in leased]
            fix_rewards(connection, samples)
        return samples

    def _candidates(self, condition: str, parameters: tuple[Any, ...] = ()) -> list[Candidate]:
        """Return the first sample of each rollout whose samples meet ``condition``, oldest first."""
        first = "samples.id = COALESCE((SELECT MIN(id) FROM samples AS other WHERE other.episode = samples.episode), samples.id)"
        rows = self._database.rows(
            f"SELECT samples.id, samples.person, {STATED} AS stated FROM samples WHERE {condition} AND {first}"
            " ORDER BY samples.id",
            parameters,
        )
        return [Candidate(row["id"], row["person"], bool(row["stated"])) for row in rows]

    def drop(self, sample_id: int, reason: str, rollout_id: int) -> None:
        """Drop a ready or leased sample, with the others of its episode; ``rollout_id`` is the batch that had them.

        If the sample was deleted after its lease, its tombstone now says that no step used it.
        """
        with self._database.transaction() as connection:
            forgotten = connection.execute(
                "UPDATE forgotten_samples SET rollout_id = NULL WHERE id = ?", (sample_id,)
            ).rowcount
            if forgotten:
                return
            rows = connection.execute(f"SELECT id FROM samples WHERE {TOGETHER}", (sample_id, sample_id)).fetchall()
            for item in [row["id"] for row in rows] or [sample_id]:
                self._database.update_one(
                    connection, "samples", item, state="dropped", reason=reason, rollout_id=rollout_id
                )

    def drop_leased(self, rollout_id: int, reason: str) -> int:
        """Drop the samples leased to a rollout whose step was not taken; return their number."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE forgotten_samples SET rollout_id = NULL WHERE rollout_id = ?", (rollout_id,))
            return move_samples(connection, "refuse", "rollout_id = ?", (rollout_id,), reason=reason)

    def mark_trained(self, rollout_id: int) -> int:
        """Mark samples up to ``rollout_id`` as trained, because a checkpoint has their steps; return their number."""
        with self._database.transaction() as connection:
            return move_samples(connection, "commit", "rollout_id <= ?", (rollout_id,))

    def reconcile(self, rollout_id: int) -> dict[str, int]:
        """Align the ledger with a restored checkpoint that contains every step up to ``rollout_id``.

        Lessons that later weights had learned are served again.

        Args:
            rollout_id: last rollout in the checkpoint, -1 for the initial weights.

        Returns:
            ``trained``: leased samples whose step the checkpoint contains; ``ready``: samples that became ready again.
        """
        with self._database.transaction() as connection:
            trained = move_samples(connection, "commit", "rollout_id <= ?", (rollout_id,))
            ready = move_samples(connection, "undo", "rollout_id > ?", (rollout_id,))
            connection.execute("UPDATE forgotten_samples SET rollout_id = NULL WHERE rollout_id > ?", (rollout_id,))
            connection.execute(
                "UPDATE steps SET undone_at = ? WHERE rollout_id > ? AND undone_at IS NULL",
                (self._database.clock(), rollout_id),
            )
            # An acceptance is a person's wish, which no restored checkpoint takes back.
            connection.execute(
                "UPDATE decisions SET undone_at = ? WHERE rollout_id > ? AND undone_at IS NULL AND kind <> 'accept'",
                (self._database.clock(), rollout_id),
            )
            for person in people_of_steps(connection):
                align(connection, line_of(connection, rollout_id, person), rollout_id, self._database.clock(), person)
            Lessons(self._database).unlearn(connection)
        return {"trained": trained, "ready": ready}

    def record_step(
        self, rollout_id: int, weight_version: str, trained_at: float, live_at: float, person: str | None = None
    ) -> None:
        """Record that the weights after the step of ``rollout_id`` are live since ``live_at``.

        A second push of the same step, after an engine restart, is a no-op.

        Args:
            rollout_id: the batch.
            weight_version: of the weights.
            trained_at: seconds since the epoch.
            live_at: seconds since the epoch.
            person: whose adapter the step trained; None: everybody's weights.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO steps (rollout_id, weight_version, trained_at, live_at, person) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (rollout_id, str(weight_version), trained_at, live_at, person),
            )

    def person_of(self, rollout_id: int) -> str | None:
        """Return the person whose samples a batch has, or had when its step was refused; None if there is not just one."""
        rows = self._database.rows(
            "SELECT DISTINCT person FROM samples WHERE rollout_id = ? AND (state IN ('leased', 'trained')"
            f" OR (state = 'dropped' AND reason IN ({', '.join('?' for _ in OF_STEPS)})))",
            (rollout_id, *OF_STEPS),
        )
        return rows[0]["person"] if len(rows) == 1 else None

    def as_usual(self, rollout_id: int) -> bool:
        """Return whether each reward of a leased batch equals its baseline, so that a comparison leaves no advantage of it."""
        rows = self._database.rows(
            "SELECT json_extract(sample, '$.reward') = json_extract(sample, ?) AS equal FROM samples"
            " WHERE rollout_id = ? AND state = 'leased'",
            (f"$.metadata.{BASELINE}", rollout_id),
        )
        return bool(rows) and all(row["equal"] for row in rows)

    def earlier_rewards(self, owner: str, role: str, limit: int) -> list[float]:
        """Return the last rewards that an owner gave in a role, as `ReactionReward` has them, newest first."""
        return [row["baseline_reward"] for row in self._database.rows(OF_OWNER, (owner, role, limit))]

    def rewards_of_others(self, owner: str, role: str, limit: int) -> list[float]:
        """Return those of the last ``limit`` rewards of a role that other owners gave, newest first."""
        rows = self._database.rows(OF_ALL, (role, limit))
        return [row["baseline_reward"] for row in rows if row["baseline_owner"] != owner]

    def live_weight_version(self, person: str | None = None) -> str | None:
        """Return the weight version of the last live step, None before the first; with ``person``, of this person's adapter."""
        live = self.live_update(person)
        return live[0] if live else None

    def live_update(self, person: str | None = None) -> tuple[str, float] | None:
        """Return the weight version of the last live step and since when it is live; None before the first.

        With ``person``, of this person's adapter; without, of everybody's weights.
        """
        rows = self._database.rows(
            "SELECT weight_version, live_at FROM steps WHERE undone_at IS NULL AND person IS ? ORDER BY number DESC LIMIT 1",
            (person,),
        )
        return (rows[0]["weight_version"], rows[0]["live_at"]) if rows else None

    def feedback_to_live_seconds(self) -> list[float]:
        """Return the seconds from feedback to live weights for each sample of a reply whose step is live."""
        rows = self._database.rows(
            "SELECT steps.live_at - turns.next_state_at AS seconds FROM samples"
            " JOIN turns ON turns.id = samples.turn_id JOIN steps ON steps.rollout_id = samples.rollout_id"
            " WHERE samples.state IN ('leased', 'trained') AND samples.origin = 'live' AND steps.undone_at IS NULL"
            " AND turns.next_state_at IS NOT NULL ORDER BY samples.id"
        )
        return [row["seconds"] for row in rows]

    def forgotten_count(self) -> int:
        """Return the number of deleted samples."""
        return self._database.rows("SELECT COUNT(*) AS n FROM forgotten_samples")[0]["n"]
