"""The pictures beside the report: scores with their intervals, and the seconds per problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.figures import grouped, suite_figures
from evaluation.report import Report

SCORES, LATENCY = "scores.png", "latency.png"


def save_plots(report: Report, folder: Path) -> list[str]:
    """Draw both pictures and return their names; none without results."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = [
        (name, grouped(model.records, "suite")) for name, model in zip(("this", "other"), report.models, strict=False)
    ]
    suites = list(dict.fromkeys(suite for _, result in models for suite in result))
    if not suites:
        return []
    for name, draw in ((SCORES, _scores), (LATENCY, _latency)):
        figure, axes = pyplot.subplots(figsize=(7, 1.2 + 0.6 * len(suites)))
        draw(axes, models, suites)
        axes.set_yticks(range(len(suites)), suites)
        axes.invert_yaxis()
        if len(models) > 1:
            axes.legend(loc="best")
        figure.tight_layout()
        figure.savefig(folder / name, dpi=120)
        pyplot.close(figure)
    return [SCORES, LATENCY]


def _places(models: list[Any], number: int, suites: list[str]) -> list[float]:
    """Return the height of each suite for a model."""
    return [place + (number - (len(models) - 1) / 2) * 0.3 for place in range(len(suites))]


def _scores(axes: Any, models: list[Any], suites: list[str]) -> None:
    for number, (name, model) in enumerate(models):
        rows = [
            (place, suite_figures(model[suite]))
            for place, suite in zip(_places(models, number, suites), suites, strict=True)
            if suite in model
        ]
        scores = [row["score"] for _, row in rows]
        below = [max(0.0, row["score"] - row["low"]) for _, row in rows]
        above = [max(0.0, row["high"] - row["score"]) for _, row in rows]
        axes.errorbar(scores, [place for place, _ in rows], xerr=[below, above], fmt="o", capsize=4, label=name)
    axes.set(xlabel="share of problems solved, with 95 % interval", xlim=(-0.02, 1.02))


def _latency(axes: Any, models: list[Any], suites: list[str]) -> None:
    for number, (name, model) in enumerate(models):
        for place, suite in zip(_places(models, number, suites), suites, strict=True):
            seconds = sorted(item.seconds for item in model.get(suite, ()))
            label = name if suite == next(iter(model), None) else None
            axes.plot(seconds, [place] * len(seconds), "|", color=f"C{number}", markersize=9, label=label)
    axes.set(xlabel="seconds of waiting per problem")
