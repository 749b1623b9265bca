"""The other machines of an engine, for its first one, which serves.

Guarantees: no call waits longer than ``ANSWER_SECONDS``; a machine whose actor is gone or silent is named. Holds actor handles of
`EngineProcess`, none for an engine on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime.exceptions import EngineNodeLostError
from slime.weight_sync.engine_calls import EngineCalls

ANSWER_SECONDS = 60.0


class OtherNodes:
    """See the module; ``name`` is the engine's."""

    def __init__(self, name: str, handles: Sequence[Any] = ()) -> None:
        self._name = name
        self._handles = list(handles)

    def launch(self, rendezvous: str) -> None:
        """Start the processes; raises EngineNodeLostError."""
        self._all("launch", rendezvous=rendezvous)

    def alive(self) -> bool:
        """Whether all processes run; raises EngineNodeLostError."""
        return all(self._all("alive"))

    def explain(self) -> str:
        """The ends of the logs; raises EngineNodeLostError."""
        return "\n".join(self._all("explain", "is a part of it"))

    def hosts(self) -> list[str]:
        """Names of the machines; raises EngineNodeLostError."""
        return [host for hosts in self._all("hosts") for host in hosts]

    def stop(self) -> None:
        """End the processes that can be reached."""
        EngineCalls(self._handles, "stop").unanswered(ANSWER_SECONDS)

    def kill(self) -> None:
        """End the processes that can be reached with SIGKILL."""
        EngineCalls(self._handles, "kill").unanswered(ANSWER_SECONDS)

    def _all(self, method: str, *arguments: Any, **keywords: Any) -> list[Any]:
        calls = EngineCalls(self._handles, method, *arguments, **keywords)
        lost = calls.unanswered(ANSWER_SECONDS)
        if lost:
            raise EngineNodeLostError(
                f"{self._name}: its process on machine {lost[0] + 2} of {len(self._handles) + 1} does not answer {method} "
                f"({calls.error(lost[0]) or f'for {ANSWER_SECONDS:.0f} s'})"
            )
        return calls.values()
