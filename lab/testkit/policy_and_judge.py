"""A stand-in engine that is policy, judge and teacher at once; also a program, so that it can be killed.

``python -m lab.testkit.policy_and_judge --tokenizer FOLDER --port PORT [--version-file FILE]`` serves until its parent ends
it. The file holds the weight version that the trainer set last, so that a new process answers with it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from slime.contract.engine import Answer, Payload, StandInEngine

REPLY = "The sum is five."
HINT_ANSWER = "[HINT_START]Write plain prose.[HINT_END] \\boxed{1}"
SWAP_SECONDS = 0.05


class PolicyAndJudge(StandInEngine):
    """Streams replies, answers votes by what the judge is asked, and scores tokens by the length of their input."""

    def __init__(self, tokenizer: Any, reply: list[int], token_seconds: float = 0.0) -> None:
        """``token_seconds``: pause before each token, and before each verdict."""
        super().__init__(lambda prompt: reply)
        self._tokenizer = tokenizer
        self._token_seconds = token_seconds
        self.version_file: Path | None = None

    async def answer(self, path: str, headers: Mapping[str, str], payload: Payload) -> Answer:
        """Answer one request; a new weight version takes effect after a pause."""
        if path == "/update_weight_version":
            self.pause()
            await asyncio.sleep(SWAP_SECONDS)
            self.resume(payload["new_version"])
            if self.version_file is not None:
                self.version_file.write_text(self.version)
            return 200, {}
        return await super().answer(path, headers, payload)

    async def whole(self, payload: Payload) -> Payload:
        """Return scores, or the verdict on what is asked."""
        await asyncio.sleep(self._token_seconds)
        if payload.get("return_logprob"):
            ids, start = payload["input_ids"], payload["logprob_start_len"]
            entries = [[None, ids[start], None], *([-len(ids) / 100, token, None] for token in ids[start + 1 :])]
            return {"text": "", "meta_info": {"input_token_logprobs": entries, "weight_version": self.version}}
        question = self._tokenizer.decode(payload["input_ids"])
        verdict = HINT_ANSWER if "extract hints" in question else "\\boxed{-1}"
        return {"text": verdict, "meta_info": {"finish_reason": {"type": "stop"}}}

    async def stream(self, payload: Payload) -> AsyncIterator[bytes]:
        """Yield the events of a reply at its pace."""
        async for event in super().stream(payload):
            await asyncio.sleep(self._token_seconds)
            yield event


def main() -> None:
    """Serve on a fixed port."""
    from transformers import AutoTokenizer

    from groundwork.process import watch_lifeline

    watch_lifeline()
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--version-file", type=Path)
    parser.add_argument("--token-seconds", type=float, default=0.01)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    reply = [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.eos_token_id]
    engine = PolicyAndJudge(tokenizer, reply, arguments.token_seconds)
    engine.version_file = arguments.version_file
    if arguments.version_file is not None and arguments.version_file.exists():
        engine.version = arguments.version_file.read_text()
    asyncio.run(engine.serve_forever(arguments.port))


if __name__ == "__main__":
    main()
