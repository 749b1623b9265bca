"""Builds the report of a run: reads, counts, draws, and fills the page.

Guarantees: with an owner, the page has nothing that comes from another owner's conversations: no metrics of whole batches, no
faults, no settings. Everything on the page is escaped. The page loads nothing, and its content policy forbids it to.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from openclaw.messages.preview import harmless
from openclaw.report import sections
from openclaw.report.curves import latency_chart, liked_chart, metric_charts, wanted
from openclaw.report.examples import pairs
from openclaw.report.svg import draw
from openclaw.report.totals import Totals, count
from openclaw.runs.folder import RunFolder
from openclaw.runs.metrics_file import read_series

ANSWERS = {"better": "Yes", "worse": "No, worse", "open": "Not shown", "unknown": "Unknown"}


@dataclass(frozen=True)
class Report:
    """The page, and the sentence that answers whether the run learns."""

    page: str
    sentence: str


def build(run: RunFolder, owner: str | None = None) -> Report:
    """Return the report of a run, or of one owner's part of it.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    with closing(run.open_ledger()) as ledger:
        totals = count(ledger.views.turn_facts(owner), ledger.views.sample_facts(owner))
        series = {} if owner is not None else read_series(run.metrics_path, _wanted)
        charts = [chart for chart in (liked_chart(totals.learning), latency_chart(totals)) if chart]
        gate, decisions = sections.decisions(ledger) if owner is None else ({}, [])
        values = {
            "totals": totals,
            "charts": [(chart, draw(chart)) for chart in [*charts[:1], *metric_charts(series), *charts[1:]]],
            "pairs": pairs(ledger, totals.firsts),
            "reasons": sections.reason_rows(totals.reasons, totals.sessions),
            "versions": sections.versions(ledger, totals),
            "updates": ledger.views.step_count(),
            "gate": gate,
            "decisions": decisions,
            "faults": sections.faults(run, ledger, totals, series) if owner is None else [],
            "episodes": sections.episodes(ledger, owner),
            "settings": sections.settings(run) if owner is None else [],
        }
    return Report(_page(run, owner, totals, values), totals.learning.sentence)


def _wanted(name: str) -> bool:
    return wanted(name) or name in sections.FAULT_METRICS


def _page(run: RunFolder, owner: str | None, totals: Totals, values: dict[str, Any]) -> str:
    folder = files(__package__ or "openclaw.report")
    style = (folder / "style.css").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_plain, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"clock": _clock, "share": _share}
    template = environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        run=run,
        owner=owner,
        answer=ANSWERS[totals.learning.verdict],
        learning=totals.learning,
        facts=_facts(totals.learning.sentence),
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        made_at=datetime.now().timestamp(),
        **values,
    )


def _facts(sentence: str) -> str:
    """Return the sentence without the answer that it begins with, which stands above it."""
    answer, _, facts = sentence.partition(": ")
    return f"{facts[0].upper()}{facts[1:]}" if facts and not answer.startswith("Nobody") else sentence


def _plain(value: Any) -> Any:
    """Return a text without control characters, before it is escaped; everything else unchanged."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _clock(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
