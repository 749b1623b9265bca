"""The report's charts: liked first replies and judging times from the ledger, everything else from the metrics file."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from openclaw.report.svg import Chart, Line
from openclaw.report.totals import Totals
from openclaw.runs.evidence import Evidence
from openclaw.runs.metrics_file import MISMATCH, MISMATCH_LIMIT, Series

EVALUATION = "eval/"
MAX_EVALUATIONS = 3
LATENCIES = 40


class Metric(NamedTuple):
    """A chart of the metrics file: its title, and its lines by metric."""

    title: str
    lines: Mapping[str, str]
    bound: float | None = None
    note: str = ""


METRICS = (
    Metric("Reward", {"rollout/reward": "after the baseline", "rollout/score": "the judge's score"}),
    Metric("KL", {"train/ppo_kl": "to the policy that sampled", "train/kl_loss": "to the reference model"}),
    Metric("Entropy, nats per token", {"train/entropy_loss": "entropy"}),
    Metric("Reply length, tokens", {"rollout/response_len/mean": "mean", "rollout/response_len/max": "longest"}),
    Metric("Staleness, updates", {"openclaw/staleness_mean": "mean", "openclaw/staleness_max": "largest"}),
    Metric(
        "Trainer against engines, nats per token",
        {MISMATCH: "KL"},
        MISMATCH_LIMIT,
        "Above the dashed line the run warns.",
    ),
    Metric("Waiting for a batch, seconds", {"openclaw/wait_seconds": "wait"}),
)
NAMES = frozenset(name for metric in METRICS for name in metric.lines)


def wanted(name: str) -> bool:
    """Return whether a chart reads a metric."""
    return name in NAMES or (name.startswith(EVALUATION) and name != f"{EVALUATION}step")


def liked_chart(learning: Evidence) -> Chart:
    """Return the chart of liked first replies, with 95 % intervals."""
    windows = learning.windows
    points = [((window.first + window.last) / 2, window.share.value) for window in windows]
    line = Line("liked", points, [window.share.interval for window in windows])
    return Chart("Liked share of judged first replies", "updates", [line], from_to=(0.0, 1.0))


def metric_charts(series: Mapping[str, Series]) -> list[Chart]:
    """Return the charts for which the metrics file has values."""
    charts = [
        Chart(
            metric.title,
            "steps",
            [Line(label, list(series[name].items())) for name, label in metric.lines.items() if name in series],
            bound=metric.bound,
            note=metric.note,
        )
        for metric in METRICS
    ]
    tests = [name for name in sorted(series) if name.startswith(EVALUATION)][:MAX_EVALUATIONS]
    charts.append(Chart("Evaluation sets", "steps", [Line(name, list(series[name].items())) for name in tests]))
    return [chart for chart in charts if chart]


def latency_chart(totals: Totals) -> Chart:
    """Return the chart of the median seconds to judge a turn, over the judged turns in order."""
    seconds: array[float] = totals.seconds
    size = max(1, -(-len(seconds) // LATENCIES))
    points = [
        (float(start + len(part) / 2), median(part))
        for start in range(0, len(seconds), size)
        if (part := seconds[start : start + size])
    ]
    return Chart("Seconds to judge a turn", "judged turns", [Line("median", points)])
