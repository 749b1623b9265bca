"""The report of a run: JSON, a plot and a table."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from lab.tiny_learning.outcomes import Outcome, Outcomes, percent, share, transcript
from lab.tiny_learning.training import Plan

Report = dict[str, Any]


def make(plan: Plan, outcomes: Outcomes, seconds: float) -> Report:
    """Return the report of a run that has ended."""
    before, after = outcomes.evaluated(last=False), outcomes.evaluated(last=True)
    tasks, trained = plan.tasks, outcomes.trained
    report: Report = {
        "task": tasks.name,
        "seed": plan.seed,
        "updates": plan.updates,
        "process_reward": plan.process_reward,
        "group_judge": plan.group_judge,
        "heldout_episodes": len(after),
        "success_before": share(before),
        "success_after": share(after),
        "unseen_family": tasks.unseen,
        "families": {
            family: {
                "before": share([each for each in before if each.of([family])]),
                "after": share([each for each in after if each.of([family])]),
                "episodes": sum(each.of([family]) for each in after),
            }
            for family in tasks.families
        },
        "episodes": len(trained),
        "infrastructure_failures": outcomes.lost,
        "trained_tokens": sum(each.tokens for each in trained),
        "curve": curve(trained, plan.batch),
        "judge": judge_figures(trained) if plan.process_reward else None,
        "warm_start": plan.model.name,
        "example": example(plan.folder, before, after),
        "seconds_total": round(seconds, 1),
    }
    return report


def curve(trained: list[Outcome], batch: int) -> list[float | None]:
    """Return the share of solved training episodes of each update."""
    return [share(trained[start : start + batch]) for start in range(0, len(trained), batch)]


def judge_figures(trained: list[Outcome]) -> Report:
    """Return what the judge did, and its mean scores of episodes that the verifier found solved and not solved."""
    means = {
        solved: [statistics.fmean(each.scores) for each in trained if each.scores and each.solved == solved]
        for solved in (True, False)
    }
    return {
        "steps": sum(len(each.scores) for each in trained),
        "votes": sum(each.votes[1] for each in trained),
        "valid_votes": sum(each.votes[0] for each in trained),
        "mean_score_solved": round(statistics.fmean(means[True]), 4) if means[True] else None,
        "mean_score_failed": round(statistics.fmean(means[False]), 4) if means[False] else None,
    }


def example(folder: Path, before: list[Outcome], after: list[Outcome]) -> dict[str, str] | None:
    """Return what was said on a held-out task that was solved only after training; otherwise on the first one."""
    failed = {each.task: each.name for each in before if not each.solved}
    pairs = [(failed[each.task], each) for each in after if each.solved and each.task in failed]
    if not pairs:
        at_first = {each.task: each.name for each in before}
        pairs = [(at_first[each.task], each) for each in after if each.task in at_first]
    if not pairs:
        return None
    first, last = pairs[0]
    return {"task": last.task, "before": transcript(folder, first), "after": transcript(folder, last.name)}


def show(report: Report, console: Console) -> None:
    """Print the example and the table."""
    if report["example"]:
        asked, before, after = apart(report["example"]["before"], report["example"]["after"])
        if asked:
            console.print(Panel(asked, title=f"held-out task {report['example']['task']}"))
        console.print(Panel(before, title="before training", border_style="red"))
        console.print(Panel(after, title="after", border_style="green"))
    kind = "outcome and process reward" if report["process_reward"] else "outcome reward"
    kind = "group judge's reward" if report["group_judge"] else kind
    table = Table(
        "solved, held-out tasks", "before", "after", title=f"{report['task']}: {report['updates']} updates, {kind}"
    )
    rows = [("all", report["success_before"], report["success_after"])]
    for family, found in report["families"].items():
        name = f"{family} (not trained)" if family == report["unseen_family"] else family
        rows.append((name, found["before"], found["after"]))
    for name, *values in rows:
        table.add_row(name, *map(percent, values))
    console.print(table)
    console.print(
        f"{report['episodes']} episodes and {report['trained_tokens']} tokens trained, "
        f"{report['infrastructure_failures']} lost to the infrastructure; {report['seconds_total']:.0f} s in all"
    )


def apart(before: str, after: str) -> tuple[str, str, str]:
    """Return the lines that two transcripts begin with, and what is left of each."""
    left, right = before.splitlines(), after.splitlines()
    same = next((n for n, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 0)
    return "\n".join(left[:same]), "\n".join(left[same:]), "\n".join(right[same:])


def save_plot(report: Report, path: Path) -> None:
    """Draw the share of solved training episodes over updates, and the held-out tasks at both ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(range(len(report["curve"])), report["curve"], label="training episodes")
    ends = [0, report["updates"]]
    axes.plot(ends, [report["success_before"], report["success_after"]], "o", label="held-out tasks")
    unseen = report["families"][report["unseen_family"]]
    axes.plot(ends, [unseen["before"], unseen["after"]], "s", label=f"{report['unseen_family']} (not trained)")
    axes.set(xlabel="updates", ylabel="solved", ylim=(-0.02, 1.02), title=report["task"])
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
