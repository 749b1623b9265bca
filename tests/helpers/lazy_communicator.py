"""A communicator that behaves as NCCL does where gloo does not, and engines that receive from it.

It connects in its first broadcast; that call, and each later one, blocks its thread until all peers take part, whatever becomes
of them; only an abort frees it, and an abort of a communicator that has yet to connect may free nobody. Destroying it waits for
the peers too. Threads are daemons, so what stays blocked does not hold the tests.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from torch import Tensor

from slime.weight_sync import group
from slime.weight_sync.requests import unpack

FAIL_SECONDS = 60.0
"""Nothing here takes as long; a wait that does has failed."""


class Aborted(RuntimeError):
    """What NCCL's calls raise after an abort."""


class LazyCommunicator:
    """One group; rank 0 broadcasts, each engine receives.

    Attributes:
        aborts: how often it was aborted; ``destroys`` likewise.
        frees: whether an abort frees rank 0's thread and the peers.
    """

    def __init__(self, peers: int, *, frees: bool = True) -> None:
        self.aborts = self.destroys = 0
        self.frees = frees
        self._sent: list[Tensor] = []
        self._taken = [0] * peers
        self._here: set[int] = set()
        self._changed = threading.Condition()

    @property
    def is_aborted(self) -> bool:
        return self.aborts > 0 and self.frees

    def broadcast(self, data: Tensor, src: int, group: Any) -> None:
        """Rank 0's call."""
        with self._changed:
            self._sent.append(data)  # read when the peers take it, as a network does
            number = len(self._sent)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_aborted or min(self._taken) >= number)
            if self.is_aborted:
                raise Aborted("the communicator was aborted")

    def receive(self, peer: int) -> Tensor:
        """An engine's call."""
        with self._changed:
            number = self._taken[peer]
            self._here.add(peer)
            self._changed.notify_all()
            connected = len(self._taken)
            self._changed.wait_for(
                lambda: self.is_aborted or (len(self._sent) > number and len(self._here) == connected)
            )
            if self.is_aborted:
                raise Aborted("the communicator was aborted")
            self._taken[peer] += 1
            self._changed.notify_all()
            return self._sent[number]

    def abort(self) -> None:
        """Free whoever is blocked."""
        with self._changed:
            self.aborts += 1
            self._changed.notify_all()

    def destroy(self) -> None:
        """Wait for peers that may be dead."""
        self.destroys += 1
        threading.Event().wait()


class LazyNetwork:
    """Stands in for torch's functions in `slime.weight_sync.group`; ``made`` are the groups in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, frees: bool = True) -> None:
        self.made: list[LazyCommunicator] = []
        self._frees = frees
        monkeypatch.setattr(group, "join_group", self._join)
        monkeypatch.setattr(group, "broadcast", lambda data, src, group: group.broadcast(data, src, group))
        monkeypatch.setattr(group, "_abort_process_group", lambda group: group.abort())
        monkeypatch.setattr(group, "destroy_process_group", lambda group: group.destroy())

    def _join(self, *, world_size: int, **rest: Any) -> LazyCommunicator:
        self.made.append(LazyCommunicator(world_size - 1, frees=self._frees))
        return self.made[-1]


class LazyEngine:
    """An engine behind the interface of an actor handle; ``faults`` say what the n-th receive does.

    ``refuse``: the call fails at once; ``die``: the process ends and the call fails; ``vanish``: the process ends and the call
    stays open; ``hang``: the call stays open; ``wait``: the receive begins once ``go`` is set.
    """

    def __init__(self, network: LazyNetwork, peer: int, **faults: str) -> None:
        self._network, self._peer = network, peer
        self._faults = {int(number.lstrip("n")): fault for number, fault in faults.items()}
        self._received = 0
        self.go = threading.Event()
        self.waits = threading.Event()
        self.asked: list[str] = []
        self.weights: dict[str, Tensor] = {}
        self.alive = True
        self._killed = threading.Event()

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **keywords: Any) -> Any:
            answer: Future[Any] = Future()
            self.asked.append(name)
            call = getattr(type(self), f"do_{name}", None)
            threading.Thread(target=self._answer, args=(answer, call, arguments, keywords), daemon=True).start()
            return type("Reference", (), {"future": staticmethod(lambda: answer)})

        return type("Method", (), {"remote": staticmethod(remote)})

    def _answer(self, answer: Future[Any], call: Any, arguments: Any, keywords: Any) -> None:
        try:
            answer.set_result(call(self, *arguments, **keywords) if call else None)
        except (RuntimeError, OSError) as error:
            answer.set_exception(error)

    def do_num_weight_ranks(self) -> int:
        return 1

    def do_starts(self) -> int:
        return 1

    def do_has_ended(self) -> bool:
        return not self.alive

    def do_end_failed_update(self, starts: int) -> None:
        self.alive = False
        self._killed.set()

    def do_update_weights_from_distributed(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]], group_name: str, **rest: Any
    ) -> None:
        number, self._received = self._received, self._received + 1
        fault = self._faults.get(number, "")
        if fault == "refuse":
            raise RuntimeError("the bucket is refused")
        if fault in ("die", "vanish"):
            self.alive = False
        if fault == "die":
            raise OSError("the connection was reset")
        if fault in ("vanish", "hang"):
            self._killed.wait()
            raise OSError("the connection was reset")
        if fault == "wait":
            self.waits.set()
            self.go.wait()
        data = self._receive()
        self.weights.update((name, value.clone()) for name, value in unpack(data, names, dtypes, shapes))

    def _receive(self) -> Tensor:
        """Receive, or end with this process."""
        found: Future[Tensor] = Future()

        def receive() -> None:
            try:
                found.set_result(self._network.made[-1].receive(self._peer))
            except Aborted as error:
                found.set_exception(error)

        threading.Thread(target=receive, daemon=True).start()
        while not found.done():
            if self._killed.wait(0.01):
                raise OSError("the connection was reset")
        return found.result()
