"""The agent loop's two ends without machines: an environment that talks, and a policy engine that follows a script."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
from prometheus_client import CollectorRegistry

from agentrl.client import InProcessLeases
from agentrl.environment import Environment, Registry, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from lab.testkit.agent_pools import PATIENT_S, QUICK
from slime.contract.engine import logprob_of

GUESS: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}


class Talk(Environment):
    """Answers each action with its number and the action, until ``steps`` of the task's data are done, or ``room`` is full.

    ``broken`` resets of all its episodes fail; ``seen`` has every action, ``seeds`` every seed.
    """

    broken: ClassVar[int] = 0
    seen: ClassVar[list[JsonObject]] = []
    seeds: ClassVar[list[int]] = []
    offered: ClassVar[list[Task]] = []

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        return cls.offered

    async def reset(self, task: Task, seed: int) -> Observation:
        cls = type(self)
        if cls.broken:
            cls.broken -= 1
            raise InfraError("the image is missing", code="no_image")
        cls.seeds.append(seed)
        self.task, self.count = task, 0
        return Observation(text=str(task.data.get("text", "Guess my number.")), data=dict(task.data))

    async def step(self, action: JsonObject) -> StepResult:
        type(self).seen.append(action)
        self.count += 1
        if action.get("text") == "nonsense":
            raise InvalidError("that is not a number; say one", code="no_number")
        if action.get("text") == "break":
            raise OSError("the machine is gone")
        if action.get("text") == "hang":
            await asyncio.get_running_loop().create_future()
        said = json.dumps(action) + str(self.task.data.get("more", ""))
        return StepResult(
            observation=Observation(text=f"{self.count}: {said}"),
            done=self.count >= self.task.data["steps"],
            truncated=self.count >= self.task.data.get("room", math.inf),
        )

    async def evaluate(self) -> Verdict:
        return Verdict(status="ok", score=float(self.task.data.get("score", 1.0)))

    async def close(self) -> None:
        return None


def talk(*tasks: Task) -> type[Talk]:
    """Return a new environment class with these tasks."""
    return type("OwnTalk", (Talk,), {"offered": list(tasks), "seen": [], "seeds": [], "broken": 0})


@asynccontextmanager
async def pool_of(environment: type[Environment], folder: Path, slots: int = 4) -> AsyncIterator[InProcessLeases]:
    """Lend an environment in this process; at the end all leases must be closed."""
    ledger = ProcessLedger(folder / "pool.sqlite")
    capacity = Capacity(slots, Weight(1000, 2.0))
    pool = Pool(Registry([environment]), capacity, ledger, PoolMetrics(CollectorRegistry()), timeouts=QUICK)
    await pool.start()
    try:
        yield InProcessLeases(pool)
    finally:
        assert await pool.stop(PATIENT_S) == 0
        ledger.close()


class ScriptedPolicy:
    """A policy engine behind slime's HTTP client: ``script`` gives the reply to a prompt.

    ``cuts`` are lengths at which the next requests end as aborted; a request for the rest of a reply gets the rest. While
    ``held``, a request waits for an abort, after the first ``held_after``. ``version`` is that of the weights.
    """

    def __init__(self, script: Callable[[list[int]], Sequence[int]]) -> None:
        self.script = script
        self.version = "1"
        self.cuts: list[int] = []
        self.held = False
        self.held_after = 0
        self.requests: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.running = 0
        self._begun: dict[tuple[int, ...], list[int]] = {}
        self._abort = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        match request.url.path:
            case "/generate":
                self.headers.append(request.headers)
                return httpx.Response(200, json=await self._generate(json.loads(request.content)))
            case "/abort_request":
                self._abort.set()
                self._abort = asyncio.Event()
                return httpx.Response(200, json={})
            case "/v1/loads":
                return httpx.Response(200, json={"loads": [{"num_running_reqs": self.running, "num_waiting_reqs": 0}]})
        return httpx.Response(404, text="no such route")

    async def _generate(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(payload)
        asked = tuple(payload["input_ids"])
        found = [
            (prompt, reply)
            for prompt, reply in self._begun.items()
            if len(prompt) < len(asked)
            and asked == (*prompt, *reply)[: len(asked)]
            and len(asked) < len(prompt) + len(reply)
        ]
        prompt, reply = max(found, key=lambda pair: len(pair[0]), default=(asked, list(self.script(list(asked)))))
        self._begun[prompt] = reply
        done = len(asked) - len(prompt)
        ids, finish = reply[done:], "stop"
        self.running += 1
        try:
            if self.held and len(self.requests) > self.held_after:
                await self._abort.wait()
                ids, finish = ids[:1], "abort"
            elif self.cuts and self.cuts[0] < len(ids):
                ids, finish = ids[: self.cuts.pop(0)], "abort"
        finally:
            self.running -= 1
        limit = payload["sampling_params"]["max_new_tokens"]
        if len(ids) > limit:
            ids, finish = ids[:limit], "length"
        meta: dict[str, Any] = {"finish_reason": {"type": finish}, "weight_version": self.version}
        meta["output_token_logprobs"] = [[logprob_of(done + n, token), token, None] for n, token in enumerate(ids)]
        return {"text": "", "meta_info": meta}


class Letters(Environment):
    """Likes letters: three steps, and the score is their share in what was said."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        return [Task(f"letters-{number}", {"number": number}) for number in range(8)]

    async def reset(self, task: Task, seed: int) -> Observation:
        self.said: list[str] = []
        keywords: JsonObject = {"enable_thinking": True}
        return Observation(text=f"Letter {task.data['number']}", data={"chat_template_kwargs": keywords})

    async def step(self, action: JsonObject) -> StepResult:
        self.said.append(str(action["text"]))
        return StepResult(observation=Observation(text="More."), done=len(self.said) == 3)

    async def evaluate(self) -> Verdict:
        text = "".join(self.said)
        return Verdict(status="ok", score=sum(map(str.isalpha, text)) / max(1, len(text)))

    async def close(self) -> None:
        return None
