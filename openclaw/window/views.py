"""What each view of the window shows, as values that JSON can hold; the page of a view is rendered from nothing else.

Guarantees: with an owner, nothing in an answer comes from another owner's conversations: no turn, no decision about another
person's adapter, no metric of whole batches, and no number that counts what all do, such as that of a step, of a sample or of
a turn in the ledger: its growth would tell how much others talk. Only the versions of shared weights are everybody's. An id of
somebody else is as unknown as one that nobody has. Read-only.

`VIEWS` is the table of the views. Reading is bounded: a page has at most `PAGE` conversations, turns or versions. Only the
judged first replies are read in whole, as numbers.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from groundwork.chat_messages import Message
from groundwork.paused import Paused, waiting
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.gate.rollback import why_not
from openclaw.gate.versions import Version, versions_of
from openclaw.gate.versions import open_run as open_gated
from openclaw.gateway.window_views import CHAT_NAME, SILENT, Asked, ChangeError, UnknownViewError, new_chat
from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Feedback, Tokens
from openclaw.ledger.schema import VALID_SAMPLE_TRANSITIONS
from openclaw.ledger.store import Ledger
from openclaw.ledger.usage import day_of
from openclaw.ledger.usage_page import amounts, buckets, quota_of, shown_owner, since_of, total
from openclaw.ledger.views import Conversation, SampleRecord, TurnRecord, belongs
from openclaw.ledger.waiting import WaitingPerson
from openclaw.lessons.lesson import MODES, Lesson
from openclaw.messages.preview import preview
from openclaw.messages.text import clip_middle, content_text, next_state_text, response_text
from openclaw.owners import owner_of_key, root, split_id, stored_id
from openclaw.report.build import ANSWERS, facts_of, liked_chart, metric_charts, wanted
from openclaw.report.svg import draw
from openclaw.runs.evidence import FROM_LOGS, Evidence, evidence_of, updates_in
from openclaw.runs.folder import RunFolder, open_run, run_at
from openclaw.runs.metrics_file import Series, read_series
from openclaw.runs.outcome import outcome
from openclaw.runtime.adapters import BASE_VERSION, RunAdapters, accepted_versions
from openclaw.runtime.kept_versions import kept_or_base
from openclaw.training.pace import FAIR_SECONDS
from openclaw.window.lanes import counts_of
from openclaw.window.pages import render
from slime.checkpoints.versions import saved_versions
from slime.updates.rollback import ask_rollback, asked_rollbacks

PAGE = 20
TEXT = 4000
"""Longest part of a message in a list of turns."""
STORY = 100_000
"""Longest part of a message on the page of one turn."""
ANSWER = 1000
MOST_PEOPLE = 200
MOST_BUSY = 3000
"""Turns and steps that are drawn, the newest."""
MINUTES = (10, 60, 360, 1440)
LEAST_SECONDS = 60.0
"""That the lanes show, however short a run is."""
RECENT = 200
"""Certificates among which the red ones come first."""
PREVIEW = 160
SHADES = 9
"""Of an advantage, for each sign."""
LAST = 2**62
UNFOLLOWED = frozenset({"doctor", "compare"})
"""Words of pages that are not kept up to date: the doctor takes seconds, and what has no name yet cannot change."""
Found = dict[str, Any]


class View(NamedTuple):
    """A view: its title, what finds its values, its template; whether every page leads to it; values that say nothing new."""

    title: str
    find: Callable[[Window, Asked], Found]
    template: str
    in_menu: bool = True
    fleeting: frozenset[str] = frozenset()


class Window:
    """Looks at one run; used from several threads."""

    def __init__(self, run: RunFolder, ledger: Ledger) -> None:
        """Look at ``run`` and its open ``ledger``."""
        self.run = run
        self.ledger = ledger
        self.variables = RuntimeVariables.from_env(run.settings or {})
        self._metrics: tuple[object, Mapping[str, Series]] = (None, {})
        self._torch = threading.Lock()
        self._tokenizer: Any = None

    def show(self, asked: Asked) -> bytes:
        """Return a view as a page or as JSON.

        Raises:
            UnknownViewError: there is no such view, or it has nothing of that name for whoever asks.
        """
        view, found = self._found(asked)
        if asked.form == "json":
            return _as_json(found)
        menu = {name: each.title for name, each in VIEWS.items() if each.in_menu}
        drawn = {"charts": [(chart, draw(chart)) for chart in found["charts"]]} if "charts" in found else {}
        revision = None if UNFOLLOWED & asked.words.keys() else _revision(view, found)
        return render(asked, menu, view.template, {"title": view.title} | found | drawn, revision)

    def _found(self, asked: Asked) -> tuple[View, Found]:
        view = VIEWS.get(asked.view)
        if view is None:
            raise UnknownViewError(f"there is no view {asked.view!r}; the views are {', '.join(VIEWS)}")
        try:
            return view, view.find(self, asked)
        except UnknownRecordError as error:
            raise UnknownViewError("there is nothing of that name, or it is not yours") from error

    def mark(self) -> object:
        """Return what changes with every change of the ledger or the metrics file."""
        return self.ledger.database.version(), self._metrics_mark()

    def revision(self, asked: Asked) -> str:
        """Return a text that changes with what a look shows to whoever asks, and with nothing else."""
        try:
            return _revision(*self._found(asked))
        except UnknownViewError:
            return "gone"

    def roll_back(self, version: str) -> None:
        """Ask the run for an earlier version of the weights that all share, as ``openclaw-rl rollback`` does.

        Raises:
            ChangeError: it has none of that name.
        """
        if self.run.folder is None:
            raise ChangeError("this server belongs to no run, so it has one version of the weights")
        if problem := why_not(open_gated(self.run.folder), version, None):
            raise ChangeError(problem)
        ask_rollback(self.run.folder, version)

    def accept(self) -> None:
        """Accept what the gate refused of the weights that all share, as ``openclaw-rl accept`` does.

        Raises:
            ChangeError: nothing is offered.
        """
        with closing(Ledger(self.run.ledger_path)) as ledger:
            flags = ledger.decisions.accept_flags()
            if ledger.decisions.accept_refused(self.variables.gate_offer) is None and flags is None:
                raise ChangeError("nothing to accept: the gate did not refuse enough updates in a row")

    def _series(self) -> Mapping[str, Series]:
        """Return the series of the charts, read again when the metrics file has changed."""
        now = self._metrics_mark()
        if now is None:
            return {}
        mark, series = self._metrics
        if mark != now:
            series = read_series(self.run.metrics_path, _wanted)
            self._metrics = (now, series)
        return series

    def _metrics_mark(self) -> object:
        try:
            stat = self.run.metrics_path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def learning(self, asked: Asked) -> Found:
        """Is it learning? Liked first replies by version, evaluations, and what the gate decided."""
        scored = [
            (updates, score == 1)
            for version, score in self.ledger.views.first_scores(asked.owner)
            if (updates := updates_in(version)) is not None
        ]
        evidence = FROM_LOGS if not scored and self.ledger.views.from_logs(asked.owner) else evidence_of(scored)
        rows = self._versions(asked)
        start = _number(asked.words.get("after"), 0)
        charts = [chart for chart in (liked_chart(evidence),) if chart]
        if asked.owner is None:
            charts += [each for each in metric_charts(self._series()) if each.title in LEARNING]
        return {
            "answer": ANSWERS[evidence.verdict],
            "verdict": evidence.verdict,
            "sentence": facts_of(evidence.sentence),
            "windows": _windows(evidence),
            "charts": charts,
            "versions": [_version(row, asked) for row in rows[start : start + PAGE]],
            "next": start + PAGE if len(rows) > start + PAGE else None,
            "may_decide": asked.owner is None and self.run.folder is not None,
            "said": DONE.get(asked.words.get("said") or ""),
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

        rows = [] if _is_child(asked) else versions_of(self.ledger, saved, person, kept)
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
        if _is_child(asked):
            return None
        person = None if asked.owner is None else root(asked.owner)
        offer = self.ledger.decisions.offer(self.variables.gate_offer, person)
        return None if offer is None else str(offer)

    def _asked_rollback(self, asked: Asked) -> str | None:
        if self.run.folder is None or _is_child(asked):
            return None
        person = None if asked.owner is None else root(asked.owner)
        notes = [note for note in asked_rollbacks(self.run.folder) if note.person == person]
        return notes[0].version if notes else None

    def conversations(self, asked: Asked) -> Found:
        """List the last conversations: what was asked, and what became of the turns."""
        before = self.ledger.views.number_of(asked.words.get("before", ""), LAST)
        found = self.ledger.views.conversations(asked.owner, before, PAGE + 1)
        shown = found[:PAGE]
        return {
            "conversations": [_conversation(each, asked) for each in shown],
            "next": self.ledger.views.newest_of_session(shown[-1].session_id)[0] if len(found) > PAGE else None,
            "first": before == LAST,
        }

    def conversation(self, asked: Asked) -> Found:
        """Show the turns of one conversation, each with what it taught."""
        session = asked.words.get("id", "")
        if not belongs(session, asked.owner):
            raise UnknownRecordError(session)
        after = self.ledger.views.number_of(asked.words.get("after", ""), 0)
        turns = self.ledger.views.turns_of_session(session, after, PAGE + 1)
        if not turns:
            raise UnknownRecordError(session)
        return {
            **_named(session, asked),
            "turns": [self._turn(self.ledger.views.turn_record(turn), TEXT, asked) for _, turn in turns[:PAGE]],
            "next": turns[PAGE - 1][1] if len(turns) > PAGE else None,
        }

    def turn(self, asked: Asked) -> Found:
        """Tell the whole story of one turn, with the advantage of each token."""
        record = self.ledger.views.turn_record(asked.words.get("id", ""))
        session = record.turn.session_id
        if not belongs(session, asked.owner):
            raise UnknownRecordError(record.turn.id)
        said = asked.words.get("said")
        story = self._turn(record, STORY, asked)
        own = split_id(session)[0] == _talker(asked)
        messages = [{"role": each.get("role", "user"), "text": _clipped(each, STORY)} for each in record.turn.messages]
        return {
            **_named(session, asked),
            "turn": story,
            "messages": messages,
            "samples": [
                self._sample(sample) | ({"id": own} if asked.owner is not None else {})
                for own, sample in enumerate(record.samples, 1)
            ],
            "feedback": [_feedback(each) for each in self.ledger.feedback.of(record.turn.id)],
            "versions": self._others(asked) if own else [],
            "said": _said(said),
        }

    def health(self, asked: Asked) -> Found:
        """Is it healthy? The certificates of updates, red ones first, and what holds the training back."""
        of_person = [] if asked.owner is None else [root(asked.owner)]
        decisions = self.ledger.decisions.all(
            f"AND certificate IS NOT NULL {'AND person IS ?' if of_person else ''} ORDER BY number DESC LIMIT ?",
            (*of_person, 0 if _is_child(asked) else RECENT),
        )
        rows = [_certificate(each, asked) for each in decisions]
        newest = rows[0] if rows else None
        rows.sort(key=lambda row: row["verdict"] != "red")
        start = _number(asked.words.get("after"), 0)
        folder = self.run.folder
        people = self.run.people_paused
        own = people if asked.owner is None else {who: note for who, note in people.items() if who == asked.owner}
        error = self.ledger.views.judge_error() if asked.owner is None else None
        findings = self._findings() if asked.owner is None and asked.words.get("doctor") else None
        return {
            "newest": newest,
            "certifies": self.variables.gate_certificate,
            "paused": None if self.run.paused is None else _paused(self.run.paused, asked),
            "people_paused": [_paused(note, asked) for note in own.values()],
            "waiting": None if folder is None else waiting(folder, to_anybody=asked.owner is not None),
            "judge_error": None if error is None else str(error),
            "certificates": rows[start : start + PAGE],
            "next": start + PAGE if len(rows) > start + PAGE else None,
            "findings": findings,
        }

    def _findings(self) -> list[Found]:
        from openclaw.doctor.diagnose import diagnose  # a first page that nobody asks it of comes sooner

        return [finding.to_dict() for finding in diagnose(self.run)]

    def mine(self, asked: Asked) -> Found:
        """Show a person's lessons, what they are worth, and the person's own adapter."""
        lessons, folder = self.ledger.lessons, self.run.folder
        person = asked.person
        if asked.owner is None and "person" in asked.words:
            person = asked.words["person"]
        adapters = None
        if folder is not None and self.variables.adapter_per_person and not _is_child(asked):
            adapters = RunAdapters(self.ledger, folder, self.variables.gate_offer)
        said = asked.words.get("said")
        return {
            "person": person,
            "is_own": person == asked.person,
            "is_child": _is_child(asked),
            "mode": lessons.mode(person, self.variables.lessons),
            "modes": list(MODES),
            "lessons": [_lesson(each) for each in reversed(lessons.of(person))],
            "others": [] if asked.owner is not None else [each for each in lessons.people() if each != person],
            "adapter": None if adapters is None else adapters.versions(person),
            "said": DONE.get(said or ""),
        }

    def chat(self, asked: Asked) -> Found:
        """Talk to the model: the last turns of a conversation of one's own, or of two beside each other, each with its version."""
        words, versions = asked.words, self._others(asked)
        said = words.get("said")
        talk = self._talk(asked, words.get("id", ""), words.get("version", ""), versions)
        beside = None
        if versions and ("beside" in words or "compare" in words):
            beside = self._talk(asked, words.get("beside", ""), words.get("other", versions[-1]), versions)
        return {
            **talk,
            "beside": beside,
            "versions": versions,
            "serves": self._serves(asked.person),
            "said": _silent(words.get(SILENT[said], "")) if said in SILENT else _said(said),
        }

    def _talk(self, asked: Asked, name: str, version: str, versions: Sequence[str]) -> Found:
        """Return a conversation with a version, None being the one that serves; a new one if ``name`` names none."""
        if not CHAT_NAME.fullmatch(name):
            name = new_chat()
        turns = self.ledger.views.newest_of_session(stored_id(_talker(asked), name), PAGE)
        return {
            "id": name,
            "version": version if version in versions else None,
            "turns": [self._turn(self.ledger.views.turn_record(turn), STORY, asked) for turn in reversed(turns)],
        }

    def _others(self, asked: Asked) -> list[str]:
        """Return the versions that whoever looks may talk to besides the one that serves, newest first."""
        if self.run.folder is None:
            return []
        per_person = self.variables.adapter_per_person
        kept = kept_or_base(self.run.folder, _talker(asked), per_person=per_person)
        serves = self._serves(asked.person) or BASE_VERSION
        return [version for version in kept if version != serves]

    def queue(self, asked: Asked) -> Found:
        """Who waits: samples for a step and turns for the judge, by person, and what was trained of each lately."""
        now = time.time()
        waits = {each.person: each for each in self.ledger.waiting.people()}
        trained = self.ledger.waiting.tokens_since(now - FAIR_SECONDS, self.variables.practice_passes)
        last = max((at for at in (each.ready_since for each in waits.values()) if at is not None), default=0.0)
        total = trained.total()
        own = [] if _is_child(asked) else [asked.person]
        names = sorted({*waits, *trained}) if asked.owner is None else own
        rows = [
            {
                **asdict(waits.get(person, WaitingPerson(person))),
                "serves": (live := self._serves(person)),
                "behind": _behind(live, waits[person].oldest_version if person in waits else None),
                "tokens": trained[person],
                "share": trained[person] / total if total and asked.owner is None else None,
            }
            for person in names
        ]
        rows.sort(key=lambda row: row["ready_since"] or row["pending_since"] or last + now)
        shown = rows[:MOST_PEOPLE]
        charts = [each for each in metric_charts(self._series()) if each.title in QUEUE] if asked.owner is None else []
        folder = self.run.folder
        return {
            "now": now,
            "batch": self.run.trainer_arguments().rollout_batch_size,
            "ready": sum(row["ready"] for row in rows),
            "pending": sum(row["pending"] for row in rows),
            "people": shown,
            "left_out": len(rows) - len(shown),
            "waiting": None if folder is None else waiting(folder, to_anybody=asked.owner is not None),
            "charts": charts,
        }

    def _serves(self, person: str) -> str | None:
        """Return the version that serves a person: of the person's adapter, or of the weights that all share."""
        own = person if self.variables.adapter_per_person else None
        return self.ledger.samples.live_weight_version(own)

    def machine(self, asked: Asked) -> Found:
        """What the machine did: answering, judging, training and pushing over time, with the updates; a short run from its begin."""
        minutes = _number(asked.words.get("minutes"), MINUTES[1])
        minutes = minutes if minutes in MINUTES else MINUTES[1]
        person = None if asked.owner is None else root(asked.owner)
        turns = self.ledger.views.busy(asked.owner, MOST_BUSY)
        steps = [] if _is_child(asked) else self.ledger.views.newest_steps(MOST_BUSY, person)
        ends = [each.finished_at for each in turns] + [each.live_at for each in steps]
        until = max(ends + [each.judged_at for each in turns if each.judged_at is not None], default=time.time())
        seconds = self._series().get(STEP_SECONDS, {})
        lanes = {
            "answering": [(each.created_at, each.finished_at) for each in turns],
            "judging": [
                (each.judged_at - each.judge_seconds, each.judged_at) for each in turns if each.judged_at is not None
            ],
            "training": [(each.trained_at - seconds.get(each.rollout_id, 0.0), each.trained_at) for each in steps],
            "pushing": [(each.trained_at, each.live_at) for each in steps],
        }
        begun = min((start for intervals in lanes.values() for start, _ in intervals), default=until)
        if MOST_BUSY in (len(turns), len(steps)):
            begun = 0.0
        since = max(until - 60 * minutes, min(begun, until - LEAST_SECONDS))
        oldest = turns[0].created_at if len(turns) == MOST_BUSY else None
        return {
            "since": since,
            "until": until,
            "minutes": minutes,
            "choices": list(MINUTES),
            "lanes": {name: counts_of(intervals, since, until) for name, intervals in lanes.items()},
            "updates": [
                {"at": each.live_at, "version": each.weight_version, **_step(each.rollout_id, asked)}
                for each in reversed(steps)
                if since <= each.live_at <= until
            ],
            "answers": sum(each.created_at >= since for each in turns),
            "complete_since": None if oldest is None or oldest <= since else oldest,
        }

    def usage(self, asked: Asked) -> Found:
        """The tokens of `DAYS` days by meter, the newest day first, and who used them; what a key may use today."""
        now = time.time()
        meters, last = self.ledger.usage, _day(asked.words.get("until"), date.fromisoformat(day_of(now)))
        since, until = str(since_of(last)), str(last)
        counted = meters.days(since, until, asked.owner)
        days = {bucket["day"]: bucket["results"] for bucket in buckets(counted, asked.prices)}
        by_day, by_owner = defaultdict[str, Tokens](Tokens), defaultdict[str, Tokens](Tokens)
        for row in counted:
            by_day[row.day] += row.tokens
            by_owner[row.owner] += row.tokens
        owners = sorted(by_owner.items(), key=lambda each: (-each[1].total, each[0]))
        quota = None
        if asked.quotas:
            quota = quota_of(asked.quotas, meters.total(day_of(now), owner_of_key(asked.name)), day_of(now))
        return {
            **{"since": since, "until": until, "next": meters.day_before(since, asked.owner)},
            "days": [
                {"day": day, **amounts(by_day[day], asked.prices), "owners": rows}
                for day, rows in reversed(days.items())
            ],
            "owners": [
                {"owner": shown_owner(owner), **amounts(tokens, asked.prices)} for owner, tokens in owners[:MOST_PEOPLE]
            ],
            "left_out": max(0, len(owners) - MOST_PEOPLE),
            "total": amounts(total(counted), asked.prices),
            "quota": quota,
        }

    def _turn(self, record: TurnRecord, most: int, asked_by: Asked) -> Found:
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
            "outcome": outcome(record, numbered=asked_by.owner is None),
            "trained": any(
                sample.state in ("leased", "trained") for sample in record.samples if not sample.of_practice
            ),
            "reason": turn.reason or next((each.reason for each in record.samples if each.reason), None),
            "steps": [
                _step(each.rollout_id, asked_by) | {"weight_version": each.weight_version, "live_at": each.live_at}
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


STEP_SECONDS = "perf/actor_train_time"
QUEUE = ("Staleness, updates", "Waiting for a batch, seconds")
LEARNING = ("Evaluation sets", "Reward")
"""Charts of the metrics file that say whether it learns."""
SAID = {
    "counts": "Thank you. What you said counts: the judge reads it, and the next steps learn from it.",
    "already_trained": "Thank you. It is kept, but a step has used this turn already.",
    "waiting": "Thank you. It counts unless you say more in the conversation itself.",
    "outranked": "Thank you. It is kept; your own words about this reply count more.",
    "kept": "Thank you. It is kept, but this turn is not trained.",
    "earlier_version": "Thank you. It is kept, but not trained: only replies of the version that serves are.",
}
"""What a person reads after feedback, by the answer of ``POST /v1/feedback``."""
DONE = {
    "saved": "Saved. The next request has it.",
    "removed": "Deleted.",
    "asked": "Asked for. The run does it within seconds, after its step.",
    "accepted": "Accepted. What was refused is trained after all.",
    "forgotten": "Everything of yours is deleted.",
}
"""What a person reads after a change."""
VIEWS: Mapping[str, View] = {
    "learning": View("Is it learning?", Window.learning, "learning"),
    "health": View("Is it healthy?", Window.health, "health"),
    "conversations": View("Conversations", Window.conversations, "conversations"),
    "mine": View("Lessons and adapter", Window.mine, "mine"),
    "queue": View("Who waits?", Window.queue, "queue", fleeting=frozenset({"now"})),
    "machine": View("The machine", Window.machine, "machine", fleeting=frozenset({"since", "until"})),
    "usage": View("Tokens", Window.usage, "usage"),
    "chat": View("Talk to it", Window.chat, "chat", fleeting=frozenset({"id"})),
    "conversation": View("A conversation", Window.conversation, "conversation", in_menu=False),
    "turn": View("A turn", Window.turn, "turn", in_menu=False),
}


def _wanted(name: str) -> bool:
    return wanted(name) or name == STEP_SECONDS


def open_window(ledger: str, run_dir: str | None) -> Window:
    """Return the window on the run of a ledger file; ``run_dir``: its folder, if it has one."""
    run = open_run(Path(ledger)) if run_dir is None else run_at(Path(run_dir), Path(ledger))
    opened = run.open_ledger()
    opened.database.only_read()
    return Window(run, opened)


def _behind(live: str | None, oldest: str | None) -> int | None:
    """Return by how many updates a sample's weights are older than those that serve; None if nobody knows."""
    now, then = (None if version is None else updates_in(version) for version in (live, oldest))
    return None if now is None or then is None else now - then


def _revision(view: View, found: Found) -> str:
    lasting = {name: value for name, value in found.items() if name not in view.fleeting}
    return hashlib.blake2b(_as_json(lasting), digest_size=12).hexdigest()


def _as_json(found: Found) -> bytes:
    if "charts" in found:
        found = found | {"charts": [asdict(chart) for chart in found["charts"]]}
    try:
        return orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # a text has half a surrogate pair, which no UTF-8 holds
        return json.dumps(found, ensure_ascii=False).encode(errors="replace")


def _is_child(asked: Asked) -> bool:
    """Return whether a child key asks: what its parent's conversations have taught is not its own."""
    return asked.owner is not None and asked.owner != asked.person


def _number(text: str | None, default: int) -> int:
    """Return a place in a list, as a link gives it; ``default`` for anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else default


def _day(text: str | None, default: date) -> date:
    """Return a day, as a link gives it; ``default`` for anything else, and for a later one."""
    try:
        return default if text is None else min(default, date.fromisoformat(text))
    except ValueError:
        return default


def _said(said: str | None) -> str | None:
    """Return what a page says after feedback."""
    return None if said is None else SAID.get(said, SAID["kept"])


def _silent(version: str) -> str:
    """Return what the chat says if one of two versions did not answer."""
    who = (
        f"Version {version}" if version.isascii() and version.isdigit() and len(version) < 19 else "The one that serves"
    )
    return (
        f"{who} did not answer now; the other one did, and only its conversation has your words. "
        "Go on with other words: the same ones again would count against the reply that came."
    )


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


def _step(rollout_id: int | None, asked: Asked) -> Found:
    """Return the number of a step for whoever may know how many there are."""
    return {"step": rollout_id} if asked.owner is None else {}


def _paused(note: Paused, asked: Asked) -> str:
    if asked.owner is None:
        return str(note)
    return f"{'training' if note.person is None else 'your training'} is paused: {note.why}"


def _certificate(decision: DecisionRecord, asked: Asked) -> Found:
    certificate = decision.certificate or {}
    row = {
        "version": decision.weight_version,
        "accepted": decision.kind == "step",
        "decided_at": decision.decided_at,
        "verdict": certificate["verdict"],
        "causes": certificate["causes"],
        "lines": certificate["lines"],
    }
    return row if asked.owner is not None else row | {"person": decision.person, "rollout_id": decision.rollout_id}


def _lesson(lesson: Lesson) -> Found:
    values = asdict(lesson)
    del values["person"]
    measure = None if lesson.measure is None else str(lesson.measure)
    return {**values, "measure": measure, "confirmed": lesson.is_confirmed, "is_on": lesson.is_served}


def _talker(asked: Asked) -> str:
    """Return who talks in the window: the owner of the key."""
    return asked.person if asked.owner is None else asked.owner


def _named(session: str, asked: Asked) -> Found:
    """Return how a session is called: its id, and its owner to whoever sees several."""
    owner, name = split_id(session)
    return {"session": session, "name": name, "owner": owner if asked.owner != owner else None}


def _conversation(found: Conversation, asked: Asked) -> Found:
    return {
        **_named(found.session_id, asked),
        **{name: getattr(found, name) for name in ("turns", "sides", "began_at", "ended_at")},
        "scores": {str(score): count for score, count in sorted(found.scores.items(), reverse=True)},
        "samples": {state: found.samples[state] for state in VALID_SAMPLE_TRANSITIONS},
        "asked": preview(_clipped(found.asked, TEXT), PREVIEW),
    }


def _feedback(given: Feedback) -> Found:
    values = asdict(given)
    for name in ("turn_id", "source"):
        del values[name]
    return values
