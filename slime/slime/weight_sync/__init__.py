"""How new weights reach the engines. One transport per file, behind :class:`WeightSync`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from slime.backends.fsdp_utils.model import PolicyModel


class WeightSync(Protocol):
    """A transport. Every training rank has one, and all ranks call its methods together."""

    def connect(self, engines: list[Any]) -> None:
        """Reach ``engines`` (actor handles) from now on; again after one was started again."""
        ...

    def push(self, policy: PolicyModel, version: str) -> None:
        """Make the weights of ``policy`` live on all engines as ``version``; returns when they are."""
        ...
