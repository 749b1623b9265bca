"""Feedback: a person's opinion on a reply outside of the conversation, how it is read, and corrections of what was learned.

Guarantees: feedback is always stored; repeating it is a no-op. Until a step has used the turn's samples it counts
(``applied``) as the turn's next state, or in addition to it; a turn that was judged before is judged again, and its samples
are dropped. After that, a stated opinion counts as a correction, and words alone do not.

A stated opinion (thumbs or score) becomes the verdict's score without a judge. So does a message or a comment that is only
a thumb (`openclaw.messages.thumbs`), and what a person does with a reply (`openclaw.messages.signals`), whose weight its reward
has. Words are a next state like any other. Of several statements on one reply, the last opinion and all words count. A weak
action counts once its session ends without any reaction. The choices of one request together have the weight of one reply, however many of them a
person rates; a judge's or a rule's score counts in full.

A correction is a further sample of the same turn that turns the reward around:

    reward of the correction = what the person's opinion gives - the sum of what steps have learned from the turn

So all steps together have learned what the person says: after a +1 a thumbs-down gives -2. The sample has the ids and
log-probabilities with which the reply was sampled, so its ratio is that of any other stale sample, and the bound on
staleness holds for it. It has no teacher and no baseline, since the difference of two rewards needs none. At most one
correction up and one down per turn are trained, each at most once. One that waits is replaced by a later opinion. Its reward
is fixed when a batch takes it: if the first sample's step was undone or refused meanwhile, only what is still learned counts.
The samples of episodes, and those of a method without rewards, have nothing to turn around.
"""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from groundwork.chat_messages import Message
from openclaw.ledger.codec import decode_feedback
from openclaw.ledger.database import Database, move_samples
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import (
    BASELINE,
    BLAMED,
    WEIGHT,
    Feedback,
    Thumbs,
    Turn,
    TurnState,
    Verdict,
)
from openclaw.ledger.turns import FIRST_NEXT_STATE, SUPERSEDED, Turns
from openclaw.messages.signals import ACTIONS, CORRECTED, WEAK, corrects, is_correction
from openclaw.messages.thumbs import thumb_of, without_thumbs
from slime.utils.types import Sample

THUMBS_SCORE: dict[Thumbs, int] = {"up": 1, "down": -1}
HALF = 0.5
EDITED = "I changed your reply to this:"
"""Stands before an edited reply where a judge reads it."""


@dataclass(frozen=True)
class Opinion:
    """The sum of all feedback on one reply.

    Attributes:
        score: -1, 0 or 1; None if nobody stated one, and no action says one.
        texts: feedback in words, oldest first, without duplicates.
        weight: of the score.
        edit: the reply as the person last edited it, or None.
    """

    score: int | None = None
    texts: tuple[str, ...] = ()
    weight: float = 1.0
    edit: str | None = None


def stated_score(feedback: Feedback) -> int | None:
    """Return a statement's score, rounded to -1, 0 or 1, with halves away from 0."""
    if feedback.score is not None:
        return 0 if abs(feedback.score) < HALF else 1 if feedback.score > 0 else -1
    thumbs = feedback.thumbs or thumb_of(feedback.text or "")
    return THUMBS_SCORE[thumbs] if thumbs else None


def opinion(feedback: Sequence[Feedback], turn: Turn | None = None) -> Opinion:
    """Return the combined opinion of statements and actions, given oldest first, and of what is ``turn``'s next state.

    A stated opinion outranks a correction or an edit, these outrank a judge, and words outrank a weak action.
    """
    scores = [(item.created_at, score) for item in feedback if (score := stated_score(item)) is not None]
    messages, thumb = _conversation(turn) if turn is not None else ([], None)
    if turn is not None and thumb:
        scores.append((turn.next_state_at or 0.0, THUMBS_SCORE[thumb]))
    scores.sort(key=lambda each: each[0])
    texts = tuple(dict.fromkeys(item.text for item in feedback if item.text and not thumb_of(item.text)))
    edit = next((item.edit for item in reversed(feedback) if item.edit), None)
    if scores:
        return Opinion(scores[-1][1], texts, edit=edit)
    regenerated = turn is not None and turn.signal == "regenerated"
    in_words = bool(texts or messages) and not regenerated
    signals = [
        ACTIONS[item.action] for item in feedback if item.action and not (ACTIONS[item.action].weak and in_words)
    ]
    signals += [ACTIONS["regenerated"]] if regenerated and not texts else []
    if corrects(messages) or any(map(is_correction, texts)):
        signals = [CORRECTED]
    said = min(reversed(signals), key=lambda signal: signal.weak, default=None)
    return Opinion(said.score, texts, said.weight, edit) if said else Opinion(None, texts, edit=edit)


def as_next_state(feedback: Feedback) -> list[Message]:
    """Return one statement as the ledger's next state."""
    score = stated_score(feedback)
    without_words = f"(feedback: {feedback.action if score is None else f'{score:+d}'})"
    return [{"role": "user", "content": feedback.text or without_words}]


