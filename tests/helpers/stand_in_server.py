"""Our gateway before a stand-in engine, in a thread of its own, for clients that are programs of their own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from slime.contract.engine import StandInEngine

Answer = Callable[[str], str]


@dataclass(frozen=True)
class Heard:
    """One request as it arrived: path, headers in lower case, and the body's JSON (empty without a body)."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class StandInServer:
    """A running server and everything that it was sent."""

    url: str
    ledger: Ledger
    engine: StandInEngine
    tokenizer: Any
    heard: list[Heard] = field(default_factory=list)

    def chats(self) -> list[Heard]:
        """The chat completions that were asked for, in order."""
        return [request for request in self.heard if request.path == "/v1/chat/completions"]

    def turns(self) -> list[Turn]:
        """The turns in the ledger."""
        return [record.turn for record in self.ledger.views.turn_records()]


class _Recorder:
    """Notes each request once its body is read, then passes it on."""

    def __init__(self, app: ASGIApp, heard: list[Heard]) -> None:
        self._app = app
        self._heard = heard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def noted() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                    self._heard.append(Heard(scope["path"], headers, json.loads(bytes(body) or b"{}")))
            return message

        await self._app(scope, noted, send)


@contextmanager
def stand_in_server(folder: Path, answer: Answer, **changes: Any) -> Iterator[StandInServer]:
    """Serve until the block ends.

    Args:
        folder: where the ledger goes.
        answer: the rendered prompt to the text of the reply.
        changes: of the configuration.
    """
    tokenizer = build_tokenizer()

    def script(prompt: list[int]) -> Sequence[int]:
        return [*tokenizer.encode(answer(tokenizer.decode(prompt)), add_special_tokens=False), tokenizer.eos_token_id]

    server: list[StandInServer] = []
    failure: list[BaseException] = []
    started, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with mock_engine(script) as engine:
            config = RuntimeConfig(
                policy_url=engine.url, tokenizer="tiny-policy", ledger=str(folder / "ledger.sqlite"), **changes
            )
            config.validate()
            ledger, registry = Ledger(folder / "ledger.sqlite"), CollectorRegistry()
            heard: list[Heard] = []
            app = create_app(ChatService(config, tokenizer, ledger, registry), registry)
            async with serve(_Recorder(app, heard)) as url:
                server.append(StandInServer(url, ledger, engine, tokenizer, heard))
                started.set()
                await stop.wait()
            ledger.close()

    def serve_forever() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as error:  # noqa: BLE001  handed to the test
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=serve_forever, name="stand-in-server")
    thread.start()
    started.wait()
    try:
        if failure:
            raise failure[0]
        yield server[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
