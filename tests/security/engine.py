"""A stand-in engine that dies as the real one does: ``python -m tests.security.engine --tokenizer FOLDER --port PORT``.

It is policy, judge and teacher at once. It ends its process under an integer that its tensors cannot hold, and under a
prompt with `DEADLY_WORDS`, which stands for a defect that nobody knows yet. ``GET /seen`` tells what reached it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from groundwork.process import watch_lifeline
from lab.testkit.policy_and_judge import PolicyAndJudge
from slime.contract.engine import Answer, Payload

DEADLY_WORDS = "kill the engine"
REPLY = "The sum is five."
TOKEN_SECONDS = 0.005
DEATH = 66
INT32, INT64 = 2**31, 2**63
SMALLEST = 1e-30
"""A penalty below this is 0 in single precision, and the engine divides by it."""


def is_deadly(parameters: Mapping[str, Any]) -> bool:
    """Return whether the scheduler dies of these sampling parameters: they go into tensors of int32 and int64."""
    numbers = {name: value for name, value in parameters.items() if isinstance(value, int)}
    return not (-INT32 <= numbers.get("top_k", 0) < INT32) or any(
        not -INT64 <= value < INT64 for value in numbers.values()
    )


class Words:
    """The tokenizer of a folder, without transformers, whose import takes longer than the rest of the start."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids, control tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def reply(self, text: str) -> list[int]:
        """Return the ids of a whole reply."""
        end = self._tokenizer.token_to_id("<|im_end|>")
        assert end is not None
        return [*self._tokenizer.encode(text, add_special_tokens=False).ids, end]


class MortalEngine(PolicyAndJudge):
    """See the module; ``last_ids`` is the newest prompt, ``largest`` the most characters of text in one request."""

    def __init__(self, tokenizer: Any, reply: list[int]) -> None:
        super().__init__(tokenizer, reply, TOKEN_SECONDS)
        self.count = 0
        self.largest = 0
        self.last_ids: list[int] = []

    async def answer(self, path: str, headers: Mapping[str, str], payload: Payload) -> Answer:
        """Answer one request, also about what was seen."""
        if path == "/seen":
            return 200, {"count": self.count, "largest": self.largest, "last_ids": self.last_ids}
        return await super().answer(path, headers, payload)

    async def stream(self, payload: Payload) -> AsyncIterator[bytes]:
        self.requests.clear()
        self.routing_keys.clear()
        parameters, self.last_ids = payload["sampling_params"], payload["input_ids"]
        self.count += 1
        self.largest = max(self.largest, len(str(parameters)), len(self.last_ids))
        if is_deadly(parameters) or DEADLY_WORDS in self._tokenizer.decode(self.last_ids[-400:]):
            os._exit(DEATH)
        if parameters.get("repetition_penalty", 1.0) < SMALLEST:
            self.events_first.append({"error": {"message": "probability tensor contains inf, nan or element < 0"}})
        async for event in super().stream(payload):
            yield event


def main() -> None:
    """Serve until the parent process ends."""
    watch_lifeline()
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    words = Words(arguments.tokenizer)
    engine = MortalEngine(words, words.reply(REPLY))
    asyncio.run(engine.serve_forever(arguments.port))


if __name__ == "__main__":
    main()
