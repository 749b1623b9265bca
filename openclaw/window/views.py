"""What each view of the window shows, as values that JSON can hold; the page of a view is rendered from nothing else.

Guarantees: with an owner, nothing in an answer comes from another owner's conversations: no turn, no decision about another
person's adapter, no metric of whole batches. An id of somebody else is as unknown as one that nobody has. Read-only.

`VIEWS` is the table of the views. Reading is bounded: a page has at most `PAGE` conversations, turns or versions. Only the
judged first replies are read in whole, as numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from groundwork.chat_messages import Message
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.gate.versions import Version, versions_of
from openclaw.gateway.window_views import Asked, UnknownViewError
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Feedback
from openclaw.ledger.schema import VALID_SAMPLE_TRANSITIONS
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import Conversation, SampleRecord, TurnRecord, belongs
from openclaw.messages.preview import preview
from openclaw.messages.text import clip_middle, content_text, next_state_text, response_text
from openclaw.owners import root, split_id
from openclaw.report.build import ANSWERS, facts_of, liked_chart, metric_charts, wanted
from openclaw.report.svg import draw
from openclaw.runs.evidence import FROM_LOGS, Evidence, evidence_of, updates_in
from openclaw.runs.folder import RunFolder, open_run, run_at
from openclaw.runs.metrics_file import read_series
from openclaw.runs.outcome import outcome
from openclaw.runtime.adapters import accepted_versions
from openclaw.window.pages import render
from slime.checkpoints.versions import saved_versions
from slime.updates.rollback import asked_rollbacks

PAGE = 20
TEXT = 4000
"""Longest part of a message in a list of turns."""
STORY = 100_000
"""Longest part of a message on the page of one turn."""
ANSWER = 1000
PREVIEW = 160
SHADES = 9
"""Of an advantage, for each sign."""
LAST = 2**62
Found = dict[str, Any]


class View(NamedTuple):
    """A view: its title, what finds its values, its template; whether every page leads to it."""

    title: str
    find: Callable[[Window, Asked], Found]
    template: str
    in_menu: bool = True


class Window:
    """Looks at one run; used from several threads."""

    def __init__(self, run: RunFolder, ledger: Ledger) -> None:
        """Look at ``run`` and its open ``ledger``."""
        self.run = run
        self.ledger = ledger
        self.variables = RuntimeVariables.from_env(run.settings or {})
        self._torch = threading.Lock()
        self._tokenizer: Any = None

    def show(self, asked: Asked) -> bytes:
        """Return a view as a page or as JSON.

        Raises:
            UnknownViewError: there is no such view, or it has nothing of that name for whoever asks.
        """
        view = VIEWS.get(asked.view)
        if view is None:
            raise UnknownViewError(f"there is no view {asked.view!r}; the views are {', '.join(VIEWS)}")
        try:
            found = view.find(self, asked)
        except UnknownRecordError as error:
            raise UnknownViewError("there is nothing of that name, or it is not yours") from error
        if asked.form == "json":
            charts = {"charts": [asdict(chart) for chart in found["charts"]]} if "charts" in found else {}
            return orjson.dumps(found | charts, option=orjson.OPT_NON_STR_KEYS)
        menu = {name: each.title for name, each in VIEWS.items() if each.in_menu}
        drawn = {"charts": [(chart, draw(chart)) for chart in found["charts"]]} if "charts" in found else {}
        return render(asked, menu, view.template, {"title": view.title} | found | drawn)

    def learning(self, asked: Asked) -> Found:
        """Is it learning? Liked first replies by version, evaluations, and what the gate decided."""
        scored = [
            (updates, score == 1)
            for version, score in self.ledger.views.first_scores(asked.owner)
            if (updates := updates_in(version)) is not None
        ]
        evidence = FROM_LOGS if not scored and self.ledger.views.counts()["scored"] else evidence_of(scored)
        rows = self._versions(asked)
        start = _number(asked.words.get("after"), 0)
        charts = [chart for chart in (liked_chart(evidence),) if chart]
        if asked.owner is None:
            charts += [
                each for each in metric_charts(read_series(self.run.metrics_path, wanted)) if each.title in LEARNING
            ]
        return {
            "answer": ANSWERS[evidence.verdict],
            "verdict": evidence.verdict,
            "sentence": facts_of(evidence.sentence),
            "windows": _windows(evidence),
            "charts": charts,
            "versions": [_version(row, asked) for row in rows[start : start + PAGE]],
            "next": start + PAGE if len(rows) > start + PAGE else None,
            "offer": self._offer(asked),
            "asked_rollback": self._asked_rollback(asked),
        }

    def _versions(self, asked: Asked) -> list[Version]:
        """Return the versions that an owner may know of, newest first."""
        person = None if asked.owner is None else root(asked.owner)
        folder = self.run.folder
        save = self.run.trainer_arguments().save
        saved = [] if save is None else [each.weight_version for each in saved_versions(Path(save))]

        def kept(whose: str) -> list[str]:
            return [] if folder is None else [str(each.number) for each in accepted_versions(folder, whose)]

        rows = versions_of(self.ledger, saved, person, kept)
        if person is not None and not rows:  # everybody's weights: that they changed is no secret, why they did is
            rows = [
                replace(
                    row, samples=0, decision="", why="", margin=None, margin_error=None, tasks=None, checkpoint=False
                )
                for row in versions_of(self.ledger, (), None, kept)
                if row.person is None and row.live_at is not None
            ]
        return rows[::-1]

    def _offer(self, asked: Asked) -> str | None:
        person = None if asked.owner is None else root(asked.owner)
        offer = self.ledger.decisions.offer(self.variables.gate_offer, person)
        return None if offer is None else str(offer)

    def _asked_rollback(self, asked: Asked) -> str | None:
        if self.run.folder is None:
            return None
        person = None if asked.owner is None else root(asked.owner)
        notes = [note for note in asked_rollbacks(self.run.folder) if note.person == person]
        return notes[0].version if notes else None

    def conversations(self, asked: Asked) -> Found:
        """List the last conversations: what was asked, and what became of the turns."""
        before = _number(asked.words.get("before"), LAST)
        found = self.ledger.views.conversations(asked.owner, before, PAGE + 1)
        shown = found[:PAGE]
        return {
            "conversations": [_conversation(each, asked) for each in shown],
            "next": shown[-1].newest if len(found) > PAGE else None,
            "first": before == LAST,
        }

    def conversation(self, asked: Asked) -> Found:
        """Show the turns of one conversation, each with what it taught."""
        session = asked.words.get("id", "")
        if not belongs(session, asked.owner):
            raise UnknownRecordError(session)
        after = _number(asked.words.get("after"), 0)
        turns = self.ledger.views.turns_of_session(session, after, PAGE + 1)
        if not turns:
            raise UnknownRecordError(session)
        return {
            **_named(session, asked),
            "turns": [self._turn(self.ledger.views.turn_record(turn), TEXT) for _, turn in turns[:PAGE]],
            "next": turns[PAGE - 1][0] if len(turns) > PAGE else None,
        }

    def turn(self, asked: Asked) -> Found:
        """Tell the whole story of one turn, with the advantage of each token."""
        record = self.ledger.views.turn_record(asked.words.get("id", ""))
        session = record.turn.session_id
        if not belongs(session, asked.owner):
            raise UnknownRecordError(record.turn.id)
        said = asked.words.get("said")
        story = self._turn(record, STORY)
        messages = [{"role": each.get("role", "user"), "text": _clipped(each, STORY)} for each in record.turn.messages]
        return {
            **_named(session, asked),
            "turn": story,
            "messages": messages,
            "samples": [self._sample(sample) for sample in record.samples],
            "feedback": [_feedback(each) for each in self.ledger.feedback.of(record.turn.id)],
            "said": None if said is None else SAID.get(said, SAID["kept"]),
        }

    def _turn(self, record: TurnRecord, most: int) -> Found:
        turn, verdict = record.turn, record.verdict
        asked = next((each for each in reversed(turn.messages) if each.get("role") != "system"), {"content": ""})
        votes = verdict.votes if verdict else ()
        return {
            "id": turn.id,
            "index": turn.index,
            "kind": turn.kind,
            "created_at": turn.created_at,
            "versions": [span.version for span in turn.weight_versions],
            "role": asked.get("role", "user"),
            "asked": _clipped(asked, most),
            "reply": _clipped(turn.response_message, most),
            "next_state": clip_middle(next_state_text(turn.next_state), most) if turn.next_state else None,
            "state": turn.state,
            "score": verdict.score if verdict else None,
            "score_source": verdict.score_source if verdict and verdict.score is not None else None,
            "seconds": verdict.seconds if verdict else None,
            "votes": [
                {
                    "judge": vote.judge,
                    "value": vote.value,
                    "invalid": vote.invalid,
                    "seconds": vote.seconds,
                    "answer": preview(vote.answer, ANSWER),
                }
                for vote in votes
            ],
            "hint": verdict.hint if verdict else None,
            "lessons": [{"role": role, "text": text} for role, text in self.ledger.views.lessons_of_turn(turn.id)],
            "outcome": outcome(record),
            "trained": any(
                sample.state in ("leased", "trained") for sample in record.samples if not sample.of_practice
            ),
            "reason": turn.reason or next((each.reason for each in record.samples if each.reason), None),
            "steps": [
                {"step": each.rollout_id, "weight_version": each.weight_version, "live_at": each.live_at}
                for each in record.samples
                if each.state in ("leased", "trained")
            ],
        }

    def _sample(self, record: SampleRecord) -> Found:
        """Return a sample with its tokens and their advantages."""
        from openclaw.runs.turn_story import advantages_of, run_tokenizer, token_texts  # imports torch

        args = self.run.trainer_arguments()
        with self._torch:
            if self._tokenizer is None:
                self._tokenizer = run_tokenizer(args)
            given = record.sample.reward
            found = advantages_of(record, args, self.run.settings)
        sample = record.sample
        ids = sample.tokens[len(sample.tokens) - sample.response_length :]
        mask = sample.loss_mask or [1] * sample.response_length
        values = found.values or [None] * len(ids)
        largest = max((abs(value) for value, kept in zip(values, mask, strict=True) if value and kept), default=0.0)
        texts = token_texts(self._tokenizer, ids)
        return {
            "id": record.id,
            "state": record.state,
            "reason": record.reason,
            "reward": given,
            "baseline": found.baseline,
            "advantage": found.reward,
            "missing": list(found.missing),
            "practice": record.of_practice,
            "tokens": [
                {
                    "text": text,
                    "advantage": value,
                    "trained": bool(kept),
                    "shade": round(SHADES * value / largest) if value and kept and largest else 0,
                }
                for text, value, kept in zip(texts, values, mask, strict=True)
            ],
        }


LEARNING = ("Evaluation sets", "Reward")
"""Charts of the metrics file that say whether it learns."""
SAID = {
    "counts": "Thank you. What you said counts: the judge reads it, and the next steps learn from it.",
    "already_trained": "Thank you. It is kept, but a step has used this turn already.",
    "waiting": "Thank you. It counts unless you say more in the conversation itself.",
    "outranked": "Thank you. It is kept; your own words about this reply count more.",
    "kept": "Thank you. It is kept, but this turn is not trained.",
}
"""What a person reads after feedback, by the answer of ``POST /v1/feedback``."""
VIEWS: Mapping[str, View] = {
    "learning": View("Is it learning?", Window.learning, "learning"),
    "conversations": View("Conversations", Window.conversations, "conversations"),
    "conversation": View("A conversation", Window.conversation, "conversation", in_menu=False),
    "turn": View("A turn", Window.turn, "turn", in_menu=False),
}


def open_window(ledger: str, run_dir: str | None) -> Window:
    """Return the window on the run of a ledger file; ``run_dir``: its folder, if it has one."""
    run = open_run(Path(ledger)) if run_dir is None else run_at(Path(run_dir), Path(ledger))
    opened = run.open_ledger()
    opened.database.only_read()
    return Window(run, opened)


def _number(text: str | None, default: int) -> int:
    """Return a place in a list, as a link gives it; ``default`` for anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else default


