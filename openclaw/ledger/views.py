"""Read-only views of the ledger: one turn with its verdict, samples and step; rows of a whole run; counts; outcomes.

Guarantees: read-only. A whole run is read a page at a time, so it can write between pages; each page is a consistent
snapshot. Two scans read a whole run in numbers and states (`TurnFacts`, `SampleFacts`), without tokens and texts; no query is
asked per turn. What became of one reply (`Outcome`) is cheap, so a client may ask again until the turn is judged.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import Message
from openclaw.ledger.codec import decode_sample, decode_turn, decode_verdict, unpack_ids
from openclaw.ledger.database import Database, sessions_of
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import BLAMED, SampleState, ScoreSource, Turn, TurnKind, TurnState, Verdict
from openclaw.ledger.samples import STATED
from openclaw.ledger.schema import NO_REPLY_BEFORE
from openclaw.owners import owner_of, owns, root
from slime.utils.types import Sample

_PAGE = 2000
_TEXTS = 200
_VOTES = (
    "(SELECT json_group_array(json_array(json_extract(value, '$.judge'), json_extract(value, '$.value'),"
    " json_extract(value, '$.invalid'))) FROM json_each(verdict, '$.votes'))"
)
_ELSEWHERE = "(copied = 1 OR scored = 1 OR state = 'unscored')"
_TURNS = (
    "SELECT number, turns.id, session_id, kind, state, reason, created_at, finished_at, next_state_at, judged_at, judge_attempts,"
    " finish_reason, temperature, top_p, length(response_ids) / 4 AS response_tokens,"
    f" {NO_REPLY_BEFORE} AS is_first, {_ELSEWHERE} AS elsewhere,"
    f" CASE WHEN NOT {_ELSEWHERE} THEN json_extract(weight_versions, '$[0].version') END AS version,"
    " json_extract(verdict, '$.score') AS score, json_extract(verdict, '$.score_source') AS score_source,"
    " json_extract(verdict, '$.seconds') AS seconds, json_extract(verdict, '$.hint') IS NOT NULL AS hinted,"
    f" {_VOTES} AS votes FROM turns LEFT JOIN verdicts ON verdicts.turn_id = turns.id"
    " WHERE number > ? ORDER BY number LIMIT ?"
)
_SAMPLES = (
    "SELECT samples.id, samples.turn_id, turns.session_id, samples.state, samples.reason, samples.rollout_id,"
    " samples.created_at, json_extract(sample, '$.reward') AS reward, samples.episode IS NOT NULL AS of_episode,"
    " samples.origin = 'practice' AS of_practice FROM samples"
    " JOIN turns ON turns.id = samples.turn_id WHERE samples.id > ? ORDER BY samples.id LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class VoteFact:
    """A vote without its words: which judge (``prm`` or ``hint``), its value, or why it is none."""

    judge: str
    value: int | None
    invalid: str | None


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """A turn in numbers.

    ``is_first`` says that no reply comes before it in its request; ``version`` is that of the weights that sampled its
    first token, None if the reply was given ``elsewhere``: in another run, or by the program of a log; ``seconds`` is how long
    its judging took; ``votes`` is empty without a verdict. See `Turn` and `Verdict` for the rest.
    """

    number: int
    id: str
    session_id: str
    kind: TurnKind
    state: TurnState
    reason: str | None
    created_at: float
    finished_at: float
    next_state_at: float | None
    judged_at: float | None
    judge_attempts: int
    finish_reason: str
    temperature: float
    top_p: float
    response_tokens: int
    is_first: bool
    elsewhere: bool
    version: str | None
    score: int | None
    score_source: ScoreSource | None
    seconds: float | None
    hinted: bool
    votes: tuple[VoteFact, ...]


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """A sample in numbers; ``reward`` is the method's, before a baseline is subtracted."""

    id: int
    turn_id: str
    session_id: str
    state: SampleState
    reason: str | None
    rollout_id: int | None
    created_at: float
    reward: float
    of_episode: bool
    of_practice: bool


@dataclass(frozen=True, slots=True)
class TurnText:
    """What was asked and answered in a turn."""

    number: int
    messages: list[Message]
    response_message: Message


