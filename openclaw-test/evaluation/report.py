"""The report of an evaluation: `report.json` for programs and `report.md` for people, from the same figures.

Guarantee: what a model or a server wrote is shown as text and nothing else.

Text of others in Markdown: shown as it is, and never more than text.

Guarantees: a reply cannot end its block, make a link, a heading, an image or HTML, mention anybody, or hide characters: controls
and invisible format characters are written as escapes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.figures import ALL, Figures, comparisons, grouped, suite_figures
from evaluation.records import Record
from evaluation.suites import NAMES
from openclaw.messages.text import clip_middle

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_MARKUP = re.compile(r"(?<!\d)\.|\.(?!\d)|_|[^\w .,()='+/;%?-]")
"""What could be markup or make a link: all but letters, digits, a few signs, and points between digits."""
_TICKS = re.compile(r"`+")


def visible(text: str, kept: str = "\n\t") -> str:
    """Return a text whose controls and invisible characters are written as ``\\u{...}``, but those of ``kept``."""
    return "".join(
        f"\\u{{{ord(letter):x}}}" if unicodedata.category(letter) in HIDDEN and letter not in kept else letter
        for letter in text
    )


def block(text: str, limit: int) -> str:
    """Return a text as a code block, with its middle cut out beyond ``limit`` characters."""
    shown = visible(clip_middle(text.replace("\r\n", "\n"), limit))
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def code(text: str, limit: int = 200) -> str:
    """Return a text on one line that may stand in a table; whatever could be markup is a character reference.

    A point between digits stays, as in a number or an address.
    """
    shown = visible(" ".join(clip_middle(text, limit).split()), "") or " "
    return f"<code>{_MARKUP.sub(lambda found: f'&#{ord(found[0])};', shown)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells are ours, or made by `code`."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join("-" if cell is None else str(cell) for cell in line) + " |" for line in lines)


REPORT_JSON, REPORT_MD = "report.json", "report.md"
SHOWN = 1500
"""Characters of a reply in an example."""


@dataclass
class Evaluated:
    """One model: how the report calls it, its results, and the suites that could not run with the reason."""

    name: str
    results: Sequence[Record] = ()
    not_run: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def records(self) -> list[Record]:
        """The results, in the order of suites and problems instead of that of their ends."""
        order = {name: place for place, name in enumerate(NAMES)}
        return sorted(self.results, key=lambda each: (order[each.suite], each.seed, each.number, each.sample))


@dataclass
class Report:
    """Everything that the report says.

    Attributes:
        settings: of the evaluation.
        this: the model.
        other: the one it is compared with, if there is one.
        complete: whether everything that could be asked was.
    """

    settings: Mapping[str, Any]
    this: Evaluated
    other: Evaluated | None = None
    complete: bool = True

    @property
    def models(self) -> list[Evaluated]:
        """The models, this one first."""
        return [self.this, *([self.other] if self.other else [])]


def as_json(report: Report) -> dict[str, Any]:
    """Return the figures; the results themselves are in the files beside it."""
    results: dict[str, Any] = {"settings": dict(report.settings), "complete": report.complete}
    for key, model in zip(("model", "compared"), report.models, strict=False):
        suites = grouped(model.records, "suite")
        results[key] = {
            "name": model.name,
            "not_run": dict(model.not_run),
            "suites": {
                name: {**suite_figures(records), "families": _families(records)} for name, records in suites.items()
            },
            "seconds": round(sum(record.seconds for record in model.records), 1),
        }
    if report.other:
        results["comparison"] = comparisons(report.this.records, report.other.records)
    return results


def as_markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        report: what it is about.
        pictures: names of files beside the page.
    """
    figures = as_json(report)
    parts = [f"# Evaluation of {code(report.this.name)}", _facts(report), "## Scores"]
    for key, model in zip(("model", "compared"), report.models, strict=False):
        parts += [*([f"### {code(model.name)}"] if report.other else []), _scores(figures[key]["suites"])]
        parts += [f"**{name} did not run**: {code(why, 500)}" for name, why in model.not_run.items()]
    parts.append(
        "A score is the share of problems solved. Its interval is Wilson's, at 95 %. *Degenerate* is the share of tries with a reply "
        "that was empty, cut off or repetitive."
    )
    if report.other:
        parts += ["## Comparison", _comparison(figures["comparison"])]
    parts += [f"![{name}]({name})" for name in pictures]
    parts += ["## Kinds of problems", _kinds(report)]
    parts += ["## Failures by reason", _failures(report)]
    parts += ["## Latency", _latency(report, figures)]
    parts += ["## Examples", *_examples(report.this.records)]
    return "\n\n".join(part for part in parts if part) + "\n"


