"""How new weights reach the engines. One transport per file, behind :class:`WeightSync`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slime.args import Arguments

if TYPE_CHECKING:
    from torch import Tensor

    from slime.weight_sync.remote_engine import RemoteEngine

LOADER = "slime.weight_sync.engine_loader.load"
"""What runs in an engine: value of SGLang's ``--custom-weight-loader``, and ``load_format`` of a request to it."""


ADAPTER_NAME = re.compile(r"weights-(\d+)-([0-9a-f]{8})-(\d+)(?:-([0-9a-f]{12}))?")
"""Weight version, :func:`maker`, number of a push, and whose adapter it is if each person has one (`groundwork.people`)."""


BASE = "base"
"""In a request the adapter's name that means none, and the weight version of its answer: the base model, whatever is newer."""


def maker(args: Arguments) -> str:
    """Return the mark of this run in the names of its adapters; the same when its trainer is started again."""
    return hashlib.sha256(os.path.realpath(args.run_dir).encode()).hexdigest()[:8]


def adapter_version(name: str | None) -> str | None:
    """Return the weight version of an adapter that a trainer named, None for any other adapter."""
    match = ADAPTER_NAME.fullmatch(name or "")
    return match[1] if match else None


class Sent(NamedTuple):
    """An adapter that was sent: its name on the engines, and the SHA-256 of the message; None for whole weights."""

    adapter: str | None = None
    digest: str | None = None


class WeightSync(Protocol):
    """A transport. Every training rank has one, and all ranks call its methods together.

    Attributes:
        sent: what rank 0 sent last.
    """

    sent: Sent

    def connect(self, engines: list[RemoteEngine]) -> None:
        """Reach ``engines`` from now on; again after one was started again."""
        ...

    def push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Make ``weights`` live on all engines as ``version``; returns when they are.

        Names are Hugging Face's. Tensors of any floating type get that of ``--train-dtype`` on the way. Every rank runs the iterator to its end; rank 0's values count.
        """
        ...

    def offer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Give all engines the weights; an adapter serves nobody until :meth:`serve`, whole weights serve at once."""
        ...

    def serve(self, version: str) -> None:
        """Let what was offered last serve as ``version``."""
        ...

    def close(self) -> None:
        """Let go of the engines without talking to them; they may be gone."""
        ...
