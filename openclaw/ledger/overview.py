"""Light rows of all turns and samples for reports: numbers and states, without tokens and texts.

Guarantees: read-only, a page at a time, so a run can write between pages. Each page is a consistent snapshot. Two scans
read a whole run; no query is asked per turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import Message
from openclaw.ledger.database import Database
from openclaw.ledger.records import SampleState, ScoreSource, TurnKind, TurnState
from openclaw.owners import owner_of, owns

_PAGE = 2000
_TEXTS = 200
_ASSISTANT = '"role": "assistant"'
"""As `json.dumps` writes it; inside a text its quotes are escaped, so it stands for a message."""
_VOTES = (
    "(SELECT json_group_array(json_array(json_extract(value, '$.judge'), json_extract(value, '$.value'),"
    " json_extract(value, '$.invalid'))) FROM json_each(verdict, '$.votes'))"
)
_ELSEWHERE = "(copied = 1 OR scored = 1 OR state = 'unscored')"
_TURNS = (
    "SELECT number, turns.id, session_id, kind, state, reason, created_at, finished_at, next_state_at, judged_at, judge_attempts,"
    " finish_reason, temperature, top_p, length(response_ids) / 4 AS response_tokens,"
    f" instr(messages, '{_ASSISTANT}') = 0 AS is_first, {_ELSEWHERE} AS elsewhere,"
    f" CASE WHEN NOT {_ELSEWHERE} THEN json_extract(weight_versions, '$[0].version') END AS version,"
    " json_extract(verdict, '$.score') AS score, json_extract(verdict, '$.score_source') AS score_source,"
    " json_extract(verdict, '$.seconds') AS seconds, json_extract(verdict, '$.hint') IS NOT NULL AS hinted,"
    f" {_VOTES} AS votes FROM turns LEFT JOIN verdicts ON verdicts.turn_id = turns.id"
    " WHERE number > ? ORDER BY number LIMIT ?"
)
_SAMPLES = (
    "SELECT samples.id, samples.turn_id, turns.session_id, samples.state, samples.reason, samples.rollout_id,"
    " samples.created_at, json_extract(sample, '$.reward') AS reward, samples.episode IS NOT NULL AS of_episode FROM samples"
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


@dataclass(frozen=True, slots=True)
class TurnText:
    """What was asked and answered in a turn."""

    number: int
    messages: list[Message]
    response_message: Message


@dataclass(frozen=True, slots=True)
class StepFact:
    """A step: which batch it used, and since when its weights serve under which version."""

    rollout_id: int
    weight_version: str
    trained_at: float
    live_at: float


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What was decided about an update: ``kind`` (such as ``step`` or ``refused``), and why, in one line.

    ``by_margin``: whether only the users' opinions spoke against it, so that a person may accept it.
    """

    rollout_id: int
    kind: str
    weight_version: str
    why: str
    by_margin: bool
    decided_at: float


def belongs(session_id: str, owner: str | None) -> bool:
    """Return whether a stored session belongs to ``owner`` or its children; every one does if it is None."""
    return owner is None or owns(owner, owner_of(session_id))


