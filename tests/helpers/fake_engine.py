"""Stand-ins for an engine's `/generate`: scripted answers, and scoring by a function of the ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx

Score = Callable[[Sequence[int]], list[float]]
TopKOf = Callable[[Sequence[int], int], list[list[tuple[float, int]]]]
NextOf = Callable[[Sequence[int], float, Sequence[int]], list[float]]


def likelihood(prefix: Sequence[int]) -> float:
    """A made-up language model: the log probability of the next token, between -3 and 0."""
    return -((sum(prefix) * 7919 + len(prefix) * 104729) % 3001) / 1000.0


class FakeEngine:
    """Answers questions with ``answer(payload)`` and scores ids with ``score``; keeps every payload."""

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], str] | None = None,
        score: Score | None = None,
        versions: Sequence[str] = ("1",),
        topk: TopKOf | None = None,
        next_of: NextOf | None = None,
    ) -> None:
        """Script the engine.

        Args:
            answer: what it says.
            score: log probability of each id; the first is not read.
            versions: weight version of each scoring answer in turn; the last one repeats.
            topk: the K most likely (log probability, id) at each id's position; the first is not read.
            next_of: log probabilities, at a temperature, of tokens that may follow ids.
        """
        self._next_of = next_of
        self._topk = topk
        self.payloads: list[dict[str, Any]] = []
        self.owners: list[str | None] = []
        self._answer = answer
        self._score = score
        self._versions = list(versions)

    async def answers(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        self.payloads.append(payload)
        self.owners.append(owner)
        if not payload.get("return_logprob"):
            assert self._answer is not None
            return {"text": self._answer(payload), "meta_info": {"finish_reason": {"type": "stop"}}}
        if wanted := payload.get("token_ids_logprob"):
            assert self._next_of is not None
            values = self._next_of(payload["input_ids"], payload["sampling_params"]["temperature"], wanted)
            row = [[value, token, None] for value, token in zip(values, wanted, strict=True)]
            return {"text": "", "meta_info": {"output_token_ids_logprobs": [row], "weight_version": self._version()}}
        assert self._score is not None
        ids, start = payload["input_ids"], payload["logprob_start_len"]
        values = self._score(ids)
        entries = [[None, ids[start], None]]
        entries += [[values[position], ids[position], None] for position in range(start + 1, len(ids))]
        meta = {"input_token_logprobs": entries, "weight_version": self._version()}
        if payload.get("top_logprobs_num"):
            assert self._topk is not None
            rows = self._topk(ids, payload["top_logprobs_num"])[start + 1 :]
            meta["input_top_logprobs"] = [None, *([[value, token, None] for value, token in row] for row in rows)]
        return {"text": "", "meta_info": meta}

    def _version(self) -> str:
        return self._versions.pop(0) if len(self._versions) > 1 else self._versions[0]


def scripted_transport(replies: Sequence[int | Exception | dict[str, Any]]) -> tuple[httpx.MockTransport, list[Any]]:
    """Return a transport that gives ``replies`` one after the other (the last repeats), and the list of its requests.

    An int is a status code, an exception is raised, a dict is a JSON body with 200.
    """
    left = list(replies)
    requests: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, int):
            return httpx.Response(reply, text=f"status {reply}")
        return httpx.Response(200, json=reply)

    return httpx.MockTransport(handle), requests
