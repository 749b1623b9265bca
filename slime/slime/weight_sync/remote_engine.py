"""Calls of engine actors: one typed handle per actor, and one method on every engine at once.

A method of a handle starts the actor's method of the same name and returns its reference; the class behind the actor
says what the method does.

`EngineCalls` guarantees: the first failing engine ends the wait, even while others wait for it in a collective. An engine
whose process has ended counts as failed although its call stays open. The failed engines are known. Holds only the
running calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, TypeVarTuple

from slime.exceptions import EngineError, EngineNodeLostError

if TYPE_CHECKING:
    from ray import ObjectRef

LOOK_SECONDS = 5.0
"""Seconds that :meth:`EngineCalls.finish` waits before it checks that the engines' processes still run."""
BLAME_SECONDS = 5.0
"""Seconds for an engine's call to fail after the operation beside it failed, so that the engine is identified."""

H = TypeVar("H", bound="RemoteServer")
T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class RemoteServer:
    """What an engine and its part on another machine share; ``actor`` is Ray's handle."""

    actor: Any

    def hosts(self) -> ObjectRef[list[str]]:
        return self.actor.hosts.remote()

    def stop(self) -> ObjectRef[None]:
        return self.actor.stop.remote()

    def kill(self) -> ObjectRef[None]:
        return self.actor.kill.remote()


@dataclass(frozen=True)
class RemoteProcess(RemoteServer):
    """Handle of an `EngineProcess`, the part of an engine on one machine."""

    def launch(self, rendezvous: str) -> ObjectRef[None]:
        return self.actor.launch.remote(rendezvous=rendezvous)

    def alive(self) -> ObjectRef[bool]:
        return self.actor.alive.remote()

    def returncode(self) -> ObjectRef[int | None]:
        return self.actor.returncode.remote()

    def explain(self, problem: str) -> ObjectRef[str]:
        return self.actor.explain.remote(problem)


@dataclass(frozen=True)
class RemoteEngine(RemoteServer):
    """Handle of an `SGLangEngine` or `ExternalEngine`.

    Example:
        >>> ray.get(engine.url())  # doctest: +SKIP
        'http://10.0.0.1:15000'
        >>> EngineCalls.to_all(engines, RemoteEngine.pause_generation, "retract").values()  # doctest: +SKIP
        [None, None]
    """

    # Life

    def start(self, hold: bool = False) -> ObjectRef[str]:
        return self.actor.start.remote(hold)

    def restart_if_dead(self, hold: bool) -> ObjectRef[bool]:
        return self.actor.restart_if_dead.remote(hold)

    def is_dead(self) -> ObjectRef[bool]:
        return self.actor.is_dead.remote()

    def has_ended(self) -> ObjectRef[bool]:
        return self.actor.has_ended.remote()

    def url(self) -> ObjectRef[str]:
        return self.actor.url.remote()

    def starts(self) -> ObjectRef[int]:
        return self.actor.starts.remote()

    def sleep(self) -> ObjectRef[None]:
        return self.actor.sleep.remote()

    def wake(self, parts: tuple[str, ...]) -> ObjectRef[None]:
        return self.actor.wake.remote(parts)

    # An update of the weights

    def num_weight_ranks(self) -> ObjectRef[int]:
        return self.actor.num_weight_ranks.remote()

    def init_weights_update_group(
        self, address: str, port: int, rank_offset: int, world_size: int, name: str, backend: str
    ) -> ObjectRef[None]:
        return self.actor.init_weights_update_group.remote(address, port, rank_offset, world_size, name, backend)

    def destroy_weights_update_group(self, name: str) -> ObjectRef[None]:
        return self.actor.destroy_weights_update_group.remote(name)

    def pause_generation(self, mode: str) -> ObjectRef[None]:
        return self.actor.pause_generation.remote(mode)

    def continue_generation(self) -> ObjectRef[None]:
        return self.actor.continue_generation.remote()

    def begin_weight_update(self) -> ObjectRef[None]:
        return self.actor.begin_weight_update.remote()

    def close_left_session(self) -> ObjectRef[None]:
        return self.actor.close_left_session.remote()

    def end_weight_update(self) -> ObjectRef[None]:
        return self.actor.end_weight_update.remote()

    def end_failed_update(self, starts: int) -> ObjectRef[None]:
        return self.actor.end_failed_update.remote(starts)

    def hold_after_failed_update(self) -> ObjectRef[None]:
        return self.actor.hold_after_failed_update.remote()

    def update_weights_from_distributed(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]], group_name: str, **keywords: Any
    ) -> ObjectRef[None]:
        return self.actor.update_weights_from_distributed.remote(names, dtypes, shapes, group_name, **keywords)

    def update_weights_from_tensor(
        self, serialized: bytes, load_format: str | None, **keywords: Any
    ) -> ObjectRef[None]:
        return self.actor.update_weights_from_tensor.remote(serialized, load_format, **keywords)

    def update_weights_from_disk(self, path: str, flush_cache: bool, weight_version: str) -> ObjectRef[None]:
        return self.actor.update_weights_from_disk.remote(path, flush_cache, weight_version)

    def load_lora_adapter_from_tensors(
        self, name: str, config: dict[str, Any], serialized: bytes, checksums: dict[str, str] | None
    ) -> ObjectRef[None]:
        return self.actor.load_lora_adapter_from_tensors.remote(name, config, serialized, checksums)

    def unload_lora_adapter(self, name: str) -> ObjectRef[bool]:
        return self.actor.unload_lora_adapter.remote(name)

    def signature(self, people: str) -> ObjectRef[str | None]:
        return self.actor.signature.remote(people)

    def lora_adapters(self) -> ObjectRef[list[str]]:
        return self.actor.lora_adapters.remote()

    def set_weight_version(self, version: str) -> ObjectRef[None]:
        return self.actor.set_weight_version.remote(version)


