"""The report of the personalisation benchmark: Markdown with tables, verdicts beside the paper's figures, and two plots."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.personal_parts.figures import (
    COUNTED,
    COUNTED_WITH_LESSONS,
    Mean,
    Records,
    Sessions,
    Share,
    complaints,
    fewer,
    sessions,
    share,
    updates,
)
from benchmarks.personal_parts.matrix import BASE, JOINT, TITLES, Arm

PAPER_SESSIONS = {"hybrid": 10.3, "rl": 14.1, "opd": 29.7}
"""Sessions, joint average of three users (OpenClaw-RL, arXiv 2603.10165v2); Binary RL is what it calls GRPO."""
PAPER_SCORES = {
    BASE: {0: 0.17},
    "rl": {8: 0.25, 16: 0.23},
    "opd": {8: 0.25, 16: 0.72},
    "combine": {8: 0.76, 16: 0.81},
}
"""Personalisation scores after so many updates (arXiv 2603.10165v1)."""
COMPARED = [(one, other) for one in ("hybrid", "combine") for other in ("rl", "opd")]
NOT_RUN = "not run"
WIDTH = 100

DIFFERENCES = (
    "The model has 0.95M parameters and knows arithmetic word problems only. It is its own judge, frozen.",
    "The paper's three users are a student (no bold text, lists and boxes), a TA (100 tokens or more) and a teacher (praise). "
    "A tiny model cannot write 100 tokens or praise, so other rules stand in for these two.",
    "A session has the user's number of turns, here 3, of which the last one is not trained. An update takes the method's "
    "batch (16 samples, OPD 8), so eight sessions pass before the first update, and 30 sessions of two users hold about seven. "
    "Sessions of the paper may be longer.",
    "Each session begins only after the run has learned from the one before, so no figure depends on the machine's speed.",
    "A learning rate of 3e-4 and a KL weight of 0.2 fit the tiny model (OPD: 1e-4 and 0.1); the paper has 1e-5.",
    "The users of a joint model ask the same kind of question, so it cannot tell them apart before they react.",
    "The base follows a rule in about a fifth of its replies, so three liked replies in a row also come by chance.",
    "The base starts from another score than the paper's, so compare the order of methods, not the numbers.",
)


@dataclass(frozen=True)
class Asked:
    """What a report covers: the benchmark's options, and the records by name."""

    records: Records
    methods: Sequence[str]
    users: Sequence[str]
    forms: Sequence[str]
    seeds: Sequence[int]
    after: Sequence[int]
    ablations: Mapping[str, Sequence[Arm]]
    personal: Sequence[Arm]
    machine: Mapping[str, Any]


def markdown(asked: Asked, plots: Mapping[str, str]) -> str:
    """Return the report; ``plots``: title of each picture and its path as the report names it."""
    pictures = [f"![{title}]({path})" for title, path in plots.items()]
    done = list(asked.records.values())
    loads = [record["load_average"]["end"] for record in done]
    seconds = [record["seconds"]["total"] for record in done]
    lines = [
        "# Personalisation",
        "",
        *_wrapped(
            f"{len(done)} runs with the users {', '.join(asked.users)} and the seeds {', '.join(map(str, asked.seeds))}, on "
            f"{asked.machine['cpu']} with {asked.machine['cores']} cores. "
            + (
                f"A run took {min(seconds):.0f} to {max(seconds):.0f} s; the load average at its end was {min(loads)} to "
                f"{max(loads)}."
                if done
                else ""
            )
        ),
        *_homework(done),
        "",
        "## Sessions until the rule is followed",
        "",
        *_wrapped(
            "Sessions of a user up to and including the third in a row whose first replies follow its rule; lower is "
            "better. Mean over users and seeds; brackets: bootstrap over seeds, 95 %. The paper's figures are joint averages "
            "of three users."
        ),
        "",
        *_sessions_table(asked),
        "",
        *_wrapped("Does the row's first method need fewer sessions than the second? Joint, paired by seed:"),
        "",
        *_verdicts(asked),
        "",
        "## Scores of first replies",
        "",
        *_wrapped(
            "Share of first replies to held-out problems that the user likes; higher is better. Brackets: Wilson over "
            "problems, 95 %, which leave out how much seeds differ. *Right* is the share whose last number is the answer."
        ),
        "",
        *_scores_table(asked),
        "",
        *pictures,
        *([""] if pictures else []),
        *_personal(asked),
        *_ablations(asked),
        "## What differs from the paper",
        "",
        *[line for text in DIFFERENCES for line in _wrapped(text, "- ")],
    ]
    return "\n".join(lines) + "\n"


