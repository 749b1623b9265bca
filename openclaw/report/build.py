"""Builds the report of a run: reads, counts, draws, and fills the page.

Guarantees: with an owner, the page has nothing that comes from another owner's conversations: no metrics of whole batches, no
faults, no settings. Everything on the page is escaped. The page loads nothing, and its content policy forbids it to.

Charts are of liked first replies and judging times, from the ledger, and of the metrics file. Before and after are first replies to
like questions, from the first and the last third of the updates. A pair is chosen by its questions and by whether the early reply
was disliked, never by the later reply or its verdict. Only a bounded number of texts is read. Equal questions come first; otherwise
two are alike if they share most of their words, numbers aside. Tables are of reasons, versions, faults, episodes, the start and settings.

What the sections count takes one pass over the turns and samples of a run. Memory grows with the number of first replies and judged
turns, by a few numbers each, and not with their texts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from statistics import fmean, median
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from groundwork import start_timeline
from groundwork.paused import WITHOUT_NAME
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import SampleFacts, TurnFacts, TurnText, belongs
from openclaw.messages.preview import harmless, shown_time
from openclaw.messages.text import clip_middle, content_text, response_text
from openclaw.owners import root
from openclaw.report.svg import Chart, Line, draw
from openclaw.runs.evidence import FROM_LOGS, Evidence, evidence, updates_of
from openclaw.runs.folder import RunFolder
from openclaw.runs.metrics_file import MISMATCH, MISMATCH_LIMIT, Series, read_series
from openclaw.runs.reasons import NOTHING, explain
from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.tracking.redact import is_secret


class FirstReply(NamedTuple):
    """A reply without an earlier one in its request: its turn's number, the updates of its weights, its kind and score."""

    number: int
    updates: int
    kind: str
    score: int | None


@dataclass
class Totals:
    """What was counted.

    Attributes:
        states: turns by state; side turns are in ``sides`` only.
        elsewhere: main turns whose reply another run or program gave.
        reasons: of main turns and of dropped samples.
        scores: verdicts by score and by who gave it.
        seconds: of judging, in the order of the turns.
        firsts: the first replies.
        samples: by state.
        rollouts: samples by the step that used them.
    """

    states: Counter[str] = field(default_factory=Counter)
    sides: int = 0
    elsewhere: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    scores: Counter[tuple[int, str]] = field(default_factory=Counter)
    seconds: array[float] = field(default_factory=lambda: array("d"))
    firsts: list[FirstReply] = field(default_factory=list)
    samples: Counter[str] = field(default_factory=Counter)
    rollouts: Counter[int] = field(default_factory=Counter)
    sessions: int = 0
    first_at: float | None = None
    last_at: float | None = None
    learning: Evidence = field(default_factory=lambda: evidence([]))

    @property
    def mains(self) -> int:
        """Number of main turns."""
        return self.states.total()


def count(turns: Iterable[TurnFacts], samples: Iterable[SampleFacts]) -> Totals:
    """Return the totals of turns and samples, which are read once each."""
    totals = Totals()
    sessions: set[str] = set()
    judged_firsts: list[TurnFacts] = []
    for turn in turns:
        sessions.add(turn.session_id)
        totals.first_at = turn.created_at if totals.first_at is None else totals.first_at
        totals.last_at = turn.finished_at
        _count_turn(totals, turn)
        if turn.is_first and (updates := updates_of(turn)) is not None:
            totals.firsts.append(FirstReply(turn.number, updates, turn.kind, turn.score))
            if turn.score is not None:
                judged_firsts.append(turn)
    for sample in samples:
        totals.samples[sample.state] += 1
        if sample.reason is not None:
            totals.reasons[sample.reason] += 1
        if sample.state in ("leased", "trained") and sample.rollout_id is not None:
            totals.rollouts[sample.rollout_id] += 1
    totals.sessions = len(sessions)
    totals.learning = FROM_LOGS if totals.elsewhere and not judged_firsts else evidence(judged_firsts)
    return totals


def _count_turn(found: Totals, turn: TurnFacts) -> None:
    if turn.kind == "side":
        found.sides += 1
        return
    found.states[turn.state] += 1
    found.elsewhere += turn.elsewhere
    if turn.reason is not None:
        found.reasons[turn.reason] += 1
    if turn.score is not None:
        found.scores[turn.score, turn.score_source or "judge"] += 1
    if turn.seconds:
        found.seconds.append(turn.seconds)


MAX_ROWS = 20
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


def versions(ledger: Ledger, totals: Totals, owner: str | None = None) -> list[Version]:
    """Return the newest versions, newest first; ``samples`` counts those of ``totals``.

    With an adapter per person, those of the adapter of ``owner``, or of everybody's, with whose each is.
    """
    newest = ledger.views.newest_steps(MAX_ROWS, None if owner is None else root(owner))
    return [
        Version(
            step.weight_version + _whose(step.person, owner),
            step.rollout_id,
            totals.rollouts[step.rollout_id],
            step.live_at,
        )
        for step in newest
    ]


def _whose(person: str | None, owner: str | None) -> str:
    return "" if person is None or owner is not None else f" of {person or WITHOUT_NAME}"


