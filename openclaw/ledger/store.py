"""The ledger: one SQLite file that holds every turn, verdict, sample and step of a run.

Guarantees: every method commits before it returns. `kill -9` of any process at any moment leaves a consistent file. The
runtime process writes turns, next states and verdicts, while the rollout manager writes leases and steps. Methods are
synchronous: call them from asyncio through ``asyncio.to_thread``.

The methods are grouped by who calls them: `openclaw.ledger.turns`, `openclaw.ledger.feedback`, `openclaw.ledger.graph`,
`openclaw.ledger.samples`, `openclaw.ledger.outcome`, `openclaw.ledger.reports`, `openclaw.ledger.forget`,
`openclaw.ledger.transfer`, `openclaw.ledger.episodes`, `openclaw.ledger.episode_groups`, `openclaw.ledger.logs`,
`openclaw.ledger.probes`, `openclaw.ledger.decisions`, `openclaw.ledger.served_turns` and `openclaw.ledger.pictures`.
"""

from __future__ import annotations

from openclaw.ledger.episode_groups import EpisodeGroupQueries
from openclaw.ledger.forget import ForgetQueries
from openclaw.ledger.graph import GraphQueries
from openclaw.ledger.logs import LogQueries
from openclaw.ledger.outcome import OutcomeQueries
from openclaw.ledger.pictures import PictureQueries
from openclaw.ledger.probes import ProbeQueries
from openclaw.ledger.reports import ReportQueries
from openclaw.ledger.rollbacks import RollbackQueries
from openclaw.ledger.samples import SampleQueries
from openclaw.ledger.served_turns import ServedTurnQueries
from openclaw.ledger.transfer import TransferQueries


class Ledger(
    TransferQueries,
    GraphQueries,
    SampleQueries,
    OutcomeQueries,
    ReportQueries,
    ForgetQueries,
    EpisodeGroupQueries,
    LogQueries,
    ProbeQueries,
    RollbackQueries,
    ServedTurnQueries,
    PictureQueries,
):
    """``Ledger(path)`` opens the file, creating or migrating it."""
