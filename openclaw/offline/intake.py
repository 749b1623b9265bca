"""Queues the turns of logs in a run's ledger, once.

Guarantees: the id of a turn follows from its content, so taking in a log again, or a longer version of it, adds only what
is new. Conversations without a name share the turns that are equal, since one may be the longer version of another. The
versions of such a conversation share the session of the shortest one. Texts are redacted as in live traffic; a turn with
a secret is not trained. Turns that cannot be trained are kept with a reason. A conversation that was deleted from the
ledger does not come back, nor does a longer version of it. Passes after the first have ids and sessions of their own,
behind those of the first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from groundwork.chat_messages import Message
from openclaw.ledger.conversations import IMPORTED, ImportedTurn, described_turn, identity_of
from openclaw.ledger.copying import COPIED, copy_run
from openclaw.ledger.records import OF_LOG, PASS, REDACTED, Turn, Verdict, suffixed
from openclaw.ledger.sessions import NO_NEXT_STATE
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import TurnRecord, counted
from openclaw.offline import other_forms
from openclaw.offline.chat_logs import DERIVED, LoggedConversation
from openclaw.offline.reading import Logs
from openclaw.owners import episode_of, owner_of

MEDIA = "log_media"
"""Why a turn of a log is not trained: a message has a picture or file, of which a log's text says nothing."""
UNKNOWN_PART = "log_part"
"""Reason of a turn that is not trained: a message has a part of a kind that nobody here reads."""
DIGEST_BYTES = 12
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Wishes:
    """How logs are taken in.

    Attributes:
        passes: how often each conversation is trained.
        limit: most conversations, the first ones; None: all.
        judge_again: whether verdicts in the logs are left behind.
    """

    passes: int = 1
    limit: int | None = None
    judge_again: bool = False


@dataclass
class Report:
    """What taking in found, for one pass.

    Attributes:
        conversations: how many.
        turns: how many of them are new.
        known: turns that the ledger had.
        forgotten: conversations that are left out, because they were deleted from the ledger.
        to_score: turns of which only the text is known.
        with_verdict: turns whose verdict is kept.
        to_judge: turns with token ids that a judge of this run reads.
        samples: samples that a run had left, ready as they were.
        in_episodes: turns that a run's agents took, which samples of several turns hold.
        reasons: turns and samples that are not trained, and what became no turn, by reason.
    """

    conversations: int = 0
    turns: int = 0
    known: int = 0
    forgotten: int = 0
    to_score: int = 0
    with_verdict: int = 0
    to_judge: int = 0
    samples: int = 0
    in_episodes: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])

    @property
    def most_samples(self) -> int:
        """How many samples they can give at most, those of turns that the ledger had included."""
        return self.to_score + self.to_judge + self.samples + self.known

    def lines(self) -> Iterator[str]:
        """Yield the report for a person."""
        yield f"{counted(self.conversations, 'conversation')}, {counted(self.turns, 'new turn')}"
        if self.known:
            yield f"{self.known} turns were already in the ledger"
        if self.forgotten:
            yield f"{counted(self.forgotten, 'conversation')} left out, which this run was told to forget"
        if self.samples:
            yield f"{counted(self.samples, 'sample')} of the earlier run, trained with the ids and log-probabilities it sampled"
        if self.in_episodes:
            yield f"{counted(self.in_episodes, 'turn')} of agents' episodes, which these samples hold"
        if self.to_score:
            yield f"{counted(self.to_score, 'turn')} to score: rendered once, scored by the engine, marked as scored"
        if self.to_judge:
            yield f"{counted(self.to_judge, 'turn')} to judge, with the ids and log-probabilities that were sampled"
        if self.with_verdict:
            yield f"{counted(self.with_verdict, 'turn')} with a verdict, which is kept (--judge-again asks the judge)"
        for reason, count in sorted(self.reasons.items()):
            yield f"not trained: {reason} {count}"


def take_in(logs: Logs, ledger: Ledger, wishes: Wishes, on_progress: Progress = lambda done, total: None) -> Report:
    """Queue the turns of ``logs``; return the report of the first pass.

    Raises:
        LedgerError: the ledger of the logs or of the run cannot be used.
    """
    reports: list[Report] = []
    for number in range(1, wishes.passes + 1):
        if logs.ledger is not None:
            with closing(Ledger(logs.ledger)) as source:
                reports.append(_take_run(source, ledger, wishes, number, on_progress))
        else:
            spoken = [
                conversation
                for conversation in logs.conversations
                if any(turn.kind == "main" for turn in conversation.turns)
            ]
            reports.append(_take_texts(spoken[: wishes.limit], ledger, wishes, number, on_progress))
    reports[0].reasons.update(logs.left_out)
    return reports[0]


def _take_run(source: Ledger, ledger: Ledger, wishes: Wishes, number: int, on_progress: Progress) -> Report:
    """Copy the turns with token ids, and queue those that came to the run as text."""
    whole_episodes = _whole_episodes(
        [name for name in source.views.session_ids() if _has_turns_to_copy(source, name)], wishes.limit
    )
    sessions = [name for name in whole_episodes if not _forgotten(ledger, name, number)]
    copied = copy_run(source, ledger, sessions, judge_again=wishes.judge_again, number=number, on_progress=on_progress)
    ready = copied.samples.pop("ready", 0)
    judged = copied.turns.pop("judged", 0)
    waiting = copied.turns.pop("pending", 0)
    report = Report(
        conversations=len(whole_episodes),
        turns=judged + waiting + copied.merged + copied.turns.total(),
        known=copied.known,
        forgotten=len(whole_episodes) - len(sessions),
        with_verdict=judged,
        to_judge=waiting,
        samples=ready,
        in_episodes=copied.merged,
        reasons=copied.turns + copied.samples,
    )
    for name in sessions:
        turns = [record for record in source.views.turn_records(name) if record.turn.kind == "main"]
        texts = [turn for turn in turns if turn.turn.state == "unscored" or turn.turn.reason == IMPORTED]
        if texts:
            _queue(
                LoggedConversation(name, name, [_as_imported(text) for text in texts]), ledger, wishes, number, report
            )
    return report


