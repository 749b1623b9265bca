"""The other machines of an engine, for its first machine, which serves.

Guarantees: ``launch`` waits at most ``CREATE_SECONDS``, any other call ``ANSWER_SECONDS``. Errors name a machine whose
actor is gone or silent. Holds actor handles of `EngineProcess`; none for an engine on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from slime.exceptions import EngineNodeLostError
from slime.weight_sync.remote_engine import EngineCalls, RemoteProcess

T = TypeVar("T")

ANSWER_SECONDS = 60.0
CREATE_SECONDS = 300.0
"""Time limit for a new actor, whose process imports this package, perhaps from a slow shared folder."""


class OtherNodes:
    """Calls on the actors of the engine ``name``; see the module."""

    def __init__(self, name: str, handles: Sequence[RemoteProcess] = ()) -> None:
        self._name = name
        self._handles = list(handles)

    def launch(self, rendezvous: str) -> None:
        """Start the processes; raise EngineNodeLostError if a machine is lost."""
        self._answers(EngineCalls.to_all(self._handles, RemoteProcess.launch, rendezvous), CREATE_SECONDS)

    def alive(self) -> bool:
        """Return whether all processes run; raise EngineNodeLostError if a machine is lost."""
        return all(self._answers(EngineCalls.to_all(self._handles, RemoteProcess.alive), ANSWER_SECONDS))

    def returncodes(self) -> list[int | None]:
        """Return each process's exit status, None while it runs; raise EngineNodeLostError if a machine is lost."""
        return self._answers(EngineCalls.to_all(self._handles, RemoteProcess.returncode), ANSWER_SECONDS)

    def explain(self) -> str:
        """Return the ends of the logs, or which machine does not answer."""
        try:
            calls = EngineCalls.to_all(self._handles, RemoteProcess.explain, "is a part of it")
            return "\n".join(self._answers(calls, ANSWER_SECONDS))
        except EngineNodeLostError as error:
            return str(error)

    def hosts(self) -> list[str]:
        """Return the machines' names; raise EngineNodeLostError if a machine is lost."""
        return [
            host
            for hosts in self._answers(EngineCalls.to_all(self._handles, RemoteProcess.hosts), ANSWER_SECONDS)
            for host in hosts
        ]

    def stop(self) -> EngineCalls[None]:
        """Start ending the reachable processes; wait with ``unanswered(ANSWER_SECONDS)``."""
        return EngineCalls.to_all(self._handles, RemoteProcess.stop)

    def kill(self) -> EngineCalls[None]:
        """Start killing the reachable processes; wait with ``unanswered(ANSWER_SECONDS)``."""
        return EngineCalls.to_all(self._handles, RemoteProcess.kill)

    def _answers(self, calls: EngineCalls[T], seconds: float) -> list[T]:
        """Return the answers of all machines; raise EngineNodeLostError unless they come within ``seconds``."""
        lost = calls.unanswered(seconds)
        if lost:
            raise EngineNodeLostError(
                f"{self._name}: its process on machine {lost[0] + 2} of {len(self._handles) + 1} does not answer {calls.method} "
                f"({calls.error(lost[0]) or f'for {seconds:.0f} s'})"
            )
        return calls.values()