@dataclass(frozen=True, slots=True)
class StepFact:
    """A step: which batch it used, since when its weights serve under which version, and whose adapter they are.

    ``person`` is None for everybody's weights.
    """

    rollout_id: int
    weight_version: str
    trained_at: float
    live_at: float
    person: str | None = None


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What was decided about an update: ``kind`` (such as ``step`` or ``refused``), and why, in one line.

    ``by_margin``: whether only the users' opinions spoke against it, so that a person may accept it. ``person``: whose adapter
    it is about; None: everybody's weights.
    """

    rollout_id: int
    kind: str
    weight_version: str
    why: str
    by_margin: bool
    decided_at: float
    person: str | None = None


def belongs(session_id: str, owner: str | None) -> bool:
    """Return whether a stored session belongs to ``owner`` or its children; every one does if it is None."""
    return owner is None or owns(owner, owner_of(session_id))


_RECORDS_PAGE = 200
_RECORDS = (
    "SELECT turns.*, verdicts.verdict, teacher_log_probs, logs.verdict AS kept FROM turns"
    " LEFT JOIN verdicts ON verdicts.turn_id = turns.id LEFT JOIN logs ON logs.turn_id = turns.id"
)
"""Turns with their verdict, and the one that a log had."""
JUDGED = 64
QUERY = (
    "SELECT turns.state, COALESCE(turns.reason, samples.reason) AS reason, judge_attempts, verdict,"
    " samples.state AS sample, samples.rollout_id, weight_version FROM turns"
    " LEFT JOIN verdicts ON verdicts.turn_id = turns.id LEFT JOIN samples"
    " ON (samples.turn_id = turns.id OR samples.id = turns.segment) AND samples.origin = 'live'"
    " LEFT JOIN steps ON steps.rollout_id = samples.rollout_id AND steps.undone_at IS NULL"
    " AND samples.state IN ('leased', 'trained') WHERE turns.id = ? ORDER BY samples.state = 'dropped', samples.id DESC LIMIT 1"
)
_OTHER_VERSION = "SELECT 1 FROM json_each(weight_versions) WHERE json_extract(value, '$.version') IS NOT ?"


@dataclass(frozen=True)
class SampleRecord:
    """A sample and its outcome; ``weight_version`` and ``live_at`` are set once its step is live."""

    id: int
    turn_id: str
    sample: Sample
    state: SampleState
    reason: str | None
    rollout_id: int | None
    weight_version: str | None
    live_at: float | None

    @property
    def of_practice(self) -> bool:
        """Whether it is a practised reply to the turn's prompt, and not the turn's own reply."""
        return self.sample.metadata["origin"] == "practice"


@dataclass(frozen=True)
class TurnRecord:
    """A turn with its verdict and samples; ``kept`` is the verdict that its log had."""

    turn: Turn
    verdict: Verdict | None
    samples: list[SampleRecord]
    judge_attempts: int
    judge_error: str | None
    kept: Verdict | None = None


@dataclass(frozen=True)
class JudgeError:
    """Why turns stay pending: the newest such turn with its error, and how many turns there are.

    Attributes:
        turn_id: the newest turn that the judge side failed on.
        error: what its last attempt raised.
        attempts: its failed attempts.
        turns: number of pending turns with a failed attempt.
    """

    turn_id: str
    error: str
    attempts: int
    turns: int

    def __str__(self) -> str:
        turns = "1 turn stays" if self.turns == 1 else f"{self.turns} turns stay"
        times = "1 time" if self.attempts == 1 else f"{self.attempts} times"
        return f"{turns} unjudged; {self.turn_id} failed {times}, last with {self.error}"


@dataclass(frozen=True)
class OwnerSamples:
    """An owner's samples, children's included: ``ready``, in a step (``used``), and ``stated``: scored by feedback."""

    owner: str
    ready: int
    used: int
    stated: int


@dataclass(frozen=True)
class Outcome:
    """What became of a turn.

    Attributes:
        state: of the turn, see `openclaw.ledger.schema`.
        reason: why it gives no sample, or why its sample was dropped; None otherwise.
        score: of the verdict; None without one.
        score_source: who gave the score; None without one.
        hint: the accepted hint, or None.
        judge_attempts: attempts to judge it that failed.
        sample: state of its newest sample that was not dropped, or else of the newest; None without one.
        step: the rollout id of the step that uses the sample, or None.
        weight_version: the weights after that step, once they are live.
    """

    state: TurnState
    reason: str | None
    score: int | None
    score_source: ScoreSource | None
    hint: str | None
    judge_attempts: int
    sample: SampleState | None
    step: int | None
    weight_version: str | None


@dataclass(frozen=True, slots=True)
class Busy:
    """When a turn was answered and judged: seconds since the epoch, and how many of them the judging took.

    ``judged_at`` is None before it was judged.
    """

    created_at: float
    finished_at: float
    judged_at: float | None
    judge_seconds: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session in numbers.

    Attributes:
        session_id: as the ledger has it.
        newest: number of its newest turn.
        turns: number of its turns, side turns included.
        sides: of them, side turns.
        began_at: when its first request came, seconds since the epoch.
        ended_at: when its last reply ended.
        scores: verdicts by score.
        samples: its samples by state.
        asked: the last message of its first request.
    """

    session_id: str
    newest: int
    turns: int
    sides: int
    began_at: float
    ended_at: float
    scores: Counter[int]
    samples: Counter[str]
    asked: Message