def _clipped(message: Message, most: int) -> str:
    text = response_text(message) or content_text(message.get("content"))
    return clip_middle(text, most)


def _windows(evidence: Evidence) -> list[Found]:
    return [
        {
            "first": window.first,
            "last": window.last,
            "liked": window.share.liked,
            "judged": window.share.judged,
            "share": window.share.value,
            "interval": list(window.share.interval),
        }
        for window in evidence.windows
    ]


def _version(row: Version, asked: Asked) -> Found:
    values = asdict(row)
    if asked.owner is not None:
        del values["person"]
    return values


def _named(session: str, asked: Asked) -> Found:
    """Return how a session is called: its id, and its owner to whoever sees several."""
    owner, name = split_id(session)
    return {"session": session, "name": name, "owner": owner if asked.owner != owner else None}


def _conversation(found: Conversation, asked: Asked) -> Found:
    return {
        **_named(found.session_id, asked),
        **{name: getattr(found, name) for name in ("newest", "turns", "sides", "began_at", "ended_at")},
        "scores": {str(score): count for score, count in sorted(found.scores.items(), reverse=True)},
        "samples": {state: found.samples[state] for state in VALID_SAMPLE_TRANSITIONS},
        "asked": preview(_clipped(found.asked, TEXT), PREVIEW),
    }


def _feedback(given: Feedback) -> Found:
    values = asdict(given)
    for name in ("turn_id", "source"):
        del values[name]
    return values