def decisions(ledger: Ledger, owner: str | None = None) -> tuple[Counter[str], list[Decisions]]:
    """Return how often the gate decided what, and its newest decisions, newest first; with ``owner``, about the owner's adapter.

    Decisions in a row that differ by the numbers in their reason only are one row.
    """
    gate_decisions = [each for each in ledger.views.gate_decisions() if owner is None or each.person == root(owner)]
    rows: list[Decisions] = []
    for gate_decision in reversed(gate_decisions):
        newer = rows[-1] if rows else None
        if newer and (newer.kind, NUMBER.sub("", newer.why)) == (gate_decision.kind, NUMBER.sub("", gate_decision.why)):
            rows[-1] = newer._replace(first=gate_decision.rollout_id)
        elif len(rows) == MAX_ROWS:
            break
        else:
            rows.append(
                Decisions(
                    gate_decision.rollout_id,
                    gate_decision.rollout_id,
                    gate_decision.kind,
                    gate_decision.weight_version + _whose(gate_decision.person, owner),
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
        *(("one person's training is paused", str(each)) for each in run.people_paused.values()),
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
        *((flag_of(name), value) for name, value in sorted(flags.items())),
    ]
    return [(name, USER_OF_A_URL.sub("//***@", _text(value))) for name, value in shown[:MAX_SETTINGS]]


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


PAIRS = 5
CANDIDATES = 200
"""Most texts that are read of each third and kind."""
ALIKE = 0.5
"""Least share of common words of two like questions."""
MAX_LENGTH = 1200
WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Example:
    """A reply: to what, with how many updates, and the judge's score."""

    question: str
    reply: str
    updates: int
    score: int | None


def pairs(ledger: Ledger, firsts: Sequence[FirstReply]) -> list[tuple[Example, Example]]:
    """Return up to `PAIRS` first replies from before and after the updates in between."""
    updates = max((first.updates for first in firsts), default=0)
    if not updates:
        return []
    early = [first for first in firsts if first.updates <= updates / 3]
    late = [first for first in firsts if first.updates >= 2 * updates / 3]
    before, after = _texts(ledger, early), _texts(ledger, late)
    examples: list[tuple[Example, Example]] = []
    disliked = [one for one in before if one.example.score == -1]
    for chosen, least in ((disliked, ALIKE), (before, 1.0), (before, ALIKE)):
        for one in list(chosen):
            if one not in before:
                continue
            near = max(after, key=lambda other: _likeness(one, other), default=None)
            if near is None or _likeness(one, near) < least:
                continue
            examples.append((one.example, near.example))
            before.remove(one)
            after.remove(near)
            if len(examples) == PAIRS:
                return examples
    return examples


@dataclass(frozen=True)
class _Candidate:
    example: Example
    kind: str
    words: frozenset[str]


def _likeness(one: _Candidate, other: _Candidate) -> float:
    """Return 1 for equal questions, less than 1 for like ones, 0 for different ones; side turns are alike only if equal."""
    if one.example.question == other.example.question:
        return 1.0
    if "side" in (one.kind, other.kind) or not one.words | other.words:
        return 0.0
    return min(0.99, len(one.words & other.words) / len(one.words | other.words))


def _texts(ledger: Ledger, firsts: Sequence[FirstReply]) -> list[_Candidate]:
    chosen = [first for kind in ("main", "side") for first in _spread([item for item in firsts if item.kind == kind])]
    by_number = {first.number: first for first in chosen}
    return [_candidate(text, by_number[text.number]) for text in ledger.views.turn_texts(sorted(by_number))]


def _spread(firsts: Sequence[FirstReply]) -> Sequence[FirstReply]:
    """Return at most `CANDIDATES` of them, evenly spaced."""
    step = max(1, len(firsts) // CANDIDATES)
    return firsts[::step][:CANDIDATES]


def _candidate(text: TurnText, first: FirstReply) -> _Candidate:
    asked = [message for message in text.messages if message.get("role") == "user"]
    question = content_text(asked[-1].get("content")) if asked else ""
    reply = clip_middle(response_text(text.response_message), MAX_LENGTH)
    example = Example(clip_middle(question, MAX_LENGTH), reply, first.updates, first.score)
    return _Candidate(example, first.kind, frozenset(WORD.findall(question.lower())))


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
        gate, decided = decisions(ledger, owner)
        values = {
            "totals": totals,
            "charts": [(chart, draw(chart)) for chart in [*charts[:1], *metric_charts(series), *charts[1:]]],
            "pairs": pairs(ledger, totals.firsts),
            "reasons": reason_rows(totals.reasons, totals.sessions),
            "versions": versions(ledger, totals, owner),
            "updates": ledger.views.step_count(),
            "gate": gate,
            "decisions": decided,
            "certificate": ledger.decisions.last_certified(*([] if owner is None else [root(owner)])),
            "faults": faults(run, ledger, totals, series) if owner is None else [],
            "episodes": episodes(ledger, owner),
            "start": start_timeline.rows(run.start) if owner is None else [],
            "settings": settings(run) if owner is None else [],
        }
    return Report(_page(run, owner, totals, values), totals.learning.sentence)


def _wanted(name: str) -> bool:
    return wanted(name) or name in FAULT_METRICS


def _page(run: RunFolder, owner: str | None, totals: Totals, values: dict[str, Any]) -> str:
    folder = files(__package__ or "openclaw.report")
    style = (folder / "style.css").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_plain, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"clock": shown_time, "share": _share}
    template = environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        run=run,
        owner=owner,
        answer=ANSWERS[totals.learning.verdict],
        learning=totals.learning,
        facts=facts_of(totals.learning.sentence),
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        made_at=datetime.now().timestamp(),
        **values,
    )


def facts_of(sentence: str) -> str:
    """Return the sentence without the answer that it begins with, which stands above it."""
    answer, _, facts = sentence.partition(": ")
    return f"{facts[0].upper()}{facts[1:]}" if facts and not answer.startswith("Nobody") else sentence


def _plain(value: Any) -> Any:
    """Return a text without control characters, before it is escaped; everything else unchanged."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
