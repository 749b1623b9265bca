"""The interface of a learning method, and its loading by name.

Guarantees: the runtime knows a method only through `Method`. A method is a pure function of turns and verdicts: it
has no state, asks no engine and touches no ledger, so judging can be repeated after a crash.

``OPENCLAW_METHOD`` names a factory as ``module.attribute``. It takes the runtime configuration
(`openclaw.config.runtime.RuntimeConfig`) and, if its module declares one, the method's ``Config``
(`openclaw.config.method_config`), and returns a `Method`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from openclaw.config.method_config import MethodConfig, config_of
from openclaw.ledger.records import JudgedTurn, Message, Turn, Verdict
from slime.utils.misc import load_function
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


def method_config(path: str) -> type[MethodConfig] | None:
    """Return the ``Config`` of the module of ``module.attribute``, or None."""
    return config_of(load_function(path))


def load_method(path: str, config: Any, environment: Mapping[str, str] = os.environ) -> Method:
    """Return the method at ``module.attribute``, built from the runtime configuration and its own.

    Raises:
        ConfigError: if a variable of the method has an unusable value.
        TypeError: if the result does not implement `Method`.
    """
    factory: Callable[..., object] = load_function(path)
    own = config_of(factory)
    method = factory(config) if own is None else factory(config, own.from_env(environment))
    if not isinstance(method, Method):
        raise TypeError(
            f"OPENCLAW_METHOD={path}: {type(method).__name__} lacks name, judges, samples or session_samples"
        )
    return method
