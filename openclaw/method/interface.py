"""The interface of a learning method.

Guarantees: the runtime knows a method only through `Method`. A method is a pure function of turns and verdicts: it
has no state, asks no engine and touches no ledger, so judging can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from openclaw.ledger.records import JudgedTurn, Message, Turn, Verdict
from slime.utils.types import Sample

TeacherContext = Callable[[Turn, Verdict], Sequence[Message] | None]
"""Returns the teacher's messages in place of the request's; None: this turn has no teacher."""


@dataclass(frozen=True)
class JudgePlan:
    """The judges of a turn: the votes of each, and the teacher's context.

    Attributes:
        prm_votes: votes on the score.
        hint_votes: votes on the hint.
        needs_teacher: whether a teacher scores the reply.
        teacher_context: builds its messages; default: the request with the hint appended. If it raises `ValueError`,
            the error is counted and the turn has no teacher.
    """

    prm_votes: int = 0
    hint_votes: int = 0
    needs_teacher: bool = False
    teacher_context: TeacherContext | None = None

    def __post_init__(self) -> None:
        if self.teacher_context is not None:
            if not self.needs_teacher:
                raise ValueError("teacher_context is for a teacher; set needs_teacher=True")
            return
        if self.prm_votes + self.hint_votes < 1:
            raise ValueError("a method needs at least one judge vote; set prm_votes or hint_votes")
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
    """A learning method: turns verdicts into training samples."""

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
