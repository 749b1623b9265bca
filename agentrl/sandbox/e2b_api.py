"""The parts of E2B's HTTP interface that sandboxes need: start, find and end virtual machines; files and programs inside.

Guarantees: an answer that asks to wait (429, 5xx) and a lost connection are tried again, within `RetryBudget`; a machine
that is gone raises at once. The key is sent to the interface only, and the machine's own token to the machine only;
neither is in an error or a log. Any host that speaks this protocol will do. Stateless but for its connections.

Sources: the interface's description (https://e2b.dev/docs/api-reference), the messages of the service inside a machine
(``process.proto`` and ``envd.yaml`` in the repository e2b-dev/E2B), and the Connect protocol for their transport
(https://connectrpc.com/docs/protocol).
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from agentrl.exceptions import InfraError, InvalidError

SERVICE_PORT = 49983
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
ENVELOPE = struct.Struct(">BI")
LAST = 0x02
KEEPALIVE_SECONDS = 20
PAGE = 100
PATHS_USER = "root"


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How often, and how long after each other, a request is tried again.

    Attributes:
        tries: of one request, the first one included.
        first_s: seconds before the second try; each further one waits twice as long.
        longest_s: between two tries, also if the server asks for more.
        silence_s: without a byte of an answer; then the connection counts as lost.
    """

    tries: int = 6
    first_s: float = 0.5
    longest_s: float = 20.0
    silence_s: float = 60.0

    def wait_s(self, attempt: int, asked: str | None) -> float:
        """Return the seconds before the next try, after ``attempt`` tries and with the server's ``Retry-After``."""
        backoff = self.first_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
        return min(max(backoff, float(asked) if asked and asked.isdecimal() else 0.0), self.longest_s)


@dataclass(frozen=True, slots=True)
class Machine:
    """A started virtual machine.

    Attributes:
        id: of the machine.
        url: of the service inside it.
        token: that the service asks for.
    """

    id: str
    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """Return what a request to the service inside carries; programs and files are root's."""
        user = base64.b64encode(f"{PATHS_USER}:".encode()).decode()
        return {
            "X-Access-Token": self.token,
            "Authorization": f"Basic {user}",
            "E2b-Sandbox-Id": self.id,
            "E2b-Sandbox-Port": str(SERVICE_PORT),
        }


