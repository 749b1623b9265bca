"""What a process needs on a GPU, part by part; some parts are counted, others estimated."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
UNCERTAINTY = 0.2
"""Share by which an estimated part (activations, logits, graphs, workspace) may be wrong."""
CONTEXT = 0.6 * GIB
"""A CUDA context with its kernels: 0.5 to 0.8 GiB per process."""
NCCL = 0.5 * GIB
"""Buffers of NCCL in a process with more than one rank."""
DRIVER = 0.4 * GIB
"""What ``nvidia-smi`` counts as memory of a GPU and no process can have."""


@dataclass(frozen=True)
class Part:
    """Bytes of one kind; ``exact`` ones follow from the number of parameters or tokens."""

    name: str
    size: float
    exact: bool = False


@dataclass(frozen=True)
class Need:
    """What one process of a role needs on each of its GPUs.

    Attributes:
        role: actor, critic, rollout or judge.
        parts: of the moment in which it needs most.
        apart: parts of another moment, for people; they are not in the sum.
        away: bytes it keeps while it has given its memory away.
    """

    role: str
    parts: tuple[Part, ...]
    apart: tuple[Part, ...] = ()
    away: float = CONTEXT

    @property
    def total(self) -> float:
        """Bytes at the peak."""
        return sum(part.size for part in self.parts)

    @property
    def doubt(self) -> float:
        """Bytes by which :attr:`total` may be wrong."""
        return UNCERTAINTY * sum(part.size for part in self.parts if not part.exact)

    def line(self) -> str:
        """Return the parts for people: ``weights 3.2, cache 1.8, (logits 0.9)``; brackets hold :attr:`apart`."""
        shown = [f"{part.name} {part.size / GIB:.1f}" for part in self.parts if part.size]
        return ", ".join([*shown, *(f"({part.name} {part.size / GIB:.1f})" for part in self.apart)])
