"""The interface of a learning method.

Guarantees: the runtime knows a method only through `Method`. A method is a pure function of turns and verdicts: it
has no state, asks no engine and touches no ledger, so judging can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from groundwork.chat_messages import Message
from openclaw.ledger.records import JudgedTurn, Turn, Verdict
from slime.utils.types import Sample

TeacherContext = Callable[[Turn, Verdict], Sequence[Message] | None]
"""Returns the teacher's messages in place of the request's; None: this turn has no teacher."""
SessionQuestions = Callable[[Sequence[Turn]], Sequence[Sequence[Message]]]
"""Returns the hint judge's prompts about a session's turns, which come oldest first; none: the session gives no hint."""
HintChoice = Literal["sequence_optimal", "token_optimal", "shortest"]
"""How one of several hints is chosen, see `openclaw.judge.teacher`."""


@dataclass(frozen=True)
class SessionPlan:
    """One hint for all turns of a session, from the whole session.

    Its turns are judged when the session has ended. The prompts are asked in order until one of them gives a hint, which
    then is the hint of each turn's verdict.

    Attributes:
        questions: builds the prompts. It gets the turns that have a next state, feedback in words included.
        longest_wait: seconds from a turn's next state until the turn is judged although its session goes on.
    """

    questions: SessionQuestions
    longest_wait: float


@dataclass(frozen=True)
class JudgePlan:
    """The judges of a turn: the votes of each, and the teacher's context. Without any, a rule decides alone.

    Attributes:
        prm_votes: votes on the score.
        hint_votes: votes on the hint.
        needs_teacher: whether a teacher scores the reply.
        teacher_context: builds its messages; default: the request with the hint appended. If it raises `ValueError`,
            the error is counted and the turn has no teacher.
        session: replaces the hint judge's question about each turn by one about the whole session.
        student_topk: how many of the policy's most likely tokens the gateway keeps at each position of a reply; the
            teacher then scores these instead of the reply's own tokens (`openclaw.judge.teacher`). 0: none.
        hint_choice: with ``student_topk``, which of several hints the teacher reads; otherwise it is the longest.

    Example:
        >>> JudgePlan(prm_votes=3).asks_judge
        True
        >>> JudgePlan(needs_teacher=True)
        Traceback (most recent call last):
        ValueError: the teacher reads the hint by default; set hint_votes, or teacher_context for another context
    """

    prm_votes: int = 0
    hint_votes: int = 0
    needs_teacher: bool = False
    teacher_context: TeacherContext | None = None
    session: SessionPlan | None = None
    student_topk: int = 0
    hint_choice: HintChoice = "sequence_optimal"

    @property
    def asks_judge(self) -> bool:
        """Whether any judge votes."""
        return self.prm_votes + self.hint_votes > 0

    def __post_init__(self) -> None:
        if self.session is not None and not self.hint_votes:
            raise ValueError("session asks the hint judge; set hint_votes")
        if self.student_topk and not self.needs_teacher:
            raise ValueError("student_topk is for a teacher; set needs_teacher=True")
        if self.teacher_context is not None:
            if not self.needs_teacher:
                raise ValueError("teacher_context is for a teacher; set needs_teacher=True")
            return
        if self.needs_teacher and not self.hint_votes:
            raise ValueError(
                "the teacher reads the hint by default; set hint_votes, or teacher_context for another context"
            )


@dataclass(frozen=True)
class SampleDecision:
    """The samples of a judged turn, or the reason why there are none."""

    samples: list[Sample] = field(default_factory=list)
    reason: str | None = None

    def __post_init__(self) -> None:
        if bool(self.samples) == (self.reason is not None):
            raise ValueError("a decision needs either samples or a reason")


@runtime_checkable
class Method(Protocol):
    """A learning method: turns verdicts into training samples.

    Example:
        >>> class RewardOnly:
        ...     name = "reward-only"
        ...     def judges(self):
        ...         return JudgePlan(prm_votes=3)
        ...     def samples(self, turn, verdict):
        ...         if verdict.score is None:
        ...             return SampleDecision(reason="no_score")
        ...         ids = turn.prompt_ids + turn.response_ids
        ...         return SampleDecision([Sample(tokens=ids, response_length=len(turn.response_ids), reward=verdict.score)])
        ...     def session_samples(self, judged):
        ...         return []
        >>> isinstance(RewardOnly(), Method)
        True
    """

    name: str

    def judges(self) -> JudgePlan:
        """Return the judges of a turn."""
        ...

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return the samples of a judged turn, or why there are none."""
        ...

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return a finished session's further samples, as pairs of turn id and sample; called once per session.

        Args:
            judged: its judged turns in order. Turns with ``reason`` None already gave samples.
        """
        ...
