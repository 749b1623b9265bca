"""A judge's server that is broken in the way a test names: the endpoint of a chat model and an engine's `/generate` in one.

Guarantees: probes (one token, a prompt of one id) are always answered, so that the server counts as up.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

ANSWERS = {
    "good": ("correction. \\boxed{-1}", "stop"),
    "words": ("The reply was fine, I think.", "stop"),
    "two boxes": ("\\boxed{1} \\boxed{1 or -1}", "stop"),
    "cut": ("at first \\boxed{1}, but then", "length"),
    "abort": ("\\boxed{1}", "abort"),
}
"""Text of the answer and how it ended."""
FAILURES = ("abort", "500", "no json", "no answer", "hangs")


class BrokenJudge:
    """Answers every question in the way of ``mode``; counts the questions."""

    def __init__(self) -> None:
        self.mode = "good"
        self.asked = 0
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self._chat)
        self.app.post("/generate")(self._generate)

    async def _chat(self, request: Request) -> Response:
        if json.loads(await request.body())["max_tokens"] == 1:
            return JSONResponse({"choices": []})
        if self.mode in ANSWERS:
            text, finish = ANSWERS[self.mode]
            message = {"role": "assistant", "content": text}
            return await self._after({"choices": [{"message": message, "finish_reason": finish}]})
        return await self._after({"choices": []})

    async def _generate(self, request: Request) -> Response:
        if len(json.loads(await request.body())["input_ids"]) == 1:
            return JSONResponse({"text": "", "meta_info": {"finish_reason": {"type": "length"}}})
        if self.mode in ANSWERS:
            text, finish = ANSWERS[self.mode]
            return await self._after({"text": text, "meta_info": {"finish_reason": {"type": finish}}})
        return await self._after({"text": "\\boxed{1}"})

    async def _after(self, answer: dict[str, Any]) -> Response:
        self.asked += 1
        if self.mode == "hangs":
            await asyncio.Event().wait()
        if self.mode == "500":
            return PlainTextResponse("out of memory", 500)
        if self.mode == "no json":
            return PlainTextResponse("<html>\\boxed{1}</html>")
        return JSONResponse(answer)
