"""The other machines of an engine, for its first one, which serves.

Guarantees: ``launch`` waits ``CREATE_SECONDS`` at most, any other call ``ANSWER_SECONDS``; a machine whose actor is gone or silent is
named. Holds actor handles of `EngineProcess`, none for an engine on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from slime.exceptions import EngineNodeLostError
from slime.weight_sync.engine_calls import EngineCalls

ANSWER_SECONDS = 60.0
CREATE_SECONDS = 300.0
"""Until an actor that was just asked for is there: its process imports this package, perhaps from a slow shared folder."""


class OtherNodes:
    """See the module; ``name`` is the engine's."""

    def __init__(self, name: str, handles: Sequence[Any] = ()) -> None:
        self._name = name
        self._handles = list(handles)

    def launch(self, rendezvous: str) -> None:
        """Start the processes; raises EngineNodeLostError."""
        self._all("launch", seconds=CREATE_SECONDS, rendezvous=rendezvous)

    def alive(self) -> bool:
        """Whether all processes run; raises EngineNodeLostError."""
        return all(self._all("alive"))

    def returncodes(self) -> list[int | None]:
        """Exit status of each process, None while it runs; raises EngineNodeLostError."""
        return self._all("returncode")

    def explain(self) -> str:
        """The ends of the logs, or who does not give them."""
        try:
            return "\n".join(self._all("explain", "is a part of it"))
        except EngineNodeLostError as error:
            return str(error)

    def hosts(self) -> list[str]:
        """Names of the machines; raises EngineNodeLostError."""
        return [host for hosts in self._all("hosts") for host in hosts]

    def ending(self, method: Literal["stop", "kill"]) -> EngineCalls:
        """Begin to end the processes that can be reached; wait with ``unanswered(ANSWER_SECONDS)``."""
        return EngineCalls(self._handles, method)

    def _all(self, method: str, *arguments: Any, seconds: float | None = None, **keywords: Any) -> list[Any]:
        seconds = ANSWER_SECONDS if seconds is None else seconds
        calls = EngineCalls(self._handles, method, *arguments, **keywords)
        lost = calls.unanswered(seconds)
        if lost:
            raise EngineNodeLostError(
                f"{self._name}: its process on machine {lost[0] + 2} of {len(self._handles) + 1} does not answer {method} "
                f"({calls.error(lost[0]) or f'for {seconds:.0f} s'})"
            )
        return calls.values()
