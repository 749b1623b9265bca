"""Software engineering tasks in real sandboxes: the solution of every family is rewarded; nothing, and attacks, are not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.client import HttpLeases, episode
from agentrl.environment import Task
from agentrl.exceptions import AgentError
from agentrl.protocol import JsonObject, StepResult, Verdict
from agentrl.rollout.records import names, read
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.swe.__main__ import problem_of
from agentrl.tasks.swe.environment import SweEnvironment
from agentrl.tasks.swe.generate import EVERY, draft_of, generate
from agentrl.tasks.swe.prompts import SUBMIT
from agentrl.tasks.swe.source import InstanceSource
from lab.testkit.waiting import eventually
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, staged
from tests.helpers.long import long_but
from tests.helpers.sandboxes import processes_that_end, running
from tests.helpers.shell_agents import BROKEN_SNAPSHOTS, DEEP, MEMORY_OF_NOBODY
from tests.helpers.swe_agents import attacks, judged, oracle

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh"),
]

PROVIDER = Bubblewrap()
"""It proves what it promises once."""
NAME = "swe/pages/train/2"


class Real(SweEnvironment):
    provider = PROVIDER


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[SweEnvironment]:
    """Return an environment whose processes end with the test."""
    async with processes_that_end(tmp_path) as processes:
        yield Real(processes)


@pytest.mark.parametrize("why", ["a file of no folder", "deep folders"])
async def test_an_agent_that_breaks_its_sandbox_has_failed(why: str, environment: SweEnvironment) -> None:
    if why in MEMORY_OF_NOBODY and "memory" not in PROVIDER.places.parents:
        pytest.skip("no control group bounds memory here")
    verdict = await judged(environment, NAME, {**MEMORY_OF_NOBODY, **BROKEN_SNAPSHOTS}[why])
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail


@pytest.mark.parametrize("family", long_but(EVERY, *sorted(EVERY)[:2]))
async def test_the_solution_scores_one_and_nothing_scores_zero(family: str, environment: SweEnvironment) -> None:
    instance = generate(f"swe/{family}/heldout/1")
    assert await problem_of(InstanceSource(), instance, PROVIDER, environment.processes) == ""


async def test_an_agent_that_mends_is_rewarded_and_its_patch_is_kept(environment: SweEnvironment) -> None:
    verdict = await judged(
        environment, NAME, f"{oracle(NAME)}; git commit -qam done; echo x > tests/more.py; rm -rf .git"
    )
    assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail
    assert draft_of(NAME).mistake.right in environment.patch
    assert "more.py" not in environment.patch
    nothing = await judged(environment, NAME, "")
    assert (nothing.status, nothing.score, environment.patch) == ("task_failed", 0.0, "")


async def test_names_that_are_no_text_cost_no_reward_and_paths_that_are_too_long_do(
    environment: SweEnvironment,
) -> None:
    odd = "mkdir -p odd; echo x > $'odd/\\xff\\xfe'; ln -s x $'odd/\\xfd'"
    verdict = await judged(environment, NAME, f"{oracle(NAME)}; {odd}")
    assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail
    verdict = await judged(environment, NAME, f"{oracle(NAME)}; {DEEP}")
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail


@pytest.mark.parametrize("attack", long_but(attacks(NAME), *sorted(attacks(NAME))[::3]))
async def test_no_attack_scores(attack: str, environment: SweEnvironment) -> None:
    verdict = await judged(environment, NAME, attacks(NAME)[attack])
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail


async def test_the_sandbox_holds_neither_solution_nor_hidden_tests(environment: SweEnvironment) -> None:
    draft = draft_of(NAME)
    try:
        await environment.reset(Task(NAME), 0)
        await environment.step({"code": attacks(NAME)["history search"]})
        found = await environment._running().read_file("/tmp/found.txt", most_bytes=60_000_000)
        assert draft.mistake.wrong.encode() in found, "the search works"
        assert draft.mistake.right.encode() not in found
        assert b"test_issue" not in found.replace(b"'test_issue*'", b"")
        for test in draft.mistake.breaks:
            assert test.encode() not in found
        log = await environment.step({"code": "git log --all --oneline | wc -l; git count-objects -v | grep -c ."})
        assert log.observation.text.splitlines()[2] == "1"
    finally:
        await environment.close()


def block(command: str) -> str:
    return f"THOUGHT: on we go.\n\n```bash\n{command}\n```{END}"


async def test_the_agent_loop_plays_and_an_episode_whose_sandbox_dies_is_played_again(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []

    class Killed(Real):
        async def step(self, action: JsonObject) -> StepResult:
            if not killed:  # the solution is there, so that a verdict on what is left would be a reward
                await super().step(action)
                os.killpg(self._running().process.pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue]
                killed.append(str(action))
            return await super().step(action)

    script = [block(oracle(NAME)), f"No block.{END}", block(SUBMIT)]
    async with staged(Killed, script, tmp_path, tiny_random_model, monkeypatch) as on:
        (sample,) = await on.play(on.sample(NAME))
        assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
        assert (sample.metadata["agent"]["attempts"], sample.metadata["agent_lost"], len(killed)) == (2, "infra", 1)
        lost, won = (read(tmp_path, name) for name in names(tmp_path))
    assert ([lost.first("verdict"), won.first("verdict")["score"]], lost.events[-1]["kind"]) == ([{}, 1.0], "lost")
    told = json.dumps([event for event in won.events if event["kind"] != "policy"])
    draft = draft_of(NAME)
    assert "REMINDER: 19 commands left." in told
    assert "the reply has 0 code blocks" in told
    for secret in ("test_issue", *draft.mistake.breaks):
        assert secret not in told, "the record holds what only the grader knows"


async def test_a_killed_pool_leaves_nothing_and_the_next_one_rewards(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agentrl.pool",
        "--env",
        "agentrl.tasks.swe.environment.SweEnvironment",
        "--slots",
        "1",
    ]
    command += ["--port", "0", "--ledger", str(tmp_path / "pool.sqlite")]
    mark = f"mark-{secrets.token_hex(8)}"

    @asynccontextmanager
    async def pool(number: int) -> AsyncIterator[tuple[subprocess.Popen[bytes], HttpLeases]]:
        log = tmp_path / f"pool-{number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ))
        try:

            async def address() -> str:
                assert process.poll() is None, log.read_text()
                return (re.findall(r"listening on (http://\S+)", log.read_text()) or [""])[0]

            async with asyncio.timeout(120):
                while not (url := await address()):
                    await asyncio.sleep(0.05)
            async with HttpLeases(url, None, unreachable_s=0.5) as leases:
                yield process, leases
        finally:
            process.terminate()
            process.wait(60)

    async def cut_off(process: subprocess.Popen[bytes], leases: HttpLeases) -> Verdict:
        async with episode(leases, NAME) as lent:
            await lent.reset(timeout_s=60)
            await lent.step({"code": oracle(NAME)}, timeout_s=60)
            await lent.step({"code": f"setsid bash -c 'exec -a {mark} sleep 1000' > /dev/null 2>&1 &"}, timeout_s=60)
            await eventually(lambda: len(running(mark)), 1, 30.0)
            process.kill()
            process.wait(30)
            return await lent.evaluate(timeout_s=60)

    async with pool(1) as started:
        with pytest.raises(AgentError):
            await cut_off(*started)
        await eventually(lambda: len(running(mark)), 0, 30.0)
    async with pool(2) as (_, leases), episode(leases, NAME) as lent:
        await lent.reset(timeout_s=60)
        await lent.step({"code": oracle(NAME)}, timeout_s=60)
        assert (await lent.evaluate(timeout_s=60)).score == 1.0
