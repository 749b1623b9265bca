"""What an engine was asked and answered, as a proxy before it saw it: independent of the gateway and its ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from lab.testkit.engine import serve

GRAMMAR = "structural_tag"


@dataclass
class Exchange:
    """One reply: what was asked, and the ids, log-probabilities and version spans that the engine reported."""

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
        meta = event["meta_info"]
        self.ids += event["output_ids"]
        self.logprobs += [entry[0] for entry in meta["output_token_logprobs"]]
        if meta["finish_reason"]:
            self.spans = [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]


@asynccontextmanager
async def recorded(engine_url: str) -> AsyncIterator[tuple[str, list[Exchange]]]:
    """Serve a proxy before the engine; yield its URL and the exchanges, in the order in which they began."""
    app, exchanges = FastAPI(), list[Exchange]()

    async with httpx.AsyncClient(base_url=engine_url, timeout=None, trust_env=False) as client:

        @app.post("/generate")
        async def generate(request: Request) -> Response:
            body = await request.body()
            exchange = Exchange(json.loads(body))
            exchanges.append(exchange)
            asked = client.build_request(
                "POST", "/generate", content=body, headers={"Content-Type": "application/json"}
            )
            answer = await client.send(asked, stream=True)

            async def lines() -> AsyncIterator[str]:
                try:
                    async for line in answer.aiter_lines():
                        exchange.take(line)
                        yield f"{line}\n"
                finally:
                    await answer.aclose()

            return StreamingResponse(lines(), answer.status_code, media_type=answer.headers["content-type"])

        async with serve(app) as url:
            yield url, exchanges