def rows(asked: Asked) -> list[list[str]]:
    """Return the table of sessions without its head, for a terminal as well."""
    found = []
    for method in asked.methods:
        cells = [told(sessions(asked.records, method, form, asked.users, asked.seeds)) for form in asked.forms]
        found.append([TITLES.get(method, method), *cells, str(PAPER_SESSIONS.get(method, "-"))])
    return found


def told(figure: Sessions | Share | Mean | None) -> str:
    """Return a cell of a table."""
    return figure.told if figure else NOT_RUN


def _sessions_table(asked: Asked) -> list[str]:
    return _table(["method", *asked.forms, "paper, joint"], rows(asked))


def _scores_table(asked: Asked) -> list[str]:
    head = ["method", "form", *(f"after {n}" for n in (0, *asked.after)), f"right after {max(asked.after, default=0)}"]
    head += [f"paper after {n}" for n in asked.after]
    found = []
    for method in asked.methods:
        for form in asked.forms[:1] if method == BASE else asked.forms:
            key = (asked.records, method, form, asked.users, asked.seeds)
            after = () if method == BASE else asked.after
            scores = [told(share(*key, 0)), *(told(share(*key, n)) for n in after)]
            scores += ["-"] * (len(asked.after) - len(after))
            right = told(share(*key, max(after, default=0), "right"))
            paper = PAPER_SCORES.get(method, {})
            found.append(
                [
                    *(TITLES.get(method, method), "both" if method == BASE else form, *scores, right),
                    *(str(paper.get(n, paper.get(0, "-"))) for n in asked.after),
                ]
            )
    return _table(head, found)


PERSONAL_HEAD = (
    "users",
    "sessions",
    "complaints",
    "liked before",
    "after, without lessons",
    "after, with lessons",
    "right numbers: before, without lessons, with lessons",
    "updates at the gate",
)


def personal_rows(asked: Asked) -> list[list[str]]:
    """Return the table of the personal arms without its head, for a terminal as well."""
    found = []
    for arm in asked.personal:
        for form in asked.forms:
            key = (asked.records, arm.method, form, asked.users, asked.seeds)
            liked = [told(share(*key, after, arm=arm.name)) for after in (0, COUNTED, COUNTED_WITH_LESSONS)]
            right = [share(*key, after, "right", arm.name) for after in (0, COUNTED, COUNTED_WITH_LESSONS)]
            decided = updates(*key, arm.name)
            found.append(
                [
                    *(TITLES[arm.name], form),
                    *(told(figure(*key, arm.name)) for figure in (sessions, complaints)),
                    *(*liked, ", ".join(f"{each.mean:.2f}" if each else NOT_RUN for each in right)),
                    decided.told if decided else "no gate",
                ]
            )
    return found


def _personal(asked: Asked) -> list[str]:
    if not asked.personal:
        return []
    text = (
        "A key for each user. Sessions until three first replies in a row follow the rule: 3 at least, 4 after a complaint. "
        "Complaints are those of these sessions. After them first replies to held-out problems are scored, without lessons "
        "(the weights alone) and with the user's lessons. An update fell if its margin of users' opinions is one that the gate "
        "refuses; of some updates there are too few opinions to tell one."
    )
    table = _table(["what learns", *PERSONAL_HEAD], personal_rows(asked))
    return ["## From the first complaint on", "", *_wrapped(text), "", *table, ""]


