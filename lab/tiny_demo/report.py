"""The demo's report: a JSON file with fixed names, a table, an example and a plot. Rates are at the serving temperature."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Measurement
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from student import Tally

from groundwork.private_files import write_output
from openclaw.ledger.store import Ledger

Report = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """The measurements before and after training."""

    before: Measurement
    after: Measurement
    gsm8k_before: Measurement | None = None
    gsm8k_after: Measurement | None = None


def ledger_fields(ledger: Ledger) -> Report:
    """Return the ledger's counts of updates, turns and samples."""
    steps, counts, seconds = (
        ledger.views.step_records(),
        ledger.views.counts(),
        ledger.samples.feedback_to_live_seconds(),
    )
    reasons = {name: count for name, count in counts["turn_reasons"].items() if name != "side"}
    for name, count in counts["sample_reasons"].items():
        reasons[name] = reasons.get(name, 0) + count
    return {
        "updates": len(steps),
        "samples_trained": sum(step["samples"] for step in steps),
        "samples_dropped": reasons,
        "samples_by_state": counts["samples"],
        "turns_by_state": counts["turns"],
        "feedback_to_live_seconds_median": round(statistics.median(seconds), 2) if seconds else None,
        "judge_attempts_failed": counts["judge_attempts_failed"],
    }


def measured_fields(measured: Measured) -> Report:
    """Return the rates before and after."""
    before, after = measured.before, measured.after
    fields: Report = {
        "heldout_problems": len(after.replies),
        "rule_rate_before": before.rule_rate,
        "rule_rate_after": after.rule_rate,
        "right_number_rate_before": before.right_number_rate,
        "right_number_rate_after": after.right_number_rate,
        "degenerate_rate_before": before.degenerate_rate,
        "degenerate_rate_after": after.degenerate_rate,
        "weight_version": after.weight_version,
        "example": example(measured),
    }
    if measured.gsm8k_before and measured.gsm8k_after:
        fields["gsm8k_rule_rate_before"] = measured.gsm8k_before.rule_rate
        fields["gsm8k_rule_rate_after"] = measured.gsm8k_after.rule_rate
        fields["gsm8k_problems"] = len(measured.gsm8k_after.replies)
    return fields


def example(measured: Measured) -> dict[str, str]:
    """Return a problem whose reply improved for the user, or the first problem."""
    pairs = list(zip(measured.before.replies, measured.after.replies, strict=True))
    before, after = next(((old, new) for old, new in pairs if new.good and new.right and not old.good), pairs[0])
    return {"question": after.item.question, "before": before.text, "after": after.text}


def traffic_fields(tally: Tally, gateway: dict[str, float], measuring_requests: int, talking_seconds: float) -> Report:
    """Return counts of requests and outcomes; refusals are the larger of both sides' counts."""
    return {
        "sessions": tally.sessions,
        "turns": tally.turns,
        "complaints": tally.complaints,
        "requests_total": tally.requests + measuring_requests,
        "refused_requests": max(tally.refused, int(gateway["refused"])),
        "gateway": gateway,
        "tokens_per_second": round(tally.tokens / talking_seconds, 1),
        "seconds_talking": round(talking_seconds, 1),
        "errors": tally.errors[:5],
    }


def show(report: Report, console: Console) -> None:
    """Print the example and the table."""
    example = report["example"]
    console.print(Panel(example["question"], title="a problem nobody trained on"))
    console.print(Panel(example["before"], title="before", border_style="red"))
    console.print(Panel(example["after"], title="after", border_style="green"))
    console.print("A model of this size writes odd words: it has met the names and endings of several other tastes.")
    title = f"{report['method']}: {report['updates']} updates, {report['samples_trained']} turns trained"
    table = Table("on held-out problems", "before", "after", title=title)
    rule = f"rule of the {report['taste']}"
    rows = [(rule, "rule_rate"), ("right number", "right_number_rate"), ("degenerate", "degenerate_rate")]
    if "gsm8k_rule_rate_after" in report:
        rows.append((f"{rule}, on GSM8K", "gsm8k_rule_rate"))
    for label, name in rows:
        table.add_row(label, f"{report[f'{name}_before']:.0%}", f"{report[f'{name}_after']:.0%}")
    console.print(table)
    median = report["feedback_to_live_seconds_median"]
    judge = f"{report['judge_accuracy_heldout']:.0%}"
    console.print(
        f"A complaint changed the served weights after {median} s (median). {report['refused_requests']} of "
        f"{report['requests_total']} requests were refused. The judge understood {judge} of complaints it was never "
        f"trained on. {report['tokens_per_second']:.0f} tokens/s, {report['seconds_total']:.0f} s in all."
    )


def save(report: Report, path: Path) -> None:
    """Write the report, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, json.dumps(report, indent=1) + "\n")


def save_plot(report: Report, path: Path) -> None:
    """Draw the user's view of first replies over updates, with the measured rates at both ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [point for point in report["history"] if point["recent_rule_rate"] is not None]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(
        [point["update"] for point in points],
        [point["recent_rule_rate"] for point in points],
        label="liked by the user (last 50 first replies)",
    )
    ends = [0, report["updates"]]
    axes.plot(ends, [report["rule_rate_before"], report["rule_rate_after"]], "o", label="rule, held-out problems")
    axes.plot(ends, [report["right_number_rate_before"], report["right_number_rate_after"]], "s", label="right number")
    axes.set(xlabel="updates", ylabel="rate", ylim=(-0.02, 1.02), title=f"openclaw-{report['method']}")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
