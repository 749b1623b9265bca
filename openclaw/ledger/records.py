"""The records of the ledger's interface: turns, verdicts and their parts.

Guarantees: a record is immutable and validates its own shape (`Turn.validate`), so a turn with inconsistent ids and
logprobs cannot be stored. Stateless; `openclaw.ledger.store` has the rows.

The id of a turn names its choice (``ID.k`` is choice k of the request ``ID``), and in a run that goes through its logs several
times its pass: the first pass keeps an id, and pass N adds ``~N`` to it. A session counts as one of a further pass only if the
program itself named its turns so; a client's session ``x~2`` is a session of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from groundwork.chat_messages import Message
from openclaw.messages.signals import Action

if TYPE_CHECKING:
    from openclaw.privacy.redactor import Redactor

TurnKind = Literal["main", "side"]
TurnState = Literal["waiting", "unscored", "pending", "judged", "ended", "excluded"]
SampleState = Literal["ready", "leased", "trained", "dropped"]
JudgeKind = Literal["prm", "hint"]
ScoreSource = Literal["judge", "feedback", "rule"]
InvalidVote = Literal["no_box", "other_box", "cut_off", "endless_thought"]
Signal = Literal["next_state", "regenerated", "feedback"]
Thumbs = Literal["up", "down"]
Origin = Literal["live", "practice"]
"""What a sample is of: a conversation or an episode, or replies that practice drew."""
TEMPERATURE_TOLERANCE = 1e-6
REDACTED = "redacted"
"""Reason of a turn whose request or reply contained a secret."""
ABORTED = "aborted"
LESSONS_CHANGED = "lessons_changed"
"""Why a practised reply was dropped: the lessons that its teacher read changed before a step used it."""
PROBE = "probe"
"""Why a judged turn gives no sample: it is kept to compare versions of the weights."""
EPISODE = "episode"
"""Reason of a turn that belongs to an episode which has not given its samples yet; no judge reads such a turn."""
OVER = "episode_over"
"""Reason of a turn whose reply ended after its episode; it is in no sample."""
WEIGHT = "feedback_weight"
"""Key in the metadata of a sample that feedback scored: the factor in its reward."""
OF_SESSION = "of_session"
"""Key in a sample's metadata: its finished session gave it, its turn alone gave none."""
BASELINE = "baseline"
"""Key in a sample's metadata: what the trainer subtracts from its reward."""
BLAMED = "blamed"
"""Key in a sample's metadata: the rule of hygiene that kept its reply from praise (`openclaw.judge.hygiene`)."""
STALE = "stale"
"""Why a sample was dropped: the weights that sampled it were too old when a step could have used it."""
SCORED = "scored"
"""Key in a sample's metadata: its log-probabilities are scores of a text from a log, see `Turn.scored`."""


@dataclass(frozen=True)
class VersionSpan:
    """Weights ``version`` sampled the response tokens ``[start, end)``."""

    version: str
    start: int
    end: int


@dataclass(frozen=True)
class SeenPicture:
    """A picture in a prompt.

    Attributes:
        sha256: digest of the file, in hexadecimal digits.
        start: position of its first placeholder in the prompt's ids.
        tokens: number of its placeholders.
        png: the file, at the model's size; empty where only the reference was read.
    """

    sha256: str
    start: int
    tokens: int
    png: bytes = field(default=b"", repr=False)


