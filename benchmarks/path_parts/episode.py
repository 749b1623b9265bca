"""The way of an episode: from the sample that names a task to the training samples with their rewards.

A terminal task is played over the HTTP protocol of a pool, in a sandbox, with a judge of its steps. Stand-ins take the place
of the two engines. The pool's application answers in this process, so its modules count; what runs inside the sandbox is
another process and does not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from prometheus_client import CollectorRegistry

from agentrl.client import HttpLeases
from agentrl.environment import Registry, Weight
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.tasks.terminal.environment import TerminalEnvironment
from agentrl.web.app import create_app
from benchmarks.path_parts.recorder import REPOSITORY, Entry, Recorder
from lab.testkit import tiny_random
from lab.testkit.agent_rollouts import ScriptedPolicy
from lab.testkit.policy_and_judge import PolicyAndJudge
from lab.testkit.rollout_engine import rollout_args
from slime.args import Arguments
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample

FOLDER = REPOSITORY / "terminal-rl"
END = "<|im_end|>"
TASK = "shell/write_word/train/1"
SESSION = {"name": "shell_exec", "arguments": {"id": "main", "command": "ls"}}
COMMAND = {"name": "bash", "arguments": {"command": "pwd"}}
REPLIES = (
    f"<tool_call>{END}",
    *(f"<tool_call>\n{json.dumps(each)}\n</tool_call>{END}" for each in (SESSION, COMMAND)),
    f"Done.{END}",
)
"""A reply that cannot be read, a call of a persistent shell, one of a plain command, and the end."""
MAX_SECONDS = 60.0


class Service(HttpLeases):
    """The client of the pool, which every episode enters and leaves."""

    async def __aexit__(self, *_: object) -> None:
        """Stay open: the next episode takes the same pool."""


@asynccontextmanager
async def pool_in(folder: Path) -> AsyncIterator[Service]:
    """Yield the client of a pool of terminal tasks, whose application answers in this process."""
    registry = CollectorRegistry()
    ledger = ProcessLedger(folder / "pool.sqlite")
    assert TerminalEnvironment.provider is not None
    await TerminalEnvironment.provider.check()
    pool = Pool(Registry([TerminalEnvironment]), Capacity(1, Weight(4096, 4.0)), ledger, PoolMetrics(registry))
    await pool.start()
    client = Service("http://127.0.0.1", "key", transport=httpx.ASGITransport(create_app(pool, registry, key="key")))
    try:
        yield client
    finally:
        await client.close()
        await pool.stop(MAX_SECONDS)
        ledger.close()


def engine_of(tokenizer: Any) -> ScriptedPolicy:
    """Return a policy engine that gives `REPLIES` by the number of turns before."""
    begun = tokenizer.encode("<|im_start|>assistant", add_special_tokens=False)

    def script(prompt: list[int]) -> list[int]:
        before = sum(prompt[n : n + len(begun)] == begun for n in range(len(prompt))) - 1
        return tokenizer.encode(REPLIES[before % len(REPLIES)], add_special_tokens=False)

    return ScriptedPolicy(script)


async def play(recorder: Recorder, args: Arguments, folder: Path) -> list[list[Sample]]:
    """Play two episodes, record the second, and return the samples of both."""
    import generate  # of the folder

    tokenizer = GenerateState(args).tokenizer
    judge = PolicyAndJudge(tokenizer, [])
    recorder.install()
    async with judge.serving() as url, pool_in(folder) as client:
        http_utils._http_client = httpx.AsyncClient(transport=httpx.MockTransport(engine_of(tokenizer)))
        args = args.changed(prm_sglang_url=url, prm_model_path=args.hf_checkpoint, prm_m=1)
        found: list[list[Sample]] = []
        with mock.patch("agentrl.rollout.generate.HttpLeases", return_value=client):
            for number in range(2):
                prompt: Any = {"task_path": TASK}
                sample = Sample(group_index=number, index=number, prompt=prompt, metadata={})
                parameters = {"temperature": 1.0, "max_new_tokens": 256}
                if number == 1:
                    with recorder.recording():
                        samples = await generate.generate(args, sample, parameters)
                else:
                    samples = await generate.generate(args, sample, parameters)
                found.append(samples if isinstance(samples, list) else [samples])
    return found


def trace_episode(folder: Path) -> list[Entry]:
    """Return the functions that one episode enters, from its sample with a task to its samples for training, after another one."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    recorder = Recorder()
    args = rollout_args(tiny_random.build(folder / "model")).changed(
        run_dir=str(folder / "run"), dynamic_history=True, apply_chat_template_kwargs={}
    )
    args.non_think_mode = False  # type: ignore[attr-defined] - as --custom-config-path sets it
    SingletonMeta.clear(GenerateState)
    try:
        with (
            mock.patch.dict("os.environ", {"AGENTRL_POOL_URL": "http://127.0.0.1"}),
            mock.patch.object(http_utils, "_http_client", None),
        ):
            first, second = asyncio.run(play(recorder, args, folder))
    finally:
        recorder.remove()
        SingletonMeta.clear(GenerateState)
    for samples in (first, second):
        agent = samples[0].metadata["agent"]
        if (agent["ending"], agent["malformed"], agent["judge_skipped"]) != ("done", 1, 0):
            raise RuntimeError(f"the episode did not go as planned: {agent}")
    return recorder.entries
