"""Everybody's own adapter on one engine: hooks around SGLang's tokenizer manager, in the server process.

A request says whose weights it wants: ``person-MARK`` (`groundwork.people`) for a person's accepted version, the exact name
of a version, or `slime.weight_sync.BASE`. One without ``lora_path`` is refused. Guarantees:

* The book (`slime.weight_sync.people`) decides at admission, and the request keeps its version to its end.
* A version is read from its folder when it is first asked for, and again after it was let go, so eviction and a restart of
  the engine need nobody. The SHA-256 of what is loaded is that of the book.
* At most ``most`` versions are held; the least recently used idle one leaves for another. One in use never leaves, and none
  leaves while requests are held. A request that finds all in use waits.
* If a person's version cannot be loaded, the newest older accepted one answers and says so (`FALLBACK`). Without any, the
  request fails with status 503. Nobody else's version answers, and the base only who asks for it or has no version.
* When a person's newest accepted version is loaded, the idle ones that it replaces are let go, so what an engine holds grows with
  the people who talk, not with their updates. What was forgotten is let go at the next load.
* A version that the engine does not let go of stays and keeps its place; it is tried again at the next load.

Adapters are read here and go to the model's ranks through memory. SGLang's own way from a folder reads every
``*.safetensors`` in it, so also a trainer's state, and refuses the load format of a quantised base (log/adapters.md).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import pickle
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from groundwork.people import requested_mark
from slime.backends.sglang_utils.server_hooks import DIGEST, IN_USE, MANAGER, hook, report
from slime.exceptions import PeopleError
from slime.weight_sync import BASE, adapter_version
from slime.weight_sync.people import CONFIG, WEIGHTS, Book, Version, folder_of, mark_in

logger = logging.getLogger(__name__)

ADAPTER, FALLBACK = "adapter", "adapter_fallback"
"""Keys in an answer's ``meta_info``: the name of the adapter that answered, and a dict of the accepted version that could not
be loaded: its ``adapter`` and the ``reason``."""
NO_VERSION = "0"
"""The weight version of a person without an accepted one: the base."""
RETRY_SECONDS = 10.0
"""How long a version that could not be loaded is not tried again."""
POLL_SECONDS = 0.02
UNNAMED = (
    "each person has an adapter of their own here, so a request names one: add lora_path, which is person-MARK, the exact "
    f"name of a version, or {BASE}"
)


class RefusedRequestError(ValueError):
    """A request that no adapter answers. SGLang sends ``status_code`` to the client.

    Attributes:
        status_code: 400, or 503 if another try may succeed.
    """

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message)
        self.status_code = status_code


class _NoRoomError(PeopleError):
    """The engine lets go of none of the versions that it holds."""


class Taken(NamedTuple):
    """What answers a request.

    Attributes:
        name: of the adapter; None: the base.
        version: the weight version.
        sha256: of the adapter's file.
        fallback: see `FALLBACK`.
    """

    name: str | None
    version: str
    sha256: str | None = None
    fallback: dict[str, str] | None = None


class Shelf:
    """The versions that one engine holds, and who uses them. Owned by the server's event loop."""

    def __init__(
        self,
        manager: Any,
        people: Path,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Hold at most ``most`` versions of ``people`` (`slime.weight_sync.people.people_folder`) in SGLang's ``manager``."""
        self._sleep = sleep
        self._manager = manager
        self._people = people
        self._most = most
        self._clock = clock
        self._book = Book(people)
        self._held: OrderedDict[str, str] = OrderedDict()
        self._uses: Counter[str] = Counter()
        self._failures: dict[str, tuple[float, str]] = {}
        self._changing = asyncio.Lock()
        self._loading: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> list[str]:
        """The versions that the engine has, least recently used first."""
        return list(self._held)

    async def take(self, wanted: str) -> Taken:
        """Return what answers a request for ``wanted``; an adapter stays until it is given back.

        Raises:
            RefusedRequestError: nothing does.
        """
        if wanted == BASE:
            return Taken(None, BASE)
        if (mark := requested_mark(wanted)) is not None:
            return await self._take_accepted(mark)
        if mark_in(wanted) is None:
            raise RefusedRequestError(f"no adapter has the name {wanted!r}; {UNNAMED}")
        accepted = {version.name: version.sha256 for version in self._versions(mark_in(wanted) or "")}
        if wanted not in accepted and not folder_of(self._people, wanted).is_dir():
            raise RefusedRequestError(f"adapter {wanted} was refused, deleted or never made; ask for person-MARK")
        try:
            return await self._take(wanted, accepted.get(wanted))
        except PeopleError as error:
            raise RefusedRequestError(f"adapter {wanted} cannot be loaded: {error}", 503) from error

    def give_back(self, name: str) -> None:
        """End a use of an adapter."""
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]

    def in_use(self, name: str) -> bool:
        """Return whether a request uses an adapter, here or still in the scheduler."""
        return bool(self._uses[name]) or _running(self._manager, name) > 0

    def gone(self, name: str) -> None:
        """Note that somebody unloaded an adapter."""
        self._held.pop(name, None)

    def _versions(self, mark: str) -> tuple[Version, ...]:
        if not self._people.is_dir():
            raise RefusedRequestError(
                f"{self._people} is not on the engine's machine; give --run-dir a folder that all machines of the run share",
                503,
            )
        try:
            return self._book.versions(mark)
        except PeopleError as error:
            raise RefusedRequestError(str(error), 503) from error

    async def _take_accepted(self, mark: str) -> Taken:
        versions, first = self._versions(mark), None
        if not versions:
            return Taken(None, NO_VERSION)
        for version in versions:
            try:
                return (await self._take(version.name, version.sha256))._replace(fallback=first)
            except PeopleError as error:
                logger.error("adapter %s cannot be loaded: %s", version.name, error)
                first = first or {ADAPTER: version.name, "reason": str(error)}
        raise RefusedRequestError(
            f"none of the {len(versions)} accepted versions of person {mark} can be loaded, the newest because {(first or {})['reason']}",
            503,
        )

    async def _take(self, name: str, sha256: str | None) -> Taken:
        """Return a version once it is held; raise PeopleError if it cannot be.

        A client that leaves meanwhile does not interrupt SGLang.
        """
        while name not in self._held:  # it may have left again before this request's turn
            loading = asyncio.get_running_loop().create_task(self._load(name, sha256))
            self._loading.add(loading)
            loading.add_done_callback(self._loaded)
            await asyncio.shield(loading)
        digest = self._held[name]
        if sha256 is not None and digest != sha256:
            raise PeopleError(f"it was loaded with SHA-256 {digest} before it was accepted with {sha256}")
        self._uses[name] += 1
        self._held.move_to_end(name)
        return Taken(name, adapter_version(name) or "", digest)

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        self._loading.discard(loading)
        loading.exception()  # its request knows it, if it is still there

    async def _load(self, name: str, sha256: str | None) -> None:
        async with self._changing:
            if name not in self._held:
                await self._load_alone(name, sha256)

    async def _load_alone(self, name: str, sha256: str | None) -> None:
        at, reason = self._failures.get(name, (0.0, ""))
        if reason and self._clock() - at < RETRY_SECONDS:
            raise PeopleError(reason)
        try:
            await self._let_go_of_forgotten()
            message, config, digest = await asyncio.to_thread(_read, folder_of(self._people, name), sha256)
            await self._make_room()
            await self._give_to_engine(name, config, message)
        except _NoRoomError:  # the next load may find room
            raise
        except PeopleError as error:
            self._failures[name] = (self._clock(), str(error))
            raise
        self._failures.pop(name, None)
        self._held[name] = digest
        await self._let_go_of_replaced(name)

    async def _give_to_engine(self, name: str, config: dict[str, Any], message: bytes) -> None:
        from sglang.srt.managers.io_struct import LoadLoRAAdapterFromTensorsReqInput

        each_rank = [message] * self._manager.server_args.tp_size
        result = await self._manager.load_lora_adapter_from_tensors(
            LoadLoRAAdapterFromTensorsReqInput(lora_name=name, config_dict=config, serialized_named_tensors=each_rank)
        )
        if not result.success:
            raise PeopleError(f"the engine refuses it: {result.error_message}")

    async def _make_room(self) -> None:
        """Wait until another version may be held, letting go of the least recently used idle ones."""
        stuck: dict[str, str] = {}
        while len(self._held) >= self._most:
            idle = [name for name in self._held if not self.in_use(name)]
            rest = [name for name in idle if name not in stuck]
            if self._manager.is_pause or not idle:
                await self._sleep(POLL_SECONDS)
            elif rest:
                if (why := await self._let_go(rest[0])) is not None:
                    stuck[rest[0]] = why
            elif len(idle) == len(self._held):
                raise _NoRoomError(f"the engine holds {len(idle)} idle adapters and lets go of none: {stuck[idle[0]]}")
            else:
                await self._sleep(POLL_SECONDS)

    async def _let_go_of_forgotten(self) -> None:
        for name in self.held:
            accepted = {version.name for version in self._book.versions(mark_in(name) or "")}
            deleted = name not in accepted and not folder_of(self._people, name).is_dir()
            if deleted and not self._manager.is_pause and not self.in_use(name):
                await self._let_go(name)

    async def _let_go_of_replaced(self, name: str) -> None:
        """Let go of the idle versions before ``name``, if it serves its person now; who still asks for one has it loaded again."""
        versions = self._book.versions(mark_in(name) or "")
        if not versions or versions[0].name != name:
            return
        for version in versions[1:]:
            if version.name in self._held and not self._manager.is_pause and not self.in_use(version.name):
                await self._let_go(version.name)

    async def _let_go(self, name: str) -> str | None:
        """Unload a version; return why the engine does not, None if it did."""
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

        digest = self._held.pop(name)  # from now on a request for it waits until it is loaded again
        result = await self._manager.unload_lora_adapter(UnloadLoRAAdapterReqInput(lora_name=name))
        if not result.success:
            self._held[name] = digest
            self._held.move_to_end(name, last=False)
            logger.error("the engine does not let go of adapter %s: %s", name, result.error_message)
            return str(result.error_message)
        # SGLang would load it again by itself from here.
        self._manager.lora_ref_cache.pop(name, None)
        return None


