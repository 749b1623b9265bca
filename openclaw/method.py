"""What a learning method implements, and how one is loaded by name.

Guarantees: the runtime knows a method only through `Method`. A method is a pure function of turns and verdicts: it
keeps no state, asks no engine and touches no ledger, so that judging can be repeated after a crash.

A method folder names its class in ``OPENCLAW_METHOD`` as ``module.attribute``; it is called with the runtime
configuration (`openclaw.config.runtime.RuntimeConfig`) and, where its module declares a ``Config``
(`openclaw.config.method_config`), with that, and returns a `Method`.
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
"""What the teacher reads in place of the turn's request messages; None: this turn has no teacher."""


@dataclass(frozen=True)
class JudgePlan:
    """Which judges see a turn: how many votes each casts, and what a teacher reads before it scores the reply.

    Attributes:
        prm_votes: votes on the score.
        hint_votes: votes on the hint.
        needs_teacher: whether a teacher scores the reply.
        teacher_context: what it reads; default: the request with the hint at its end. A `ValueError` of it is counted,
            and the turn has no teacher.
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
            raise ValueError("a method needs at least one vote of a judge; set prm_votes or hint_votes")
        if self.needs_teacher and not self.hint_votes:
            raise ValueError("a teacher reads the hint; set hint_votes, or teacher_context to what it reads instead")


@dataclass(frozen=True)
class SampleDecision:
    """The samples a judged turn gives, or the reason why it gives none."""

    samples: list[Sample] = field(default_factory=list)
    reason: str | None = None

    def __post_init__(self) -> None:
        if bool(self.samples) == (self.reason is not None):
            raise ValueError("a decision holds samples or a reason, not both and not neither")


@runtime_checkable
class Method(Protocol):
    """How verdicts become training samples."""

    name: str

    def judges(self) -> JudgePlan:
        """Return which judges see a turn."""
        ...

    def samples(self, turn: Turn, verdict: Verdict) -> SampleDecision:
        """Return what a judged turn gives."""
        ...

    def session_samples(self, judged: Sequence[JudgedTurn]) -> list[tuple[str, Sample]]:
        """Return what a finished session gives as a whole, as pairs of turn id and sample; called once per session.

        Args:
            judged: its judged turns in order. Those with ``turn.reason`` None gave samples already.
        """
        ...


def method_config(path: str) -> type[MethodConfig] | None:
    """Return what the module of the method at ``module.attribute`` declares; None where it declares nothing."""
    return config_of(load_function(path))


def load_method(path: str, config: Any, environment: Mapping[str, str] = os.environ) -> Method:
    """Return the method at ``module.attribute``, built from the runtime configuration and its own.

    Raises:
        ConfigError: when a variable that the method declares has a value that cannot be used.
        TypeError: when what is found there does not implement `Method`.
    """
    factory: Callable[..., object] = load_function(path)
    own = config_of(factory)
    method = factory(config) if own is None else factory(config, own.from_env(environment))
    if not isinstance(method, Method):
        raise TypeError(
            f"OPENCLAW_METHOD={path}: {type(method).__name__} lacks name, judges, samples or session_samples"
        )
    return method
