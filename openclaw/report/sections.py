"""The report's tables: reasons, versions, faults, episodes and settings, as rows for the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from openclaw.ledger.store import Ledger
from openclaw.ledger.views import belongs
from openclaw.report.totals import Totals
from openclaw.runs.folder import RunFolder
from openclaw.runs.metrics_file import Series
from openclaw.runs.reasons import NOTHING, explain
from slime.args import Arguments
from slime.tracking.redact import is_secret

MOST_ROWS = 20
MAX_SETTINGS = 200
NO_ANSWER = "no_next_state"
LAST_REPLY = "Nothing followed the reply. Every conversation has a last reply, so this is as it should be."
NUMBER = re.compile(r"\d+(?:\.\d+)?")
USER_OF_A_URL = re.compile(r"//[^/@\s]*@")


class ReasonRow(NamedTuple):
    """How often something was not trained for a reason, with the reason in words."""

    name: str
    number: int
    sentence: str
    remedy: str


class Version(NamedTuple):
    """A version of the weights: which step made it, of how many samples, and since when it serves."""

    version: str
    step: int
    samples: int
    live_at: float


class Decisions(NamedTuple):
    """What the gate decided alike about batches in a row; version, reason and time are those of the last."""

    first: int
    last: int
    kind: str
    weight_version: str
    why: str
    decided_at: float

    @property
    def batches(self) -> str:
        """The batches as a reader sees them."""
        return str(self.last) if self.first == self.last else f"{self.first} to {self.last}"


class Episodes(NamedTuple):
    """What became of the episodes: how they ended, why some gave nothing, and their mean reward early and late."""

    number: int
    ends: list[tuple[str, int]]
    reasons: list[ReasonRow]
    early: float | None
    late: float | None


def reason_rows(reasons: Counter[str], sessions: int = 0) -> list[ReasonRow]:
    """Return the reasons, the most frequent first; nothing need be done about the last reply of each of the sessions."""
    rows = [ReasonRow(name, count, *explain(name)) for name, count in reasons.most_common()]
    return [
        row._replace(sentence=LAST_REPLY, remedy=NOTHING) if row.name == NO_ANSWER and row.number <= sessions else row
        for row in rows
    ]


def versions(ledger: Ledger, totals: Totals) -> list[Version]:
    """Return the newest versions, newest first; ``samples`` counts those of ``totals``."""
    newest = ledger.views.newest_steps(MOST_ROWS)
    return [
        Version(step.weight_version, step.rollout_id, totals.rollouts[step.rollout_id], step.live_at) for step in newest
    ]


def decisions(ledger: Ledger) -> tuple[Counter[str], list[Decisions]]:
    """Return how often the gate decided what, and its newest decisions, newest first.

    Decisions in a row that differ by the numbers in their reason only are one row.
    """
    gate_decisions = ledger.views.gate_decisions()
    rows: list[Decisions] = []
    for gate_decision in reversed(gate_decisions):
        newer = rows[-1] if rows else None
        if newer and (newer.kind, NUMBER.sub("", newer.why)) == (gate_decision.kind, NUMBER.sub("", gate_decision.why)):
            rows[-1] = newer._replace(first=gate_decision.rollout_id)
        elif len(rows) == MOST_ROWS:
            break
        else:
            rows.append(
                Decisions(
                    gate_decision.rollout_id,
                    gate_decision.rollout_id,
                    gate_decision.kind,
                    gate_decision.weight_version,
                    gate_decision.why,
                    gate_decision.decided_at,
                )
            )
    return Counter(gate_decision.kind for gate_decision in gate_decisions), rows


def faults(run: RunFolder, ledger: Ledger, totals: Totals, series: Mapping[str, Series]) -> list[tuple[str, str]]:
    """Return what went wrong, as (what, how much)."""
    error, note = ledger.views.judge_error(), run.paused
    lost = {name: totals.reasons[name] for name in ("judge_gave_up", "judge_refused", "no_quorum", "stale", "fuse")}
    results = [
        ("training is paused", str(note) if note else ""),
        ("turns that the judge fails on now", str(error) if error else ""),
        ("restarts of the runtime process", _last(series, "openclaw/runtime_restarts")),
        ("of them, of a frozen one", _last(series, "openclaw/runtime_frozen")),
        ("steps that a fuse held back", _sum(series, "train/fuse_held")),
        ("steps that were skipped", _sum(series, "train/skipped_steps")),
        *((f"not trained: {name}", str(count or "")) for name, count in lost.items()),
    ]
    return [(what, much) for what, much in results if much]


FAULT_METRICS = ("openclaw/runtime_restarts", "openclaw/runtime_frozen", "train/fuse_held", "train/skipped_steps")


def _last(series: Mapping[str, Series], name: str) -> str:
    values = list(series.get(name, {}).values())
    return f"{values[-1]:.0f}" if values and values[-1] else ""


def _sum(series: Mapping[str, Series], name: str) -> str:
    total = sum(series.get(name, {}).values())
    return f"{total:.0f}" if total else ""


def episodes(ledger: Ledger, owner: str | None) -> Episodes | None:
    """Return what became of the episodes of an owner (of everybody: None); None if there are none."""
    results = [item for item in ledger.episodes.all() if belongs(f"@{item.owner}:", owner)]
    if not results:
        return None
    rewards = [result.reward for result in results if result.reward is not None]
    third = len(rewards) // 3
    reasons = Counter(result.reason for result in results if result.reason is not None)
    return Episodes(
        len(results),
        Counter(result.status or result.state for result in results).most_common(),
        reason_rows(reasons),
        fmean(rewards[:third]) if third else None,
        fmean(rewards[-third:]) if third else None,
    )


def settings(run: RunFolder) -> list[tuple[str, str]]:
    """Return the settings that differ from their defaults, without secrets and without users in URLs."""
    defaults = vars(Arguments())
    flags = {
        name: value for name, value in run.arguments.items() if not is_secret(name) and value != defaults.get(name)
    }
    shown = [
        *sorted((run.settings or {}).items()),
        *((f"--{name.replace('_', '-')}", value) for name, value in sorted(flags.items())),
    ]
    return [(name, USER_OF_A_URL.sub("//***@", _text(value))) for name, value in shown[:MAX_SETTINGS]]


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
