"""What a grader is: how to extract an answer, how to compare it, and the reward of a missing one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from slime.exceptions import SampleError
from slime.utils.types import Sample


@dataclass(frozen=True)
class Grader:
    """A rule that scores a reply.

    Attributes:
        extract: return the answer in a reply, or None.
        compare: return the reward of an answer, from ``(args, sample, answer)``; may raise ``GraderTimeout``.
        wrong: reward of a reply without an answer, or one that could not be graded within the limits.
        check: raise ``SampleError`` if a sample lacks what the grader needs, or asks for something it cannot check.
    """

    extract: Callable[[str], str | None]
    compare: Callable[[Any, Sample, str], Awaitable[Any]]
    wrong: Any
    check: Callable[[Sample], None]


def references(sample: Sample) -> list[str]:
    """Return the labels of a sample as text: one, or every entry of a list.

    Raises:
        SampleError: the sample has no label.
    """
    label: Any = sample.label
    labels = list(label) if isinstance(label, list | tuple) else [label]
    if not labels or any(one is None or not str(one).strip() for one in labels):
        raise SampleError(f"sample {sample.index} has no label to grade by; name its column with --label-key")
    return [str(one) for one in labels]


def needs_label(sample: Sample) -> None:
    """Raise SampleError unless the sample has a label."""
    references(sample)


def needs_nothing(sample: Sample) -> None:
    """Accept every sample."""
