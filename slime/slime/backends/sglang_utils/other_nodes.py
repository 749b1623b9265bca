"""The other machines of an engine, for its first machine, which serves.

Guarantees: ``launch`` waits at most ``CREATE_SECONDS``, any other call ``ANSWER_SECONDS``. Errors name a machine whose
actor is gone or silent. Holds actor handles of `EngineProcess`; none for an engine on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from slime.exceptions import EngineNodeLostError
from slime.weight_sync.engine_calls import EngineCalls

ANSWER_SECONDS = 60.0
CREATE_SECONDS = 300.0
"""Time limit for a new actor, whose process imports this package, perhaps from a slow shared folder."""


class OtherNodes:
    """Calls on the actors of the engine ``name``; see the module."""

    def __init__(self, name: str, handles: Sequence[Any] = ()) -> None:
        self._name = name
        self._handles = list(handles)

    def launch(self, rendezvous: str) -> None:
        """Start the processes; raise EngineNodeLostError if a machine is lost."""
        self._all("launch", seconds=CREATE_SECONDS, rendezvous=rendezvous)

    def alive(self) -> bool:
        """Return whether all processes run; raise EngineNodeLostError if a machine is lost."""
        return all(self._all("alive"))

    def returncodes(self) -> list[int | None]:
        """Return each process's exit status, None while it runs; raise EngineNodeLostError if a machine is lost."""
        return self._all("returncode")

    def explain(self) -> str:
        """Return the ends of the logs, or which machine does not answer."""
        try:
            return "\n".join(self._all("explain", "is a part of it"))
        except EngineNodeLostError as error:
            return str(error)

    def hosts(self) -> list[str]:
        """Return the machines' names; raise EngineNodeLostError if a machine is lost."""
        return [host for hosts in self._all("hosts") for host in hosts]

    def ending(self, method: Literal["stop", "kill"]) -> EngineCalls:
        """Start ending the reachable processes; wait with ``unanswered(ANSWER_SECONDS)``."""
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