def _whole_episodes(sessions: Sequence[str], limit: int | None) -> list[str]:
    """Return the first ``limit`` sessions, and the others of their episodes, whose samples hold turns of all of them."""
    episodes = {episode_of(owner_of(name)) for name in sessions[:limit]} - {None}
    first = set(sessions[:limit])
    return [name for name in sessions if name in first or episode_of(owner_of(name)) in episodes]


def _has_turns_to_copy(source: Ledger, session_id: str) -> bool:
    return bool(source.database.rows(f"SELECT 1 FROM turns WHERE session_id = ? AND {COPIED} LIMIT 1", (session_id,)))


def _as_imported(record: TurnRecord) -> ImportedTurn:
    turn = record.turn
    return ImportedTurn(
        turn.kind, True, turn.messages, turn.response_message, turn.next_state, turn.tools, turn.chat_template_kwargs,
        record.verdict or record.kept, turn.finish_reason,
    )  # fmt: skip


def _take_texts(
    conversations: Sequence[LoggedConversation], ledger: Ledger, wishes: Wishes, number: int, on_progress: Progress
) -> Report:
    report = Report(conversations=len(conversations))
    names = {item.session_id for item in conversations}
    for done, conversation in enumerate(conversations, start=1):
        versions = [*conversation.beginnings(), conversation.session_id]
        if any(_forgotten(ledger, name, number) for name in versions):
            report.forgotten += 1
        else:
            shortest = next(name for name in versions if name in names or _has_session(ledger, name))
            _queue(replace(conversation, session_id=shortest), ledger, wishes, number, report)
        on_progress(done, len(conversations))
    return report


def _queue(conversation: LoggedConversation, ledger: Ledger, wishes: Wishes, number: int, report: Report) -> None:
    """Commit the turns of a conversation that the ledger lacks."""
    session_id = suffixed(conversation.session_id, number)
    seen: Counter[str] = Counter()
    turns: list[tuple[Turn, Verdict | None]] = []
    for position, described in enumerate(conversation.turns):
        turn = described_turn("", session_id, position, described, ledger)
        identity = identity_of(turn)
        scope = _scope(session_id) if described.trainable else session_id
        digest = blake2b(json.dumps([scope, seen[identity], identity]).encode(), digest_size=DIGEST_BYTES)
        seen[identity] += 1
        reason = _untrained(turn, described)
        kept = None if wishes.judge_again else described.verdict
        verdict = kept and kept.redacted(ledger.database.redaction)
        turn = replace(
            turn, id=f"{OF_LOG}{digest.hexdigest()}", state="excluded" if reason else "unscored", reason=reason
        )
        turns.append((turn, verdict))
    known = {turn.id for turn, _ in turns if ledger.database.rows("SELECT 1 FROM turns WHERE id = ?", (turn.id,))}
    if len(known) < len(turns):
        ledger.logs.record(session_id, turns)
    for turn, verdict in turns:
        if turn.id in known:
            report.known += 1
            continue
        report.turns += 1
        if turn.reason is not None:
            report.reasons[turn.reason] += 1
        else:
            report.to_score += 1
            report.with_verdict += verdict is not None


def _has_session(ledger: Ledger, session_id: str) -> bool:
    return bool(ledger.database.rows("SELECT 1 FROM sessions WHERE id = ?", (session_id,)))


def _forgotten(ledger: Ledger, session_id: str, number: int) -> bool:
    """Return whether a conversation was deleted from the ledger, or this pass of it was."""
    return any(map(ledger.sessions.is_forgotten, {session_id, suffixed(session_id, number)}))


def _scope(session_id: str) -> str:
    """Return what the turns of a session differ in from equal ones elsewhere: its name, or the pass if it has none."""
    return f"{DERIVED}{session_id.partition(PASS)[2]}" if session_id.startswith(DERIVED) else session_id


def _untrained(turn: Turn, described: ImportedTurn) -> str | None:
    """Return why a turn of a log is not trained, or None."""
    if turn.kind == "side":
        return "side"
    before = (described.messages, described.response_message, described.tools, described.chat_template_kwargs)
    if before != (turn.messages, turn.response_message, turn.tools, turn.chat_template_kwargs):
        return REDACTED
    if not turn.next_state and described.verdict is None:
        return NO_NEXT_STATE
    if turn.reason != IMPORTED:
        return turn.reason
    kinds = {kind for message in (*turn.messages, turn.response_message) for kind in _other_parts(message)}
    return None if not kinds else MEDIA if kinds <= other_forms.MEDIA else UNKNOWN_PART


def _other_parts(message: Message) -> set[str]:
    """Return the kinds of parts of a message that are not text."""
    content = message.get("content")
    return {part.get("type", "text") for part in content} - {"text"} if isinstance(content, list) else set()