@dataclass(frozen=True, slots=True)
class Ended:
    """What a program inside printed on stdout and stderr, and its exit code."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Lost(Exception):
    """A connection ended before the answer did; the request may have been carried out."""


class E2BApi:
    """A client; `close` it."""

    def __init__(
        self, key: str, domain: str, *, url: str | None = None, inside_url: str | None = None, retry_budget: RetryBudget
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            key: of the account.
            domain: of the host, for example ``e2b.app``.
            url: of the interface, if it is not ``https://api.DOMAIN``.
            inside_url: of the service in every machine, if it is not ``https://PORT-ID.DOMAIN``.
            retry_budget: of failing requests.
        """
        self._domain = domain
        self._url = url or f"https://api.{domain}"
        self._inside_url = inside_url
        self._key = {"X-API-Key": key}
        self._retry_budget = retry_budget
        self._http = httpx.AsyncClient(timeout=retry_budget.silence_s, trust_env=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def create(self, template: str, *, lifetime_s: int, metadata: Mapping[str, str]) -> Machine:
        """Start a machine without internet, which ends by itself after ``lifetime_s`` seconds.

        ``metadata`` names this one machine: if an answer is lost, whatever carries it is ended before the next try.

        Raises:
            InvalidError: the host refuses the template or the time.
            InfraError: it does not start, or the key is wrong.
        """
        body = {
            "templateID": template,
            "timeout": lifetime_s,
            "autoPause": False,
            "secure": True,
            "allow_internet_access": False,
            "metadata": dict(metadata),
        }
        for attempt in range(1, self._retry_budget.tries + 1):
            try:
                made = await self._asked("POST", "/sandboxes", body=body, tries=1)
                break
            except _Again as again:
                for item in await self.find(metadata):
                    await self.end(item)
                if attempt == self._retry_budget.tries:
                    raise again.given_up("start a sandbox") from again
                await asyncio.sleep(self._retry_budget.wait_s(attempt, again.asked))
        else:
            raise AssertionError("the loop ends by break or raise")
        if made.status_code in (400, 404):
            raise InvalidError(f"E2B refuses template {template!r}: {_message(made)}", code="bad_image")
        fields = self._json(made, "start a sandbox")
        host = fields.get("domain") or self._domain
        url = self._inside_url or f"https://{SERVICE_PORT}-{fields['sandboxID']}.{host}"
        return Machine(fields["sandboxID"], url, fields.get("envdAccessToken") or "")

    async def find(self, metadata: Mapping[str, str]) -> list[str]:
        """Return the ids of all machines that carry all of ``metadata``."""
        quoted = urlencode({quote(name): quote(value) for name, value in metadata.items()})
        place: list[str] = []
        query = {"metadata": quoted, "state": "running,paused", "limit": str(PAGE)}
        while True:
            page = await self._tried("GET", "/v2/sandboxes", "list sandboxes", query=query)
            place += [item["sandboxID"] for item in self._json(page, "list sandboxes")]
            if not (token := page.headers.get("x-next-token")):
                return place
            query = {**query, "nextToken": token}

    async def end(self, machine_id: str) -> None:
        """End a machine; one that is gone is fine.

        Raises:
            InfraError: it was not confirmed.
        """
        answer = await self._tried("DELETE", f"/sandboxes/{quote(machine_id, safe='')}", "end a sandbox")
        if answer.status_code != 404:
            self._json(answer, "end a sandbox")

    async def extend(self, machine: Machine, lifetime_s: int) -> None:
        """Let a machine live for ``lifetime_s`` seconds from now.

        Raises:
            InfraError: it is gone, or the host refuses.
        """
        answer = await self._tried(
            "POST", f"/sandboxes/{machine.id}/timeout", "extend a sandbox", body={"timeout": lifetime_s}
        )
        if answer.status_code == 404:
            raise gone()
        self._json(answer, "extend a sandbox")

    async def upload(self, machine: Machine, path: str, data: bytes) -> None:
        """Write a file as root, and the folders above it; a repeated upload replaces it.

        Raises:
            InvalidError: the disk is full.
            InfraError: the machine is gone or does not answer.
        """
        query = {"path": path, "username": PATHS_USER}
        answer = await self._tried("POST", "/files", "upload", machine=machine, query=query, file=data)
        if answer.status_code == 507:
            raise InvalidError(f"the sandbox's disk is full: {_message(answer)}", code="disk_full")
        self._json(answer, "upload")

    async def start(self, machine: Machine, argv: list[str]) -> None:
        """Start a program as root, and leave it running; if an answer is lost it is started again.

        Raises:
            InfraError: it cannot be started, or the machine is gone or does not answer.
        """
        for attempt in range(1, self._retry_budget.tries + 1):
            try:
                async with aclosing(self._events(machine, argv)) as events:
                    async for event in events:
                        if "start" in event:
                            return
            except (Lost, _Again) as error:
                await self._pause(attempt, error)

    async def run(self, machine: Machine, argv: list[str], *, seconds: float) -> Ended:
        """Run a program as root to its end; if an answer is lost it is run again, so it must bear that.

        Raises:
            InfraError: the machine is gone or does not answer within ``seconds``.
        """
        try:
            async with asyncio.timeout(seconds):
                for attempt in range(1, self._retry_budget.tries + 1):
                    try:
                        return await self._run(machine, argv)
                    except (Lost, _Again) as error:
                        await self._pause(attempt, error)
            raise AssertionError("the loop ends by return or raise")
        except TimeoutError as error:
            raise InfraError(f"E2B: no answer after {seconds:.0f} s; take a new sandbox", code="e2b_failed") from error

    async def _pause(self, attempt: int, error: Lost | _Again) -> None:
        """Wait before the next try of a program.

        Raises:
            InfraError: it was the last try.
        """
        if attempt == self._retry_budget.tries:
            raise InfraError(
                f"E2B: a sandbox's connection was lost {attempt} times ({error}); take a new one", code="e2b_failed"
            ) from error
        await asyncio.sleep(self._retry_budget.wait_s(attempt, error.asked if isinstance(error, _Again) else None))

    async def _run(self, machine: Machine, argv: list[str]) -> Ended:
        output = {"stdout": bytearray(), "stderr": bytearray()}
        async for event in self._events(machine, argv):
            for name, data in event.get("data", {}).items():
                output[name] += base64.b64decode(data)
            if (end := event.get("end")) is not None:
                if not end.get("exited"):
                    raise Lost(end.get("status", "the program was ended"))
                return Ended(end.get("exitCode", 0), bytes(output["stdout"]), bytes(output["stderr"]))
        raise Lost("the events ended before the program did")

    async def _events(self, machine: Machine, argv: list[str]) -> AsyncGenerator[dict[str, Any], None]:
        """Start a program and yield what the service says of it; `Lost` or `_Again` if that breaks off."""
        message = json.dumps({"process": {"cmd": argv[0], "args": argv[1:]}, "stdin": False}).encode()
        headers = {
            **machine.headers,
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Keepalive-Ping-Interval": str(KEEPALIVE_SECONDS),
        }
        request = self._http.stream(
            "POST",
            f"{machine.url}/process.Process/Start",
            headers=headers,
            content=ENVELOPE.pack(0, len(message)) + message,
        )
        try:
            async with request as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    _raise_if_again(answer)
                    self._json(answer, "start a program")
                buffer = bytearray()
                async for chunk in answer.aiter_raw():
                    buffer += chunk
                    while len(buffer) >= ENVELOPE.size:
                        flags, length = ENVELOPE.unpack_from(buffer)
                        if len(buffer) < ENVELOPE.size + length:
                            break
                        fields = json.loads(buffer[ENVELOPE.size : ENVELOPE.size + length])
                        del buffer[: ENVELOPE.size + length]
                        if flags & LAST:
                            _raise_if_refused(fields)
                            return
                        yield fields.get("event", {})
        except httpx.HTTPError as error:
            raise Lost(type(error).__name__) from error
        raise Lost("the events ended without their last one")

    async def _tried(self, method: str, path: str, what: str, **request: Any) -> httpx.Response:
        """Send a request that may be repeated until there is an answer."""
        for attempt in range(1, self._retry_budget.tries + 1):
            try:
                return await self._asked(method, path, tries=attempt, **request)
            except _Again as again:
                if attempt == self._retry_budget.tries:
                    raise again.given_up(what) from again
                await asyncio.sleep(self._retry_budget.wait_s(attempt, again.asked))
        raise AssertionError("the loop ends by return or raise")

    async def _asked(
        self,
        method: str,
        path: str,
        *,
        tries: int,
        machine: Machine | None = None,
        query: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
        file: bytes | None = None,
    ) -> httpx.Response:
        """Send a request once; raise `_Again` if another try may help."""
        try:
            answer = await self._http.request(
                method,
                (machine.url if machine else self._url) + path,
                headers=machine.headers if machine else self._key,
                params=query,
                json=body,
                files=None if file is None else {"file": ("file", file)},
            )
        except httpx.HTTPError as error:
            raise _Again(f"try {tries}: {type(error).__name__}", None) from error
        _raise_if_again(answer)
        return answer

    def _json(self, answer: httpx.Response, what: str) -> Any:
        """Return the fields of a good answer; say what is wrong with another."""
        if answer.status_code in (401, 403):
            raise InfraError(
                f"E2B does not accept the key ({answer.status_code}); set E2B_API_KEY to a valid one", code="e2b_key"
            )
        if answer.status_code == 404:
            raise gone()
        if answer.is_error:
            raise InfraError(f"E2B: cannot {what}: {answer.status_code} {_message(answer)}", code="e2b_failed")
        return answer.json() if answer.content else {}


class _Again(Exception):
    """The host asks for another try, or the connection was lost; ``asked`` is its ``Retry-After``."""

    def __init__(self, why: str, asked: str | None) -> None:
        super().__init__(why)
        self.asked = asked

    def given_up(self, what: str) -> InfraError:
        """Return the error after the last try."""
        return InfraError(f"E2B: cannot {what}: {self}; look at the host's status, or wait", code="e2b_failed")


def gone() -> InfraError:
    """Return the error of a machine that does not exist any more."""
    return InfraError("the E2B sandbox is gone: it was ended, or its lifetime is over", code="sandbox_gone")


def _raise_if_again(answer: httpx.Response) -> None:
    if answer.status_code not in AGAIN:
        return
    if answer.status_code == 502 and "not found" in _message(answer):
        raise gone()
    raise _Again(f"{answer.status_code} {_message(answer)}", answer.headers.get("retry-after"))


def _raise_if_refused(last: dict[str, Any]) -> None:
    """Raise for the error in a stream's last message."""
    if (error := last.get("error")) is None:
        return
    if error.get("code") in ("unavailable", "resource_exhausted", "canceled", "deadline_exceeded", "internal"):
        raise Lost(error["code"])
    raise InfraError(f"E2B: the program did not start: {error.get('message')}", code="e2b_failed")


def _message(answer: httpx.Response) -> str:
    """Return the host's own words, in short."""
    try:
        said = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        said = answer.text
    return str(said)[:200]
