"""What a process needs on a GPU, part by part; some parts are exact, others estimated."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
UNCERTAINTY = 0.2
"""Relative error of an estimated part (activations, logits, graphs, workspace)."""
CONTEXT = 0.6 * GIB
"""A CUDA context with its kernels: 0.5 to 0.8 GiB per process."""
NCCL = 0.5 * GIB
"""NCCL buffers of a process in a group of more than one rank."""
DRIVER = 0.4 * GIB
"""Memory that ``nvidia-smi`` counts but no process can allocate."""


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
        parts: parts at the peak.
        apart: parts at another moment, shown but not in the sum.
        away: bytes that remain while the role is offloaded.
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
        """Uncertainty of :attr:`total` in bytes."""
        return UNCERTAINTY * sum(part.size for part in self.parts if not part.exact)

    def line(self) -> str:
        """Return the parts as text: ``weights 3.2, cache 1.8, (logits 0.9)``; brackets hold :attr:`apart`."""
        shown = [f"{part.name} {part.size / GIB:.1f}" for part in self.parts if part.size]
        return ", ".join([*shown, *(f"({part.name} {part.size / GIB:.1f})" for part in self.apart)])
