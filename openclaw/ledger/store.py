"""The ledger: one SQLite file that holds every turn, verdict, sample and step of a run.

Guarantees: every method of its parts commits before it returns, and methods called inside `Ledger.transaction` commit
together. `kill -9` of any process at any moment leaves a consistent file. The runtime process writes turns, next states and
verdicts, while the rollout manager writes leases and steps. Methods are synchronous: call them from asyncio through
``asyncio.to_thread``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw.ledger.copying import Transfer
from openclaw.ledger.database import Database
from openclaw.ledger.decisions import Decisions
from openclaw.ledger.episodes import Episodes
from openclaw.ledger.feedback import FeedbackLog
from openclaw.ledger.judging import Judging
from openclaw.ledger.lessons import Lessons
from openclaw.ledger.logs import Logs
from openclaw.ledger.practice import Practices
from openclaw.ledger.probes import Probes
from openclaw.ledger.responses import Responses
from openclaw.ledger.samples import Samples
from openclaw.ledger.sessions import Sessions
from openclaw.ledger.turns import Pictures, Turns
from openclaw.ledger.usage import Usage
from openclaw.ledger.views import Views
from openclaw.ledger.waiting import Waiting

if TYPE_CHECKING:
    from openclaw.privacy.redactor import Redactor


class Ledger:
    """A handle on a ledger file; each part has the methods of one user.

    Attributes:
        database: connection, clock and redaction.
        turns: the gateway records replies and next states.
        pictures: of prompts.
        feedback: people's opinions on replies.
        sessions: conversations, their end and deletion.
        lessons: people's standing wishes.
        judging: what the judge worker reads and commits.
        samples: what the trainer claims, and its steps.
        waiting: what waits for a step, and whose.
        practices: rounds that move lessons into the weights.
        episodes: agents' runs.
        decisions: of the gate.
        probes: turns on which the gate compares weights.
        responses: that clients may ask for again.
        logs: turns that came as text.
        transfer: to and from other ledgers.
        usage: meters of tokens, by owner and day.
        views: for reports, commands and clients.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from lab.testkit.ledger_records import make_turn
        >>> from openclaw.ledger.records import Verdict
        >>> from slime.utils.types import Sample
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")

        The gateway records a reply, and then the message that follows it:

        >>> turn = ledger.turns.record(make_turn("chatcmpl-1")) or ledger.turns.get("chatcmpl-1")
        >>> _ = ledger.turns.record_next_state(turn.id, [{"role": "user", "content": "thanks"}], at=3.0)

        The judge reads what is pending, and commits its verdict with a sample:

        >>> [pending] = ledger.judging.pending(limit=1)
        >>> ids = pending.turn.response_ids
        >>> sample = Sample(tokens=pending.turn.prompt_ids + ids, response_length=len(ids), reward=1.0)
        >>> sample.loss_mask, sample.rollout_log_probs = [1] * len(ids), pending.turn.response_logprobs
        >>> ledger.judging.record(turn.id, Verdict(score=1), [sample], reason=None)

        The trainer claims a batch, and marks it as trained once a checkpoint holds the step:

        >>> [claimed] = ledger.samples.claim(rollout_id=0, count=1)
        >>> claimed.reward, ledger.samples.mark_trained(rollout_id=0)
        (1.0, 1)
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(
        self, path: str | Path, clock: Callable[[], float] = time.time, redaction: Redactor | None = None
    ) -> None:
        """Open the ledger at ``path``, creating or migrating the file; see `Database`."""
        self.database = database = Database(path, clock, redaction)
        self.turns = Turns(database)
        self.pictures = Pictures(database)
        self.feedback = FeedbackLog(database, self.turns)
        self.lessons = Lessons(database)
        self.sessions = Sessions(database, self.turns, self.lessons)
        self.judging = Judging(database, self.turns, self.feedback)
        self.samples = Samples(database)
        self.waiting = Waiting(database)
        self.practices = Practices(database)
        self.episodes = Episodes(database, self.pictures)
        self.decisions = Decisions(database)
        self.probes = Probes(database)
        self.responses = Responses(database)
        self.logs = Logs(database, self.turns, self.judging)
        self.transfer = Transfer(database, self.turns, self.feedback, self.sessions)
        self.usage = Usage(database)
        self.views = Views(database)

    @property
    def path(self) -> Path:
        """The file."""
        return self.database.path

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run the body as one atomic write transaction, see `Database.transaction`."""
        return self.database.transaction()

    def close(self) -> None:
        """Close the connection."""
        self.database.close()