def _running(manager: Any, name: str) -> int:
    """Return how many requests of SGLang use an adapter."""
    adapter = manager.lora_registry.get_all_adapters().get(name)
    counter = manager.lora_registry._counters.get(adapter.lora_id) if adapter is not None else None
    return counter.value() if counter is not None else 0


def _read(folder: Path, sha256: str | None) -> tuple[bytes, dict[str, Any], str]:
    """Return a version as a message of its tensors, PEFT's description of it, and the SHA-256 of its file.

    Raises:
        PeopleError: a file is missing, unreadable, or has another digest than ``sha256``.
    """
    from safetensors.torch import load

    try:
        content = (folder / WEIGHTS).read_bytes()
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        digest = hashlib.sha256(content).hexdigest()
        if sha256 is not None and digest != sha256:
            raise PeopleError(f"{folder / WEIGHTS} has SHA-256 {digest}, not {sha256} as when it was accepted")
        return pickle.dumps(load(content)), config, digest
    except PeopleError:
        raise
    except OSError as error:
        raise PeopleError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # safetensors has an error type of its own
        raise PeopleError(f"{folder} holds no adapter: {error}") from error


def hooks(people: Path, most: int) -> dict[str, Callable[..., Any]]:
    """Return the hooks by what they wrap; see :func:`~slime.backends.sglang_utils.server_hooks.hook`."""

    def shelf(manager: Any) -> Shelf:
        found: Shelf | None = vars(manager).get("people_shelf")
        if found is None:
            found = manager.people_shelf = Shelf(manager, people, most)
        return found

    async def answer_as_asked(
        original: Callable[..., AsyncIterator[Any]], manager: Any, request: Any, *rest: Any
    ) -> AsyncIterator[Any]:
        if not request.lora_path:
            raise RefusedRequestError(UNNAMED)
        if not isinstance(request.lora_path, str):
            raise RefusedRequestError("lora_path must be one name; send a request for each adapter")
        async with manager.is_pause_cond:
            await manager.is_pause_cond.wait_for(lambda: not manager.is_pause)
        taken = await shelf(manager).take(request.lora_path)
        request.lora_path = taken.name
        try:
            async for answer in original(manager, request, *rest):
                for part in answer if isinstance(answer, list) else [answer]:
                    if "meta_info" in part:
                        meta = part["meta_info"]
                        report(meta, taken.version)
                        meta |= {DIGEST: taken.sha256, ADAPTER: taken.name or BASE}
                        if taken.fallback is not None:
                            meta[FALLBACK] = taken.fallback
                yield answer
        finally:
            if taken.name is not None:
                shelf(manager).give_back(taken.name)

    async def keep_while_used(original: Callable[..., Awaitable[Any]], manager: Any, request: Any, *rest: Any) -> Any:
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqOutput

        if shelf(manager).in_use(request.lora_name):
            return UnloadLoRAAdapterReqOutput(success=False, error_message=IN_USE)
        shelf(manager).gone(request.lora_name)
        return await original(manager, request, *rest)

    return {
        f"{MANAGER}.generate_request": answer_as_asked,
        f"{MANAGER}.unload_lora_adapter": keep_while_used,
    }


def serve_people(people: Path, most: int) -> None:
    """Hook SGLang's tokenizer manager; ``people`` and ``most``: see `Shelf`.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.server_hooks.hook`; such a server would answer with the base model.
    """
    hook(hooks(people, most), "serve each person's adapter")