@dataclass(frozen=True)
class ServedTurn:
    """A reply that a client got.

    Attributes:
        response_ids: the ids that the engine sampled.
        cut: whether a length limit ended it.
        malformed_calls: tool calls in it that could not be read.
        seconds: from the request to the last token.
        score: the verdict's score, -1, 0 or 1; None before it.
    """

    response_ids: Sequence[int]
    cut: bool
    malformed_calls: int
    seconds: float
    score: int | None


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Views:
    """What reports, commands and clients read.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from lab.testkit.ledger_records import make_turn
        >>> from openclaw.ledger.store import Ledger
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")
        >>> _ = ledger.turns.record(make_turn("chatcmpl-1"))
        >>> ledger.views.outcome("chatcmpl-1").state
        'waiting'
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def outcome(self, turn_id: str) -> Outcome:
        """Return what became of a turn.

        Raises:
            UnknownRecordError: if the ledger has no such turn.
        """
        rows = self._database.rows(QUERY, (turn_id,))
        if not rows:
            raise UnknownRecordError(f"{self._database.path} holds no turn {turn_id!r}")
        row = rows[0]
        verdict = Verdict() if row["verdict"] is None else Verdict.from_dict(json.loads(row["verdict"]))
        return Outcome(
            state=row["state"],
            reason=row["reason"],
            score=verdict.score,
            score_source=None if verdict.score is None else verdict.score_source,
            hint=verdict.hint,
            judge_attempts=row["judge_attempts"],
            sample=row["sample"],
            step=row["rollout_id"],
            weight_version=row["weight_version"],
        )

    def judge_error(self) -> JudgeError | None:
        """Return the newest failure of the judge side that no later attempt has mended; None if there is none."""
        rows = self._database.rows(
            "SELECT id, judge_error, judge_attempts, COUNT(*) OVER () AS n FROM turns"
            " WHERE state = 'pending' AND judge_error IS NOT NULL ORDER BY number DESC LIMIT 1"
        )
        return next((JudgeError(row["id"], row["judge_error"], row["judge_attempts"], row["n"]) for row in rows), None)

    def degenerate_share(self, reasons: Collection[str], person: str | None = None) -> float:
        """Return the share of the last `JUDGED` judged turns that one of ``reasons`` kept from praise; 0 without any.

        With ``person``, of the last ones of this person.
        """
        of_person, names = ("1", ()) if person is None else sessions_of(person)
        rows = self._database.rows(
            f"SELECT reason, (SELECT MAX(json_extract(sample, '$.metadata.{BLAMED}')) FROM samples WHERE turn_id = turns.id"
            " AND origin = 'live') AS blamed FROM turns WHERE number IN (SELECT number FROM turns"
            f" WHERE {of_person} AND state = 'judged' ORDER BY number DESC LIMIT {JUDGED})",
            names,
        )
        bad = sum(row["reason"] in reasons or row["blamed"] in reasons for row in rows)
        return bad / len(rows) if rows else 0.0

    def counts(self) -> dict[str, Any]:
        """Return counts of turns and samples by state, and by reason for not being trained.

        Keys: ``turns``, ``samples`` {state: n}; ``turn_reasons``, ``sample_reasons`` {reason: n}; ``sessions``,
        ``steps``, ``scored`` (turns that came as text), ``judge_attempts_failed``: n.
        """

        def grouped(sql: str) -> dict[str, int]:
            return {row["name"]: row["n"] for row in self._database.rows(sql)}

        def single(sql: str) -> int:
            return self._database.rows(sql)[0]["n"]

        by_state = "SELECT state AS name, COUNT(*) AS n FROM {0} GROUP BY state ORDER BY state"
        by_reason = "SELECT reason AS name, COUNT(*) AS n FROM {0} WHERE reason IS NOT NULL GROUP BY reason ORDER BY 1"
        return {
            "turns": grouped(by_state.format("turns")),
            "samples": grouped(by_state.format("samples")),
            "turn_reasons": grouped(by_reason.format("turns")),
            "sample_reasons": grouped(by_reason.format("samples")),
            "sessions": single("SELECT COUNT(*) AS n FROM sessions"),
            "steps": single("SELECT COUNT(*) AS n FROM steps WHERE undone_at IS NULL"),
            "scored": single("SELECT COUNT(*) AS n FROM turns WHERE scored = 1"),
            "judge_attempts_failed": single("SELECT COALESCE(SUM(judge_attempts), 0) AS n FROM turns"),
        }

    def owner_samples(self) -> list[OwnerSamples]:
        """Return the samples of each owner that has any, by name; dropped samples do not count."""
        rows = self._database.rows(
            f"SELECT turns.session_id, samples.state, {STATED} AS stated, COUNT(*) AS n FROM samples"
            " JOIN turns ON turns.id = samples.turn_id WHERE samples.state != 'dropped' GROUP BY 1, 2, 3"
        )
        counts: dict[str, Counter[str]] = {}
        for row in rows:
            owner = counts.setdefault(root(owner_of(row["session_id"])), Counter())
            owner["ready" if row["state"] == "ready" else "used"] += row["n"]
            owner["stated"] += row["n"] if row["stated"] else 0
        return [OwnerSamples(name, n["ready"], n["used"], n["stated"]) for name, n in sorted(counts.items())]

    def sample_records(self, turn_id: str | None = None) -> list[SampleRecord]:
        """Return all samples, or those of one turn, oldest first; turns of an episode share samples."""
        of_turn = "WHERE samples.turn_id = ? OR samples.id = (SELECT segment FROM turns WHERE id = ?)"
        condition, parameters = (of_turn, (turn_id, turn_id)) if turn_id else ("", ())
        rows = self._database.rows(
            "SELECT samples.*, steps.weight_version, steps.live_at FROM samples LEFT JOIN steps"
            " ON steps.rollout_id = samples.rollout_id AND steps.undone_at IS NULL"
            f" AND samples.state IN ('leased', 'trained') {condition} ORDER BY samples.id",
            parameters,
        )
        return [self._sample_record(row) for row in rows]

    def turn_records(self, session_id: str | None = None) -> Iterator[TurnRecord]:
        """Yield every turn in the order it was recorded, or those of one session."""
        condition, parameters = ("AND session_id = ?", (session_id,)) if session_id else ("", ())
        last = 0
        while True:
            rows = self._database.rows(
                f"{_RECORDS} WHERE number > ? {condition} ORDER BY number LIMIT {_RECORDS_PAGE}",
                (last, *parameters),
            )
            if not rows:
                return
            for row in rows:
                last = row["number"]
                yield self._turn_record(row)

    def turn_record(self, turn_id: str) -> TurnRecord:
        """Return one turn; raise UnknownRecordError if the ledger does not hold it."""
        rows = self._database.rows(f"{_RECORDS} WHERE turns.id = ?", (turn_id,))
        if not rows:
            raise UnknownRecordError(f"{self._database.path} holds no turn {turn_id!r}")
        return self._turn_record(rows[0])

    def session_ids(self) -> list[str]:
        """Return the sessions in the order of their first turn."""
        rows = self._database.rows("SELECT session_id FROM turns GROUP BY session_id ORDER BY MIN(number)")
        return [row["session_id"] for row in rows]

    def step_records(self) -> list[dict[str, Any]]:
        """Return the steps that were not undone, oldest first, with their numbers of samples, deleted ones included."""
        used = self.samples_of_steps()
        rows = self._database.rows("SELECT * FROM steps WHERE undone_at IS NULL ORDER BY number")
        names = ("rollout_id", "weight_version", "trained_at", "live_at", "person")
        return [{**{name: row[name] for name in names}, "samples": used[row["rollout_id"]]} for row in rows]

    def _turn_record(self, row: sqlite3.Row) -> TurnRecord:
        return TurnRecord(
            turn=decode_turn(row),
            verdict=None if row["verdict"] is None else decode_verdict(row),
            samples=self.sample_records(row["id"]),
            judge_attempts=row["judge_attempts"],
            judge_error=row["judge_error"],
            kept=None if row["kept"] is None else Verdict.from_dict(json.loads(row["kept"])),
        )

    def _sample_record(self, row: sqlite3.Row) -> SampleRecord:
        return SampleRecord(
            id=row["id"],
            turn_id=row["turn_id"],
            sample=decode_sample(row),
            state=row["state"],
            reason=row["reason"],
            rollout_id=row["rollout_id"],
            weight_version=row["weight_version"],
            live_at=row["live_at"],
        )

    def turn_facts(self, owner: str | None = None, after: int = 0) -> Iterator[TurnFacts]:
        """Yield every turn of ``owner`` (of everybody: None) after a turn's number, in the order it was recorded."""
        last = after
        while rows := self._database.rows(_TURNS, (last, _PAGE)):
            last = rows[-1]["number"]
            for row in rows:
                if not belongs(row["session_id"], owner):
                    continue
                columns: dict[str, Any] = dict(row)
                columns["votes"] = tuple(VoteFact(*vote) for vote in json.loads(row["votes"]))
                columns |= {name: bool(row[name]) for name in ("is_first", "hinted", "elsewhere")}
                yield TurnFacts(**columns)

    def sample_facts(self, owner: str | None = None) -> Iterator[SampleFacts]:
        """Yield every sample of ``owner`` (of everybody: None), oldest first."""
        last = 0
        while rows := self._database.rows(_SAMPLES, (last, _PAGE)):
            last = rows[-1]["id"]
            for row in rows:
                if belongs(row["session_id"], owner):
                    columns: dict[str, Any] = dict(row)
                    columns |= {name: bool(row[name]) for name in ("of_episode", "of_practice")}
                    yield SampleFacts(**columns)

    def first_scores(self, owner: str | None = None) -> list[tuple[str, int]]:
        """Return the version and the score of each judged first reply to ``owner`` (to everybody: None), oldest first."""
        rows = self._database.rows("SELECT session_id, version, score FROM first_scores ORDER BY number")
        return [(row["version"], row["score"]) for row in rows if belongs(row["session_id"], owner)]

    def from_logs(self, owner: str | None = None) -> bool:
        """Return whether ``owner`` (anybody: None) has turns that came as text."""
        rows = self._database.rows("SELECT DISTINCT session_id FROM turns WHERE scored = 1")
        return any(belongs(row["session_id"], owner) for row in rows)

    def conversations(self, owner: str | None, before: int, limit: int) -> list[Conversation]:
        """Return the sessions of ``owner`` (of everybody: None) that were active last, the latest first.

        Args:
            owner: see `openclaw.owners`.
            before: only sessions whose newest turn has a smaller number.
            limit: most sessions to return.
        """
        of_person, names = ("1", ()) if owner is None else sessions_of(root(owner))
        rows = self._database.rows(
            f"SELECT session_id, MAX(number) AS newest FROM turns WHERE {of_person} GROUP BY session_id ORDER BY newest DESC",
            names,
        )
        newest = {
            row["session_id"]: row["newest"]
            for row in rows
            if row["newest"] < before and belongs(row["session_id"], owner)
        }
        chosen = tuple(newest)[:limit]
        marks = ", ".join("?" for _ in chosen)
        scores: dict[str, Counter[int]] = {name: Counter() for name in chosen}
        for row in self._database.rows(
            "SELECT session_id, json_extract(verdict, '$.score') AS score FROM turns JOIN verdicts ON turn_id = turns.id"
            f" WHERE session_id IN ({marks}) AND score IS NOT NULL",
            chosen,
        ):
            scores[row["session_id"]][row["score"]] += 1
        samples: dict[str, Counter[str]] = {name: Counter() for name in chosen}
        for row in self._database.rows(
            "SELECT session_id, samples.state, COUNT(*) AS n FROM turns JOIN samples ON turn_id = turns.id"
            f" WHERE session_id IN ({marks}) GROUP BY 1, 2",
            chosen,
        ):
            samples[row["session_id"]][row["state"]] = row["n"]
        told = self._database.rows(
            "SELECT session_id, COUNT(*) AS turns, SUM(kind = 'side') AS sides, MIN(created_at) AS began_at,"
            " MAX(finished_at) AS ended_at, (SELECT json_extract(messages, '$[#-1]') FROM turns AS first"
            " WHERE first.session_id = turns.session_id ORDER BY number LIMIT 1) AS asked"
            f" FROM turns WHERE session_id IN ({marks}) GROUP BY session_id",
            chosen,
        )
        conversations = [
            Conversation(
                newest=newest[row["session_id"]],
                scores=scores[row["session_id"]],
                samples=samples[row["session_id"]],
                asked=json.loads(row["asked"] or '{"role": "user", "content": ""}'),
                **{name: row[name] for name in ("session_id", "turns", "sides", "began_at", "ended_at")},
            )
            for row in told
        ]
        return sorted(conversations, key=lambda each: -each.newest)

    def turns_of_session(self, session_id: str, after: int, limit: int) -> list[tuple[int, str]]:
        """Return number and id of the turns of a session with larger numbers than ``after``, oldest first."""
        rows = self._database.rows(
            "SELECT number, id FROM turns WHERE session_id = ? AND number > ? ORDER BY number LIMIT ?",
            (session_id, after, limit),
        )
        return [(row["number"], row["id"]) for row in rows]

    def busy(self, owner: str | None, newest: int) -> list[Busy]:
        """Return when the last ``newest`` turns of ``owner`` (of everybody: None) were answered and judged, oldest first."""
        of_person, names = ("1", ()) if owner is None else sessions_of(root(owner))
        rows = self._database.rows(
            "SELECT session_id, created_at, finished_at, judged_at, json_extract(verdict, '$.seconds') AS seconds"
            f" FROM turns LEFT JOIN verdicts ON turn_id = turns.id WHERE {of_person} ORDER BY number DESC LIMIT {int(newest)}",
            names,
        )
        return [
            Busy(row["created_at"], row["finished_at"], row["judged_at"], row["seconds"] or 0.0)
            for row in reversed(rows)
            if belongs(row["session_id"], owner)
        ]

    def number_of(self, turn_id: str, default: int) -> int:
        """Return a turn's number in the order of all, ``default`` if there is no such turn."""
        rows = self._database.rows("SELECT number FROM turns WHERE id = ?", (turn_id,))
        return rows[0]["number"] if rows else default

    def newest_of_session(self, session_id: str, limit: int = 1) -> list[str]:
        """Return the newest turns of a session, newest first."""
        rows = self._database.rows(
            "SELECT id FROM turns WHERE session_id = ? ORDER BY number DESC LIMIT ?", (session_id, limit)
        )
        return [row["id"] for row in rows]

    def lessons_of_turn(self, turn_id: str) -> list[tuple[str, str]]:
        """Return the lessons of a turn as (role, text); the role is ``said``, ``read`` or ``without`` (`openclaw.ledger.schema`)."""
        rows = self._database.rows(
            "SELECT role, text FROM lesson_turns JOIN lessons ON lessons.id = lesson WHERE turn_id = ? ORDER BY role, text",
            (turn_id,),
        )
        return [(row["role"], row["text"]) for row in rows]

    def newest_turn(self) -> int:
        """Return the number of the newest turn; 0 without any. Numbers count from 1."""
        return self._database.rows("SELECT COALESCE(MAX(number), 0) AS n FROM turns")[0]["n"]

    def newest_steps(self, limit: int, person: str | None = None) -> list[StepFact]:
        """Return the newest steps that were not undone, newest first; with ``person``, none of another one's adapter."""
        rows = self._database.rows(
            "SELECT rollout_id, weight_version, trained_at, live_at, person FROM steps WHERE undone_at IS NULL"
            " AND (?1 IS NULL OR person IS NULL OR person = ?1) ORDER BY number DESC LIMIT ?2",
            (person, limit),
        )
        return [StepFact(**dict(row)) for row in rows]

    def step_count(self) -> int:
        """Return the number of steps that were not undone."""
        return self._database.rows("SELECT COUNT(*) AS n FROM steps WHERE undone_at IS NULL")[0]["n"]

    def gate_decisions(self) -> list[GateDecision]:
        """Return what the gate and people decided about updates, oldest first, without the numbers of `decisions`."""
        result = self._database.rows(
            "SELECT rollout_id, kind, weight_version, why, by_margin, decided_at, person FROM decisions"
            " WHERE undone_at IS NULL ORDER BY number"
        )
        rows: list[dict[str, Any]] = [dict(row) for row in result]
        for row in rows:
            row["by_margin"] = bool(row["by_margin"])
        return [GateDecision(**row) for row in rows]

    def turn_texts(self, numbers: Sequence[int]) -> Iterator[TurnText]:
        """Yield what was asked and answered in the turns of these numbers."""
        for start in range(0, len(numbers), _TEXTS):
            part = tuple(numbers[start : start + _TEXTS])
            marks = ", ".join("?" for _ in part)
            sql = f"SELECT number, messages, response_message FROM turns WHERE number IN ({marks}) ORDER BY number"
            for row in self._database.rows(sql, part):
                yield TurnText(row["number"], json.loads(row["messages"]), json.loads(row["response_message"]))

    def turn_ids(self, begin: str, limit: int = 50) -> list[str]:
        """Return up to ``limit`` turns whose ids begin like that, oldest first."""
        rows = self._database.rows(
            "SELECT id FROM turns WHERE substr(id, 1, ?) = ? ORDER BY number LIMIT ?", (len(begin), begin, limit)
        )
        return [row["id"] for row in rows]

    def turn_at(self, session_id: str, index: int) -> str | None:
        """Return the turn at a position of a session, or None."""
        rows = self._database.rows("SELECT id FROM turns WHERE session_id = ? AND position = ?", (session_id, index))
        return rows[0]["id"] if rows else None

    def side_requests(self, limit: int) -> list[tuple[list[Message], bool]]:
        """Return the messages of the newest side turns, and whether each offered tools."""
        rows = self._database.rows(
            "SELECT messages, tools FROM turns WHERE kind = 'side' ORDER BY number DESC LIMIT ?", (limit,)
        )
        return [(json.loads(row["messages"]), bool(json.loads(row["tools"]))) for row in rows]

    def samples_of_steps(self) -> Counter[int]:
        """Return how many samples each rollout's step used, deleted ones included."""
        rows = self._database.rows(
            "SELECT rollout_id, COUNT(*) AS n FROM ("
            "SELECT rollout_id FROM samples WHERE state IN ('leased', 'trained')"
            " UNION ALL SELECT rollout_id FROM forgotten_samples WHERE rollout_id IS NOT NULL) GROUP BY rollout_id"
        )
        return Counter({row["rollout_id"]: row["n"] for row in rows})

    def served_turns(self, version: str, after: int, count: int) -> list[ServedTurn]:
        """Return the newest turns of a version that were not aborted, newest first.

        Args:
            version: of the weights.
            after: only turns with a larger number.
            count: most turns to return.
        """
        rows = self._database.rows(
            "SELECT response_ids, finish_reason, malformed_calls, finished_at - created_at AS seconds, verdict"
            " FROM turns LEFT JOIN verdicts ON verdicts.turn_id = turns.id"
            " WHERE number > ? AND copied = 0 AND scored = 0 AND finish_reason <> 'abort'"
            f" AND weight_versions <> '[]' AND NOT EXISTS ({_OTHER_VERSION}) ORDER BY number DESC LIMIT ?",
            (after, version, count),
        )
        return [
            ServedTurn(
                response_ids=unpack_ids(row["response_ids"]),
                cut=row["finish_reason"] == "length",
                malformed_calls=row["malformed_calls"],
                seconds=row["seconds"],
                score=json.loads(row["verdict"]).get("score") if row["verdict"] else None,
            )
            for row in rows
        ]