def judged_messages(turn: Turn, stated: Opinion) -> list[Message]:
    """Return the judges' messages: the next state from the conversation, then feedback in words.

    The result is empty if the only reaction was an opinion without words.
    """
    edited = [] if stated.edit is None else [f"{EDITED}\n{stated.edit}"]
    return _conversation(turn)[0] + [{"role": "user", "content": text} for text in (*stated.texts, *edited)]


def _conversation(turn: Turn) -> tuple[list[Message], Thumbs | None]:
    """Return what followed a turn in the conversation: words and tool results, and a thumb."""
    if turn.signal == "feedback":
        return [], None
    return without_thumbs(turn.next_state or [], turn.response_message)


def weighted(samples: Sequence[Sample], verdict: Verdict, weight: float) -> list[Sample]:
    """Return the samples of a verdict; one that feedback gave has the weight of the opinion.

    Args:
        samples: of one turn.
        verdict: the turn's.
        weight: of the opinion, divided by the choices of the turn's request, which share the weight of a reply.
    """
    if verdict.score_source != "feedback":
        return list(samples)
    result = [copy.copy(sample) for sample in samples]
    for sample in result:
        sample.reward *= weight
        sample.metadata = {**sample.metadata, WEIGHT: weight}
    return result


FEEDBACK_OF_TURN = "SELECT * FROM feedback WHERE turn_id = ? ORDER BY id"
CORRECTS, TARGET = "corrects", "target"
"""Keys in a correction's metadata: that it is one, and the reward that all samples of its turn shall have together."""
NO_TEACHER = (
    "teacher_log_probs", "teacher_topk_log_probs", "teacher_topk_indices", "rollout_topk_log_probs",
)  # fmt: skip
EQUAL = 1e-9
OF_TURN = "SELECT * FROM samples WHERE turn_id = ? AND origin = 'live' AND episode IS NULL ORDER BY id"


@dataclass(frozen=True)
class FeedbackReceipt:
    """The outcome of feedback.

    Attributes:
        applied: whether it counts for the verdict of its turn.
        repeated: whether the same feedback was there before; then nothing was written.
        state: the turn's state afterwards.
        reason: why the turn gives no sample, if known.
    """

    applied: bool
    repeated: bool
    state: TurnState
    reason: str | None


class FeedbackLog:
    """All feedback of the ledger."""

    def __init__(self, database: Database, turns: Turns) -> None:
        self._database = database
        self._turns = turns

    def of(self, turn_id: str) -> list[Feedback]:
        """Return all feedback on a turn, oldest first."""
        return [decode_feedback(row) for row in self._database.rows(FEEDBACK_OF_TURN, (turn_id,))]

    def record(self, feedback: Feedback, next_state: Sequence[Message]) -> FeedbackReceipt:
        """Commit feedback; a turn without a next state takes it as next state and becomes pending.

        Args:
            feedback: the feedback.
            next_state: the feedback as messages for the judge.

        Raises:
            UnknownRecordError: if the ledger has no such turn.
        """
        if (redaction := self._database.redaction) is not None:
            text, edit = (said and redaction.text(said) for said in (feedback.text, feedback.edit))
            feedback = replace(feedback, text=text, edit=edit)
        with self._database.transaction() as connection:
            row = connection.execute(
                "SELECT state, reason, signal FROM turns WHERE id = ?", (feedback.turn_id,)
            ).fetchone()
            result: Mapping[str, Any] | None = row and dict(row)
            if result is None:
                raise UnknownRecordError(f"{self._database.path} holds no turn {feedback.turn_id!r}")
            earlier = self.of(feedback.turn_id)
            if earlier and _said(earlier[-1]) == _said(feedback):
                return FeedbackReceipt(earlier[-1].applied, True, result["state"], result["reason"])
            weak = is_weak(feedback)
            if result["state"] == "judged" and not weak and self._turns.take_back(connection, feedback.turn_id):
                result = {"state": "pending", "reason": None, "signal": result["signal"]}
            said, corrected = opinion([feedback]), False
            if result["state"] == "judged" and said.score is not None and not weak:
                share = said.weight / self._turns.choices(feedback.turn_id)
                corrected = correct(self._database, connection, feedback.turn_id, said.score, share)
            starts = result["state"] in FIRST_NEXT_STATE
            if weak:  # a reply that was regenerated has said more than a copy
                starts = result["state"] == "ended" and result["signal"] is None
            if starts:
                self._turns.set_next_state(connection, feedback.turn_id, next_state, feedback.created_at, "feedback")
            applied = starts or corrected or (result["state"] == "pending" and not weak)
            self._database.insert(connection, "feedback", {**asdict(feedback), "applied": int(applied)})
        if applied:
            return FeedbackReceipt(True, False, "judged" if corrected else "pending", None)
        return FeedbackReceipt(False, False, result["state"], result["reason"])