def _verdicts(asked: Asked) -> list[str]:
    found = []
    for one, other in COMPARED:
        both = [sessions(asked.records, method, JOINT, asked.users, asked.seeds) for method in (one, other)]
        paper = [PAPER_SESSIONS.get(method) for method in (one, other)]
        said = f"yes: {paper[0] - paper[1]:+.1f}" if paper[0] and paper[1] else "not stated"
        found.append([f"{TITLES[one]}, {TITLES[other]}", fewer(*both), said])
    return _table(["methods", "here", "paper"], found)


def _ablations(asked: Asked) -> list[str]:
    lines: list[str] = []
    form = asked.forms[0]
    users = asked.users if form == JOINT else asked.users[:1]
    last = max(asked.after, default=0)
    for name, arms in asked.ablations.items():
        found = []
        for arm in arms:
            key = (asked.records, arm.method, form, users, asked.seeds)
            found.append(
                [arm.name, TITLES[arm.method], told(sessions(*key, arm.name)), told(share(*key, last, arm=arm.name))]
            )
        lines += [
            f"## Ablation: {name}",
            "",
            *_table(["setting", "method", "sessions", f"score after {last}"], found),
            "",
        ]
    return lines


def _homework(done: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = sorted({f"homework: {record['homework']}; reactions: {record['reactions']}" for record in done})
    return ["", *[line for kind in kinds for line in _wrapped(kind.capitalize() + ".")]] if kinds else []


def _table(head: Sequence[str], found: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *found)]


def _wrapped(text: str, mark: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))


def write_report(asked: Asked, path: Path) -> None:
    """Write the report and its plots beside it; plots need matplotlib."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plots: dict[str, str] = {}
    draw: dict[str, Callable[[Asked, Path], bool]] = {"sessions": draw_sessions, "scores": draw_scores}
    for name, function in draw.items():
        picture = path.with_name(f"{path.stem}_{name}.png")
        if function(asked, picture):
            plots[f"{name} by method"] = os.path.relpath(picture, path.parent)
    path.write_text(markdown(asked, plots))


def draw_sessions(asked: Asked, path: Path) -> bool:
    """Draw the sessions of each method with intervals, and the paper's; return whether there was anything to draw."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4))
    drawn = False
    for at, form in enumerate(asked.forms):
        for place, method in enumerate(asked.methods):
            found = sessions(asked.records, method, form, asked.users, asked.seeds)
            if found is None:
                continue
            bounds = (
                [[found.mean - found.low], [found.high - found.mean]] if found.low is not None and found.high else None
            )
            label = form if not axes.get_legend_handles_labels()[1].count(form) else None
            axes.bar(place + 0.35 * at, found.mean, 0.35, yerr=bounds, color=f"C{at}", label=label, capsize=3)
            drawn = True
    for place, method in enumerate(asked.methods):
        if method in PAPER_SESSIONS:
            axes.plot(place + 0.17, PAPER_SESSIONS[method], "kD", label=None if place else "paper")
    axes.set_xticks([place + 0.17 for place in range(len(asked.methods))], [TITLES.get(m, m) for m in asked.methods])
    axes.set(ylabel="sessions until followed", title="lower is better; diamonds: the paper, joint")
    return _save(pyplot, figure, axes, path, drawn)


def draw_scores(asked: Asked, path: Path) -> bool:
    """Draw the scores over updates in the first form; return whether there was anything to draw."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4))
    drawn, form = False, asked.forms[0]
    for method in asked.methods:
        key = (asked.records, method, form, asked.users, asked.seeds)
        found = {n: value for n in (0, *asked.after) if (value := share(*key, n))}
        if not found:
            continue
        low = [value.mean - value.interval[0] for value in found.values()]
        high = [value.interval[1] - value.mean for value in found.values()]
        means = [value.mean for value in found.values()]
        axes.errorbar(list(found), means, yerr=[low, high], marker="o", capsize=3, label=TITLES.get(method, method))
        drawn = True
    axes.set(xlabel="updates", ylabel="liked first replies", ylim=(-0.02, 1.02), title=f"held-out problems, {form}")
    return _save(pyplot, figure, axes, path, drawn)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, axes: Any, path: Path, drawn: bool) -> bool:
    if drawn:
        axes.legend()
        figure.tight_layout()
        figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return drawn
