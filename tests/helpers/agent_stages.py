"""A stage for slime's generate function: a pool in this process and a policy that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.environment import Environment
from agentrl.rollout import generate as loop
from agentrl.rollout.records import names, read
from lab.testkit.agent_rollouts import ScriptedPolicy, pool_of
from lab.testkit.rollout_engine import rollout_args
from slime.args import Arguments
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.async_utils import run
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample

END = "<|im_end|>"
PARAMETERS: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 1024}


@dataclass
class Stage:
    """What a test plays on."""

    args: Arguments
    policy: ScriptedPolicy
    environment: Any
    pool: Any
    tokenizer: Any

    def sample(self, task_id: str = "guess", **fields: Any) -> Sample:
        return Sample(**{"group_index": 3, "index": 7, "prompt": "?", "metadata": {"task_id": task_id}, **fields})

    async def play(self, sample: Sample | None = None, evaluation: bool = False, **changes: Any) -> Any:
        args = self.args.changed(**changes)
        return await loop.generate(args, sample or self.sample(), dict(PARAMETERS), evaluation)

    async def leases(self) -> int:
        return (await self.pool.status()).leases

    def record(self) -> Any:
        return read(Path(self.args.run_dir), names(Path(self.args.run_dir))[-1])

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.record().events]


@asynccontextmanager
async def staged(
    environment: type[Environment],
    replies: Sequence[str],
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Stage]:
    """Play ``replies`` by the number of turns before; the last one goes on."""
    args = rollout_args(model).changed(
        run_dir=str(folder), dynamic_history=True, apply_chat_template_kwargs={"enable_thinking": True}
    )
    SingletonMeta.clear(GenerateState)
    tokenizer = GenerateState(args).tokenizer
    opened = tokenizer.encode("<|im_start|>assistant", add_special_tokens=False)

    def script(prompt: list[int]) -> list[int]:
        before = sum(prompt[n : n + len(opened)] == opened for n in range(len(prompt))) - 1
        return tokenizer.encode(replies[min(before, len(replies) - 1)], add_special_tokens=False)

    policy = ScriptedPolicy(script)
    monkeypatch.setattr(http_utils, "_http_client", httpx.AsyncClient(transport=httpx.MockTransport(policy)))
    async with pool_of(environment, folder) as pool:

        @asynccontextmanager
        async def service(settings: Any) -> AsyncIterator[Any]:
            yield pool

        monkeypatch.setattr(loop, "service_of", service)
        yield Stage(args, policy, environment, pool, tokenizer)
        await loop.agents_of(args).suspended.close()
        assert (await pool.status()).leases == 0
    SingletonMeta.clear(GenerateState)


@contextmanager
def staged_behind(
    environment: type[Environment],
    replies: Sequence[str],
    folder: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stage]:
    """`staged` on slime's background loop, for rollout functions, which are synchronous."""
    stage = staged(environment, replies, folder, model, monkeypatch)
    on = run(stage.__aenter__())
    try:
        yield on
    finally:
        run(stage.__aexit__(None, None, None))