def _said(feedback: Feedback) -> tuple[object, ...]:
    return feedback.thumbs, feedback.score, feedback.text, feedback.action, feedback.edit


def is_weak(feedback: Feedback) -> bool:
    """Return whether a statement is an action that any other reaction outranks."""
    return opinion([feedback]).texts == () and stated_score(feedback) is None and feedback.action in WEAK


def settle_actions(connection: sqlite3.Connection, turns: Turns, session_id: str, at: float) -> None:
    """Let weak actions count whose turns ended without a reaction, inside a transaction."""
    rows = connection.execute(
        "SELECT feedback.* FROM feedback JOIN turns ON turns.id = turn_id WHERE session_id = ? AND state = 'ended'"
        " AND signal IS NULL AND action IS NOT NULL AND applied = 0 ORDER BY feedback.id",
        (session_id,),
    ).fetchall()
    for feedback in {row["turn_id"]: decode_feedback(row) for row in rows}.values():
        turns.set_next_state(connection, feedback.turn_id, as_next_state(feedback), at, "feedback")
        connection.execute("UPDATE feedback SET applied = 1 WHERE turn_id = ?", (feedback.turn_id,))


def correct(database: Database, connection: sqlite3.Connection, turn_id: str, score: int, share: float) -> bool:
    """Commit an opinion on a turn whose samples steps have used; return False, with nothing written, if it cannot count.

    Args:
        database: the ledger's.
        connection: in a transaction.
        turn_id: a judged turn.
        score: what the person states: -1, 0 or 1.
        share: weight of the opinion, divided by the choices of the turn's request.
    """
    rows = connection.execute(OF_TURN, (turn_id,)).fetchall()
    used = [row for row in rows if row["state"] in ("leased", "trained")]
    first = next((row for row in used if _reward(row) and CORRECTS not in _metadata(row)), None)
    if first is None or not _metadata(first).get("raw_reward"):
        return False
    said = connection.execute("SELECT verdict FROM verdicts WHERE turn_id = ?", (turn_id,)).fetchone()
    if json.loads(said["verdict"])["score"] == score:
        return True
    metadata = _metadata(first)
    scale = _reward(first) / metadata["raw_reward"] / metadata.get(WEIGHT, 1.0)
    target, learned = scale * score * share, sum(map(_reward, used))
    amount = 0.0 if score * learned > 0 else target - learned
    if any(_reward(row) * amount > 0 for row in used if CORRECTS in _metadata(row)):
        return False
    for row in rows:
        if row["state"] == "ready" and CORRECTS in _metadata(row):
            move_samples(connection, "discard", "id = ?", (row["id"],), reason=SUPERSEDED)
    if abs(amount) > EQUAL:
        kept = {name: value for name, value in metadata.items() if name not in (BASELINE, BLAMED, "hint")}
        own = {WEIGHT: share, "raw_reward": float(score), CORRECTS: True, TARGET: target}
        sample = {**json.loads(first["sample"]), "reward": amount, "metadata": {**kept, **own}}
        columns = {**dict(first), **dict.fromkeys(NO_TEACHER), "sample": json.dumps(sample), "state": "ready"}
        columns |= {"reason": None, "rollout_id": None, "created_at": database.clock(), "baseline_role": None}
        columns["metered_on"] = None
        del columns["id"]
        database.insert(connection, "samples", columns)
    connection.execute(
        "UPDATE samples SET baseline_reward = ?, baseline_role = CASE WHEN ? THEN baseline_role END WHERE id = ?",
        (scale * score, score != 0, first["id"]),
    )
    connection.execute(
        "UPDATE verdicts SET verdict = json_set(verdict, '$.score', ?, '$.score_source', 'feedback') WHERE turn_id = ?",
        (score, turn_id),
    )
    return True


def fix_rewards(connection: sqlite3.Connection, samples: Sequence[Sample]) -> None:
    """Set the rewards of the corrections among leased samples to what is missing now; each call gives the same."""
    for sample in samples:
        if CORRECTS not in sample.metadata:
            continue
        own, turn_id = sample.metadata["ledger_id"], sample.metadata["turn_id"]
        others = connection.execute(
            "SELECT TOTAL(json_extract(sample, '$.reward')) FROM samples"
            " WHERE turn_id = ? AND origin = 'live' AND episode IS NULL AND id < ? AND state IN ('leased', 'trained')",
            (turn_id, own),
        ).fetchone()
        sample.reward = sample.metadata[TARGET] - others[0]
        connection.execute(
            "UPDATE samples SET sample = json_set(sample, '$.reward', ?) WHERE id = ?", (sample.reward, own)
        )


def _reward(row: Mapping[str, Any] | sqlite3.Row) -> float:
    return float(json.loads(row["sample"])["reward"] or 0.0)


def _metadata(row: Mapping[str, Any] | sqlite3.Row) -> dict[str, Any]:
    return json.loads(row["sample"])["metadata"]