def save(report: Report, folder: Path, pictures: Sequence[str]) -> None:
    """Write both files."""
    (folder / REPORT_JSON).write_text(json.dumps(as_json(report), indent=1) + "\n")
    (folder / REPORT_MD).write_text(as_markdown(report, pictures))


def _families(records: Sequence[Record]) -> dict[str, Figures]:
    kept = ("problems", "passed", "tries", "score")
    return {
        name: {key: value for key, value in suite_figures(result).items() if key in kept}
        for name, result in grouped(records, "family").items()
    }


def _facts(report: Report) -> str:
    lines = [] if report.complete else ["**Incomplete**: the evaluation was stopped. The same command goes on."]
    lines += [f"* {name.replace('_', ' ')}: {code(_said(value))}" for name, value in report.settings.items()]
    return "\n".join(lines)


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "the server's" if value is None else str(value)


def _scores(suites: Mapping[str, Figures]) -> str:
    if not suites:
        return "No results."
    rows = [
        (
            name, suite["problems"], suite["tries"], suite["passed"], f"{suite['score']:.3f}",
            f"{suite['low']:.3f} to {suite['high']:.3f}", f"{suite['degenerate']:.3f}", suite["malformed_calls"],
        )
        for name, suite in suites.items()
    ]  # fmt: skip
    head = ("suite", "problems", "tries", "passed", "score", "95 % interval", "degenerate", "malformed calls")
    return table(head, rows)


def _comparison(found: Mapping[str, Figures]) -> str:
    rows = [
        (
            "all suites" if name == ALL else name, item["problems"], f"{item['this']:.3f}", f"{item['other']:.3f}",
            f"{item['difference']:+.3f}", f"{item['low']:+.3f} to {item['high']:+.3f}", item["gained"], item["lost"],
            None if item["p"] is None else f"{item['p']:.3f}",
        )
        for name, item in found.items()
    ]  # fmt: skip
    head = ("suite", "problems", "this", "other", "difference", "95 % interval", "gained", "lost", "p (McNemar)")
    note = (
        "Both models had the same problems. *Gained* problems are solved more often by this model, *lost* ones less often. The "
        "interval is that of Bonett and Price for paired shares; an interval that contains 0 shows no difference."
    )
    return f"{table(head, rows)}\n\n{note}" if rows else "The models have no problem in common."


def _kinds(report: Report) -> str:
    rows = []
    for name, records in grouped(report.this.records, "suite").items():
        for family, result in grouped(records, "family").items():
            shares = {level: suite_figures(item)["score"] for level, item in grouped(result, "level").items()}
            levels = ", ".join(f"{level}: {shares[level]:.2f}" for level in sorted(shares))
            rows.append((name, family, len(result), f"{suite_figures(result)['score']:.3f}", levels))
    return table(("suite", "kind", "tries", "score", "score by level"), rows) if rows else ""


def _failures(report: Report) -> str:
    rows = []
    for name, records in grouped(report.this.records, "suite").items():
        for reason, count in suite_figures(records)["failures"].items():
            first = next(record for record in records if record.reason == reason)
            rows.append((name, reason.replace("_", " "), count, code(first.detail) if first.detail else None))
    return table(("suite", "reason", "tries", "such as"), rows) if rows else "None."


def _latency(report: Report, figures: Mapping[str, Any]) -> str:
    rows = [
        (
            *((code(model.name),) if report.other else ()), name, figure["seconds_median"], figure["seconds_p95"],
            figure["tokens"], figure["tokens_per_second"],
        )
        for key, model in zip(("model", "compared"), report.models, strict=False)
        for name, figure in figures[key]["suites"].items()
    ]  # fmt: skip
    head = ("suite", "median seconds", "95th percentile", "tokens", "tokens per second of one request")
    return table((*(("model",) if report.other else ()), *head), rows) if rows else ""


def _examples(records: Sequence[Record]) -> list[str]:
    parts: list[str] = []
    for name, result in grouped(records, "suite").items():
        for passed, title in ((True, "passed"), (False, "failed")):
            chosen = next((item for item in result if item.passed is passed), None)
            if chosen is None:
                continue
            why = "" if passed else f" ({chosen.reason.replace('_', ' ')})"
            parts += [f"### {name}, {title}{why}: `{chosen.task}`", block(_conversation(chosen), SHOWN)]
    return parts


def _conversation(record: Record) -> str:
    lines: list[str] = []
    for message in record.messages:
        lines.append(f"[{message['role']}] {message['content']}".rstrip())
        lines += [
            f"[call] {call['function']['name']} {call['function']['arguments']}"
            for call in message.get("tool_calls", ())
        ]
    return "\n".join(lines)
