"""What an engine was asked and answered, as a proxy before it saw it: independent of the gateway and its ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from lab.testkit.engine import serve
from lab.testkit.event_lines import EventLines

GRAMMAR = "structural_tag"


@dataclass
class Exchange:
    """One request to the engine: what was asked, and the ids, log-probabilities and version spans that the engine reported.

    A reply has several if its stream breaks: the gateway asks for the rest. A request that did not finish has the versions that its
    events named.
    """

    payload: dict[str, Any]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        """The ids that the engine read."""
        return self.payload["input_ids"]

    @property
    def forced(self) -> bool:
        """Whether a grammar chose among the tokens."""
        return GRAMMAR in self.payload["sampling_params"]

    def take(self, line: str) -> None:
        """Read a line of the event stream, whose events have new ids only."""
        if not line.startswith("data: {"):
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            return
        meta, start = event["meta_info"], len(self.ids)
        self.ids += event["output_ids"]
        self.logprobs += [entry[0] for entry in meta["output_token_logprobs"]]
        if meta["finish_reason"] and "weight_versions" in meta:
            self.spans = [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]
        elif event["output_ids"]:
            version = meta["weight_version"]
            same = bool(self.spans) and self.spans[-1][0] == version
            self.spans = [
                *self.spans[: -1 if same else None],
                (version, self.spans[-1][1] if same else start, len(self.ids)),
            ]


@asynccontextmanager
async def recorded(
    engine_url: str, breaks: Mapping[int, int] | None = None
) -> AsyncIterator[tuple[str, list[Exchange]]]:
    """Serve a proxy before the engine; yield its URL and the exchanges, in the order in which they began.

    ``breaks``: after how many tokens at least the stream of a request breaks off, by the request's number.
    """
    app, exchanges = FastAPI(), list[Exchange]()

    async with httpx.AsyncClient(base_url=engine_url, timeout=None, trust_env=False) as client:

        @app.post("/generate")
        async def generate(request: Request) -> Response:
            body = await request.body()
            exchange = Exchange(json.loads(body))
            most = (breaks or {}).get(len(exchanges))
            exchanges.append(exchange)
            asked = client.build_request(
                "POST", "/generate", content=body, headers={"Content-Type": "application/json"}
            )
            answer = await client.send(asked, stream=True)

            async def parts() -> AsyncIterator[bytes]:
                lines = EventLines()
                try:
                    async for part in answer.aiter_raw():
                        for line in lines.of(part):
                            exchange.take(line)
                        yield part
                        if most is not None and len(exchange.ids) >= most:
                            return
                finally:
                    await answer.aclose()

            return StreamingResponse(parts(), answer.status_code, media_type=answer.headers["content-type"])

        async with serve(app) as url:
            yield url, exchanges