class OverviewQueries(Database):
    """The ledger's queries over a whole run."""

    def turn_facts(self, owner: str | None = None, after: int = 0) -> Iterator[TurnFacts]:
        """Yield every turn of ``owner`` (of everybody: None) after a turn's number, in the order it was recorded."""
        last = after
        while found := self.rows(_TURNS, (last, _PAGE)):
            last = found[-1]["number"]
            for row in found:
                if not belongs(row["session_id"], owner):
                    continue
                columns: dict[str, Any] = dict(row)
                columns["votes"] = tuple(VoteFact(*vote) for vote in json.loads(row["votes"]))
                columns |= {name: bool(row[name]) for name in ("is_first", "hinted", "elsewhere")}
                yield TurnFacts(**columns)

    def sample_facts(self, owner: str | None = None) -> Iterator[SampleFacts]:
        """Yield every sample of ``owner`` (of everybody: None), oldest first."""
        last = 0
        while found := self.rows(_SAMPLES, (last, _PAGE)):
            last = found[-1]["id"]
            for row in found:
                if belongs(row["session_id"], owner):
                    columns: dict[str, Any] = {**dict(row), "of_episode": bool(row["of_episode"])}
                    yield SampleFacts(**columns)

    def newest_turn(self) -> int:
        """Return the number of the newest turn; 0 without any. Numbers count from 1."""
        return self.rows("SELECT COALESCE(MAX(number), 0) AS n FROM turns")[0]["n"]

    def newest_steps(self, limit: int) -> list[StepFact]:
        """Return the newest steps that were not undone, newest first."""
        found = self.rows(
            "SELECT rollout_id, weight_version, trained_at, live_at FROM steps WHERE undone_at IS NULL"
            " ORDER BY number DESC LIMIT ?",
            (limit,),
        )
        return [StepFact(**dict(row)) for row in found]

    def step_count(self) -> int:
        """Return the number of steps that were not undone."""
        return self.rows("SELECT COUNT(*) AS n FROM steps WHERE undone_at IS NULL")[0]["n"]

    def gate_decisions(self) -> list[GateDecision]:
        """Return what the gate and people decided about updates, oldest first, without the numbers of `decisions`."""
        found = self.rows(
            "SELECT rollout_id, kind, weight_version, why, by_margin, decided_at FROM decisions"
            " WHERE undone_at IS NULL ORDER BY number"
        )
        rows: list[dict[str, Any]] = [dict(row) for row in found]
        for row in rows:
            row["by_margin"] = bool(row["by_margin"])
        return [GateDecision(**row) for row in rows]

    def turn_texts(self, numbers: Sequence[int]) -> Iterator[TurnText]:
        """Yield what was asked and answered in the turns of these numbers."""
        for start in range(0, len(numbers), _TEXTS):
            part = tuple(numbers[start : start + _TEXTS])
            marks = ", ".join("?" for _ in part)
            sql = f"SELECT number, messages, response_message FROM turns WHERE number IN ({marks}) ORDER BY number"
            for row in self.rows(sql, part):
                yield TurnText(row["number"], json.loads(row["messages"]), json.loads(row["response_message"]))

    def turn_ids(self, begin: str, limit: int = 50) -> list[str]:
        """Return up to ``limit`` turns whose ids begin like that, oldest first."""
        found = self.rows(
            "SELECT id FROM turns WHERE substr(id, 1, ?) = ? ORDER BY number LIMIT ?", (len(begin), begin, limit)
        )
        return [row["id"] for row in found]

    def turn_at(self, session_id: str, index: int) -> str | None:
        """Return the turn at a position of a session, or None."""
        found = self.rows("SELECT id FROM turns WHERE session_id = ? AND position = ?", (session_id, index))
        return found[0]["id"] if found else None

    def side_requests(self, limit: int) -> list[tuple[list[Message], bool]]:
        """Return the messages of the newest side turns, and whether each offered tools."""
        found = self.rows(
            "SELECT messages, tools FROM turns WHERE kind = 'side' ORDER BY number DESC LIMIT ?", (limit,)
        )
        return [(json.loads(row["messages"]), bool(json.loads(row["tools"]))) for row in found]

    def samples_of_steps(self) -> Counter[int]:
        """Return how many samples each rollout's step used, deleted ones included."""
        found = self.rows(
            "SELECT rollout_id, COUNT(*) AS n FROM ("
            "SELECT rollout_id FROM samples WHERE state IN ('leased', 'trained')"
            " UNION ALL SELECT rollout_id FROM forgotten_samples WHERE rollout_id IS NOT NULL) GROUP BY rollout_id"
        )
        return Counter({row["rollout_id"]: row["n"] for row in found})
