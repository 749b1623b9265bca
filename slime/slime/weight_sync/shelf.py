"""Everybody's own adapter on one engine: which version answers a request, and which ones the engine holds.

A request says whose weights it wants: ``person-MARK`` (`groundwork.people`) for a person's accepted version, the exact name
of a version, or `slime.weight_sync.BASE`. One without a name is refused. Guarantees:

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
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from groundwork.people import requested_mark
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
    """A request that no adapter answers. The engine sends ``status_code`` to the client.

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


class Files(NamedTuple):
    """A version, as its folder has it.

    Attributes:
        config: PEFT's description.
        content: of the weights' file.
        tensors: what is in it.
        sha256: of ``content``, in hexadecimal digits.
    """

    config: dict[str, Any]
    content: bytes
    tensors: dict[str, Any]
    sha256: str


class Holder(Protocol):
    """The engine that holds the versions of a shelf."""

    def paused(self) -> bool:
        """Return whether requests are held, so that no version may leave."""
        ...

    def running(self, name: str) -> int:
        """Return how many requests the engine itself still counts for a version."""
        ...

    async def load(self, name: str, files: Files) -> None:
        """Load a version, which is not loaded; raise PeopleError if the engine refuses it."""
        ...

    async def unload(self, name: str) -> str | None:
        """Unload a version; return why the engine does not, None if it did."""
        ...


class Shelf:
    """The versions that one engine holds, and who uses them. Owned by the server's event loop."""

    def __init__(
        self,
        holder: Holder,
        people: Path,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Hold at most ``most`` versions of ``people`` (`slime.weight_sync.people.people_folder`) in ``holder``."""
        self._sleep = sleep
        self._holder = holder
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
        return bool(self._uses[name]) or self._holder.running(name) > 0

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

        A client that leaves meanwhile does not interrupt the engine.
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
            files = await asyncio.to_thread(_read, folder_of(self._people, name), sha256)
            await self._make_room()
            await self._holder.load(name, files)
        except _NoRoomError:  # the next load may find room
            raise
        except PeopleError as error:
            self._failures[name] = (self._clock(), str(error))
            raise
        self._failures.pop(name, None)
        self._held[name] = files.sha256
        await self._let_go_of_replaced(name)

    async def _make_room(self) -> None:
        """Wait until another version may be held, letting go of the least recently used idle ones."""
        stuck: dict[str, str] = {}
        while len(self._held) >= self._most:
            idle = [name for name in self._held if not self.in_use(name)]
            rest = [name for name in idle if name not in stuck]
            if self._holder.paused() or not idle:
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
            if deleted and not self._holder.paused() and not self.in_use(name):
                await self._let_go(name)

    async def _let_go_of_replaced(self, name: str) -> None:
        """Let go of the idle versions before ``name``, if it serves its person now; who still asks for one has it loaded again."""
        versions = self._book.versions(mark_in(name) or "")
        if not versions or versions[0].name != name:
            return
        for version in versions[1:]:
            if version.name in self._held and not self._holder.paused() and not self.in_use(version.name):
                await self._let_go(version.name)

    async def _let_go(self, name: str) -> str | None:
        """Unload a version; return why the engine does not, None if it did."""
        digest = self._held.pop(name)  # from now on a request for it waits until it is loaded again
        why = await self._holder.unload(name)
        if why is not None:
            self._held[name] = digest
            self._held.move_to_end(name, last=False)
            logger.error("the engine does not let go of adapter %s: %s", name, why)
        return why


def _read(folder: Path, sha256: str | None) -> Files:
    """Read a version.

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
        return Files(config, content, load(content), digest)
    except PeopleError:
        raise
    except OSError as error:
        raise PeopleError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # safetensors has an error type of its own
        raise PeopleError(f"{folder} holds no adapter: {error}") from error