def _common(one: list[int], other: list[int]) -> int:
    """Return how many ids two lists have in common at their beginning; lists are compared whole, which is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True)
class PlainPart:
    """What a prompt without lessons has in place of the ids from ``start`` to ``end`` of a prompt with them."""

    start: int
    end: int
    ids: tuple[int, ...]

    @staticmethod
    def between(served: Sequence[int], plain: Sequence[int]) -> PlainPart:
        """Return the difference of two prompts: what is left without their common beginning and end."""
        one, other = list(served), list(plain)
        start = _common(one, other)
        same = _common(one[start:][::-1], other[start:][::-1])
        return PlainPart(start, len(served) - same, tuple(plain[start : len(plain) - same]))

    def applied(self, served: Sequence[int]) -> list[int]:
        """Return the prompt without lessons, from the one with them."""
        return [*served[: self.start], *self.ids, *served[self.end :]]


@dataclass(frozen=True)
class KeptResponse:
    """A response that its client may ask for again.

    Attributes:
        items: that its request added to the conversation.
        response: as it was sent, with its output.
        previous: the turn of the response that it continues, or None.
    """

    items: list[Any]
    response: dict[str, Any]
    previous: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens by meter (`openclaw.ledger.usage`)."""

    prefill: int = 0
    cached: int = 0
    sampled: int = 0
    judged: int = 0
    trained: int = 0
    stale: int = 0

    @property
    def total(self) -> int:
        """Tokens of prompts and replies."""
        return self.prefill + self.cached + self.sampled

    def __add__(self, other: Tokens) -> Tokens:
        others = asdict(other)
        return Tokens(**{name: count + others[name] for name, count in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One reply of the policy, with the inputs that produced it.

    Attributes:
        id: unique; also the ``id`` of the chat completion.
        session_id: conversation the turn belongs to.
        index: position among the turns of its session, from 0.
        kind: ``main`` turns can be trained, ``side`` turns (heartbeats, compaction, ...) cannot.
        created_at: when the request arrived, seconds since the epoch.
        finished_at: when the last token was generated, seconds since the epoch.
        messages: request messages.
        tools: request tools or None.
        chat_template_kwargs: extra keywords the prompt was rendered with.
        prompt_ids: ids of the rendered prompt, as sent to the engine.
        response_ids: ids the engine sampled, the end token included.
        response_logprobs: log-probabilities they were sampled with, at ``temperature``; same length.
        weight_versions: which weights sampled which span of ``response_ids``.
        finish_reason: ``stop``, ``length``, ``tool_calls`` or ``abort``.
        response_message: the assistant message as the client got it.
        temperature: sampling temperature.
        top_p: nucleus bound of sampling.
        state: see `openclaw.ledger.schema`; assigned by the ledger.
        reason: why the turn gives no sample, or None. A turn recorded with a reason is excluded from the start.
        next_state: the messages that followed it, or None.
        next_state_at: when they arrived, seconds since the epoch.
        signal: kind of the next state; None means ``next_state``.
        conversation: digest of ``messages`` and the reply (`openclaw.messages.fingerprint`), or None.
        malformed_calls: number of tool calls in the reply that could not be read.
        response_topk: the policy's own most likely tokens at each response token, with log-probabilities at
            ``temperature``, from the request that sampled the reply; None if the method does not read them.
        scored: whether the turn came as text from a log: the ids are rendered from it, and the log-probabilities are
            scores by the weights in ``weight_versions``, which did not write the reply.
        pictures: of the prompt, in order, with their files, when the turn is recorded; a turn that was read has none, see
            `openclaw.ledger.turns`.
        plain: how the prompt without the person's lessons differs from ``prompt_ids``; None if it had no lessons.
        adapter_fallback: the person's newer adapter that could not be loaded, so that an older one answered; else None.
        lessons: id and text of each of these lessons, when the turn is recorded; a turn that was read has none, see `openclaw.ledger.lessons`.
        kept: what its client may ask for again, when the turn is recorded; a turn that was read has none, see
            `openclaw.ledger.responses`.
        spent: tokens that its owner's meters count with it, when the turn is recorded; None: none, as of one that was read.

    Example:
        >>> turn = Turn(
        ...     id="chatcmpl-1",
        ...     session_id="a",
        ...     index=0,
        ...     kind="main",
        ...     created_at=1.0,
        ...     finished_at=2.0,
        ...     messages=[{"role": "user", "content": "2 + 2?"}],
        ...     prompt_ids=[5, 6, 7],
        ...     response_ids=[8, 9],
        ...     response_logprobs=[-0.1, -0.2],
        ...     finish_reason="stop",
        ...     response_message={"role": "assistant", "content": "4"},
        ...     temperature=1.0,
        ...     top_p=1.0,
        ...     weight_versions=[VersionSpan("12", 0, 2)],
        ... )
        >>> turn.validate()
        >>> [reason for reason, holds in turn.misfits(temperature=0.7, max_tokens=4096).items() if holds]
        ['temperature']
    """

    id: str
    session_id: str
    index: int
    kind: TurnKind
    created_at: float
    finished_at: float
    messages: list[Message]
    prompt_ids: list[int]
    response_ids: list[int]
    response_logprobs: list[float]
    finish_reason: str
    response_message: Message
    temperature: float
    top_p: float
    weight_versions: list[VersionSpan] = field(default_factory=list[VersionSpan])
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    state: TurnState = "waiting"
    reason: str | None = None
    next_state: list[Message] | None = None
    next_state_at: float | None = None
    signal: Signal | None = None
    conversation: bytes | None = None
    malformed_calls: int = 0
    response_topk: TopK | None = None
    scored: bool = False
    pictures: tuple[SeenPicture, ...] = field(default=(), compare=False, repr=False)
    plain: PlainPart | None = None
    lessons: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    adapter_fallback: str | None = None
    kept: KeptResponse | None = field(default=None, compare=False, repr=False)
    spent: Tokens | None = field(default=None, compare=False, repr=False)

    @property
    def student_ids(self) -> list[int]:
        """The prompt as the policy reads it without lessons: what it shall learn to answer."""
        return self.prompt_ids if self.plain is None else self.plain.applied(self.prompt_ids)

    @property
    def never_trained(self) -> str | None:
        """Why such a turn is never judged or trained: ``side``, ``aborted`` or None."""
        if self.kind == "side":
            return "side"
        return ABORTED if self.finish_reason == "abort" else None

    def misfits(self, temperature: float, max_tokens: int) -> dict[str, bool]:
        """Return what keeps the trainer from using the numbers of this reply: each reason, and whether it holds.

        Args:
            temperature: by which the trainer divides logits; log-probabilities at another temperature would not match.
            max_tokens: limit on prompt plus response tokens.
        """
        checks = {
            "temperature": abs(self.temperature - temperature) > TEMPERATURE_TOLERANCE,
            "too_long": len(self.prompt_ids) + len(self.response_ids) > max_tokens,
            "non_finite_logprob": not all(map(math.isfinite, self.response_logprobs)),
            "no_weight_version": not self.weight_versions,
        }
        return checks

    def redacted(self, redaction: Redactor | None) -> Turn:
        """Return the turn without secrets.

        If its request or reply had one, the turn also loses its token ids, which spell the same secret, and its pictures,
        and is excluded with the reason ``redacted``. A next state alone is only replaced: its turn is trained.
        """
        if redaction is None:
            return self
        following = None if self.next_state is None else redaction.messages(self.next_state)
        kept = self.kept
        if kept is not None and any(redaction.object(part) != part for part in ({"items": kept.items}, kept.response)):
            kept = None  # it cannot be given back as it was
        changed = replace(
            self,
            messages=redaction.messages(self.messages),
            tools=None if self.tools is None else redaction.messages(self.tools),
            response_message=redaction.messages([self.response_message])[0],
            next_state=following,
            chat_template_kwargs=redaction.object(self.chat_template_kwargs),
            kept=kept,
        )
        if replace(self, next_state=following) == changed:
            return changed
        return replace(
            changed,
            prompt_ids=[],
            response_ids=[],
            response_logprobs=[],
            weight_versions=[],
            response_topk=None,
            pictures=(),
            plain=None,
            reason=self.reason or (REDACTED if self.kind == "main" else None),
        )

    def validate(self) -> None:
        """Raise ValueError naming the first inconsistent length or value."""
        if len(self.response_logprobs) != len(self.response_ids):
            raise ValueError(
                f"turn {self.id}: {len(self.response_ids)} response ids but "
                f"{len(self.response_logprobs)} logprobs; record what the engine returned, unchanged"
            )
        if self.response_topk is not None:
            self.response_topk.check(f"turn {self.id}", len(self.response_ids))
        if self.kind not in ("main", "side"):
            raise ValueError(f"turn {self.id}: kind {self.kind!r}; use 'main' or 'side'")
        for span in self.weight_versions:
            if not 0 <= span.start <= span.end <= len(self.response_ids):
                raise ValueError(f"turn {self.id}: weight version span {span} leaves {len(self.response_ids)} tokens")


@dataclass(frozen=True)
class Vote:
    """One answer of a judge.

    Attributes:
        judge: which question was asked.
        answer: what the judge wrote.
        value: the boxed value, None when the answer holds no valid one.
        hint: the hint, for an accepted hint vote.
        seconds: how long the answer took.
        invalid: why the vote has no value: ``no_box``, ``other_box``, ``cut_off`` by the token limit, or
            ``endless_thought``; None for a valid vote.
    """

    judge: JudgeKind
    answer: str
    value: int | None
    hint: str | None = None
    seconds: float = 0.0
    invalid: InvalidVote | None = None


@dataclass(frozen=True)
class TopK:
    """The K most likely tokens at each position of a reply: log-probabilities and ids, a row of K per response token."""

    log_probs: list[list[float]]
    ids: list[list[int]]

    def check(self, name: str, count: int) -> None:
        """Raise ValueError unless there are ``count`` rows of K finite values and K different ids."""
        width = len(self.ids[0]) if self.ids else 0
        rows = [*zip(self.log_probs, self.ids, strict=False)]
        fits = len(self.log_probs) == len(self.ids) == count
        if not fits or any(len(values) != width or len({*ids}) != width for values, ids in rows):
            raise ValueError(f"{name}: its top K is not one row of K tokens for each of {count} response tokens")
        if not all(math.isfinite(value) for values in self.log_probs for value in values):
            raise ValueError(f"{name}: its top K has a log-probability that is not a finite number")


@dataclass(frozen=True)
class Verdict:
    """The judges' verdict on a turn.

    Attributes:
        score: majority of the PRM votes in -1, 0, 1; None without PRM votes.
        score_source: ``feedback`` if a person stated the score, ``rule`` if a rule of hygiene did.
        hint: the accepted hint, or None.
        votes: every vote that was cast, both judges.
        teacher_log_probs: per response token, see `openclaw.judge.teacher`; None without a hint or a teacher.
        teacher_versions: weight versions of the engine that scored them; empty for a static teacher.
        teacher_topk: the teacher's most likely tokens per position; stored only with the turn's samples.
        teacher_untaught: how many of the reply's tokens a teacher of another tokenizer has no number for, by reason; their
            entry in ``teacher_log_probs`` is the log-probability that they were sampled with.
        seconds: from the first request of a vote to the last answer.

    Example:
        >>> verdict = Verdict(score=1, votes=(Vote("prm", "It thanks. [1]", 1), Vote("prm", "Unclear.", None, invalid="no_box")))
        >>> Verdict.from_dict(verdict.to_dict()) == verdict
        True
    """

    score: int | None = None
    hint: str | None = None
    votes: tuple[Vote, ...] = ()
    teacher_log_probs: tuple[float, ...] | None = None
    teacher_versions: tuple[str, ...] = ()
    teacher_topk: TopK | None = None
    seconds: float = 0.0
    score_source: ScoreSource = "judge"
    teacher_untaught: dict[str, int] = field(default_factory=dict[str, int])

    def redacted(self, redaction: Redactor | None) -> Verdict:
        """Return the verdict without secrets in its words."""
        if redaction is None:
            return self

        def clear(text: str | None) -> str | None:
            return None if text is None else redaction.text(text)

        votes = tuple(replace(vote, answer=clear(vote.answer) or "", hint=clear(vote.hint)) for vote in self.votes)
        return replace(self, hint=clear(self.hint), votes=votes)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready values, without the teacher's logprobs, which have a column of exact floats."""
        values = asdict(replace(self, teacher_topk=None))
        del values["teacher_log_probs"], values["teacher_topk"]
        return values

    @staticmethod
    def from_dict(values: dict[str, Any], teacher_log_probs: tuple[float, ...] | None = None) -> Verdict:
        """Return the verdict that `to_dict` described."""
        return Verdict(
            score=values["score"],
            hint=values["hint"],
            votes=tuple(Vote(**vote) for vote in values["votes"]),
            teacher_log_probs=teacher_log_probs,
            teacher_versions=tuple(values["teacher_versions"]),
            seconds=values["seconds"],
            score_source=values.get("score_source", "judge"),
            teacher_untaught=values.get("teacher_untaught", {}),
        )


@dataclass(frozen=True)
class PendingTurn:
    """A turn that waits for the judge, its number of failed attempts, its feedback, and its request's choices.

    ``kept`` is the verdict that its log had; the judge is then not asked.
    """

    turn: Turn
    attempts: int
    feedback: tuple[Feedback, ...] = ()
    choices: int = 1
    kept: Verdict | None = None


@dataclass(frozen=True)
class JudgedTurn:
    """A judged turn with its verdict."""

    turn: Turn
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """A person's feedback on a reply, outside of the conversation.

    Attributes:
        turn_id: the reply.
        created_at: when it was given, seconds since the epoch.
        thumbs: ``up``, ``down`` or None.
        score: the front end's number, or None.
        text: words, or None.
        source: name of the key that sent it, or None.
        action: what the person did with the reply, or None (`openclaw.messages.signals`).
        edit: the reply as the person edited it, or None.
        applied: whether it counts for its turn's verdict; assigned by the ledger.
    """

    turn_id: str
    created_at: float
    thumbs: Thumbs | None = None
    score: float | None = None
    text: str | None = None
    source: str | None = None
    action: Action | None = None
    edit: str | None = None
    applied: bool = False


@dataclass(frozen=True)
class ReactionReward:
    """The reward that a sample's owner gave, as later baselines count it (`openclaw.credit.baseline`).

    Attributes:
        owner: who gave it.
        role: whose reaction the verdict read, ``user`` or ``tool``.
        reward: before the weight of feedback.
    """

    owner: str
    role: str
    reward: float


def loss_tokens(sample: Mapping[str, Any]) -> int:
    """Return the number of tokens with loss of a sample, given its fields."""
    mask = sample["loss_mask"]
    return sample["response_length"] if mask is None else sum(mask)


CHOICE = re.compile(r"(?P<request>.+)\.(?P<number>[0-9]{1,3})", re.DOTALL)
PASS = "~"
"""What the ids of sessions and turns of a further pass have before its number."""
OF_LOG = "log-"
"""How the id of a turn begins that came as text from a log."""


def choice_of(turn_id: str) -> tuple[str, int]:
    """Return the request that a turn answers, and the number of its choice: ``ID.k`` is choice k, ``ID`` choice 0."""
    match = CHOICE.fullmatch(turn_id)
    return (match["request"], int(match["number"])) if match else (turn_id, 0)


def suffixed(name: str, number: int) -> str:
    """Return an id of pass ``number`` through the data; the first pass keeps it."""
    return name if number == 1 else f"{name}{PASS}{number}"


def turn_of_pass(turn_id: str, number: int) -> str:
    """Return the id of a turn in pass ``number``; the number of its choice stays at the end."""
    request, choice = choice_of(turn_id)
    return suffixed(turn_id, number) if request == turn_id else f"{suffixed(request, number)}.{choice}"


def is_of_pass(turn_id: str, number: str) -> bool:
    """Return whether a turn of a session ``ID~number`` is of that pass, and no client chose the session's name."""
    return number.isdigit() and (turn_id.startswith(OF_LOG) or f"{PASS}{number}" in turn_id)


def first_pass(session_id: str, turn_id: str) -> str:
    """Return what a turn's session is called in the first pass."""
    name, mark, number = session_id.rpartition(PASS)
    return name if mark and is_of_pass(turn_id, number) else session_id