class EngineLife(NamedTuple):
    """An engine's process as it is now: its position and its handle, its URL, and how often it was started."""

    position: int
    engine: RemoteEngine
    url: str
    starts: int

    def lives(self) -> bool:
        """Return whether the engine lives and is still this process; waits for a restart under way."""
        import ray
        from ray.exceptions import RayActorError

        try:
            return not ray.get(self.engine.is_dead()) and ray.get(self.engine.starts()) == self.starts
        except (RayActorError, EngineNodeLostError):
            return False


def lives_of(engines: Mapping[int, RemoteEngine]) -> list[EngineLife]:
    """Return the processes of engines, which are given by their position.

    Raises:
        RayActorError: an engine's actor is gone.
        EngineNodeLostError: its machine is lost.
    """
    import ray

    handles = engines.values()
    urls, starts = ray.get([each.url() for each in handles]), ray.get([each.starts() for each in handles])
    return [EngineLife(*each) for each in zip(engines, handles, urls, starts, strict=True)]


class EngineCalls(Generic[T]):
    """The running calls of one method: ``EngineCalls.to_all(engines, RemoteEngine.pause_generation, "retract")``."""

    def __init__(self, method: str, engines: Sequence[RemoteServer], calls: Sequence[ObjectRef[T]]) -> None:
        self.method = method
        self._engines = list(engines)
        self._futures: list[Future[T]] = [call.future() for call in calls]
        self._lost: set[int] = set()

    @classmethod
    def to_all(
        cls,
        engines: Sequence[H],
        method: Callable[Concatenate[H, P], ObjectRef[T]],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> EngineCalls[T]:
        """Send the same call to all engines."""
        return cls(method.__name__, engines, [method(engine, *arguments, **keywords) for engine in engines])

    @classmethod
    def to_each(
        cls, engines: Sequence[H], method: Callable[[H, *Ts], ObjectRef[T]], arguments: Sequence[tuple[*Ts]]
    ) -> EngineCalls[T]:
        """Send one call to each engine, with its own arguments."""
        calls = [method(engine, *own) for engine, own in zip(engines, arguments, strict=True)]
        return cls(method.__name__, engines, calls)

    def values(self) -> list[T]:
        """Return the engines' answers, in order; raise the first failure at once."""
        done, _ = wait(self._futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result() for future in self._futures]

    def finish(self, seconds: float, beside: Future[Any] | None = None) -> None:
        """Wait for all calls and for ``beside``, an operation with the engines; raise the first failure at once.

        Raises:
            EngineError: an engine's process ended, or engines did not answer for ``seconds``; they count as failed.
        """
        waiting: set[Future[Any]] = {*self._futures, *([beside] if beside is not None else [])}
        deadline = time.monotonic() + seconds
        while waiting:
            left = deadline - time.monotonic()
            done, waiting = wait(waiting, timeout=max(0.0, min(LOOK_SECONDS, left)), return_when=FIRST_EXCEPTION)
            if beside in done and beside is not None and beside.exception() is not None:
                wait(self._futures, timeout=BLAME_SECONDS, return_when=FIRST_EXCEPTION)
                self._raise_failure()
            for future in done:
                future.result()
            if waiting and left <= 0:
                self._lost.update(self._open())
                names = ", ".join(map(str, sorted(self._lost))) or "none"
                raise EngineError(
                    f"{self.method} was not done within {seconds:.0f} s; policy engines without an answer: {names}. If the "
                    "network needs longer for one bucket, raise --distributed-timeout-minutes or lower "
                    "--update-weight-buffer-size"
                )
            if waiting:
                self._look()

    def _open(self) -> list[int]:
        return [index for index, future in enumerate(self._futures) if not future.done()]

    def _raise_failure(self) -> None:
        """Raise the first engine's failure, if an engine failed or ended."""
        for future in self._futures:
            if future.done():
                future.result()
        self._look()

    def _look(self) -> None:
        """Raise EngineError if an engine's process ended before it answered."""
        positions = self._open()
        looks = EngineCalls.to_all(
            [RemoteEngine(self._engines[index].actor) for index in positions], RemoteEngine.has_ended
        )
        unanswered = looks.unanswered(LOOK_SECONDS)
        for place, index in enumerate(positions):
            if place not in unanswered and looks._futures[place].result() is True and not self._futures[index].done():
                self._lost.add(index)
                raise EngineError(f"the process of policy engine {index} ended in {self.method}")

    def check_none_ended(self) -> None:
        """Raise the first failure, or RuntimeError if an engine answered; for calls that must still be running."""
        for index, future in enumerate(self._futures):
            if future.done():
                future.result()
                raise RuntimeError(f"policy engine {index} ended {self.method} before it had everything")

    def error(self, position: int) -> BaseException | None:
        """Return the exception of an engine's call so far, or None."""
        future = self._futures[position]
        return future.exception() if future.done() else None

    def failed(self) -> list[int]:
        """Return the positions of engines whose call has failed or whose process has ended."""
        failed = {
            index for index, future in enumerate(self._futures) if future.done() and future.exception() is not None
        }
        return sorted(failed | self._lost)

    def unanswered(self, seconds: float) -> list[int]:
        """Wait up to ``seconds`` and return the positions of the engines that failed or did not answer."""
        done, _ = wait(self._futures, timeout=seconds)
        return [
            index for index, future in enumerate(self._futures) if future not in done or future.exception() is not None
        ]

    def still_open(self, seconds: float) -> list[int]:
        """Wait up to ``seconds`` and return the positions of engines that neither answered nor failed."""
        wait(self._futures, timeout=seconds)
        return self._open()
