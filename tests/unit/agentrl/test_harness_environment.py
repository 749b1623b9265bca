"""One action runs an agent program: what it gets, how it ends, and what is never rewarded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentrl.client import InProcessLeases
from agentrl.environment import Registry, Task, Weight
from agentrl.exceptions import AgentError, InfraError, InvalidError, NotFoundError
from agentrl.harness.environment import MAX_OUTPUT, PORT, HarnessEnvironment
from agentrl.harness.interface import Assignment
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import StepRequest
from agentrl.rollout.actions import opening
from agentrl.sandbox import gateway_health
from agentrl.sandbox.interface import ExecResult, Mount, Sandbox
from agentrl.sandbox.streams import sweep_doors
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.generate import SETTINGS, generate
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import QUICK, Clock, asked, judging, renewing, resetting, until
from tests.helpers.plain_sandboxes import PlainProvider
from tests.helpers.scripted_chat import refused, said, scripted_chat, streamed
from tests.helpers.scripted_harness import Play, ScriptedHarness, ask, result, shell, socket_of
from tests.helpers.shell_agents import oracle

pytestmark = pytest.mark.slow

WORD = "shell/write_word/train/1"
KEY = "sk-episode-0123456789"
NOWHERE = "http://127.0.0.1:9"
LIMITS = SETTINGS.environment.limits


def running(harness: str = "scripted", **settings: Any) -> dict[str, Any]:
    return {"run_agent": {"harness": harness, "api_key": KEY, "model": "policy", "timeout_s": 60.0, **settings}}


class Made:
    """An environment class of a test, what it runs, and what it started."""

    def __init__(self, provider: PlainProvider, ledger: ProcessLedger, base: type[HarnessEnvironment]) -> None:
        self.provider, self.ledger = provider, ledger
        self.harness = ScriptedHarness()
        self.kind: type[HarnessEnvironment] = type("Tried", (base,), {"harnesses": {"scripted": self.harness}})
        self.kind.provider = provider
        self.kind.gateway_url = NOWHERE

    def playing(self, play: Play) -> Made:
        self.harness.play = play
        return self

    def environment(self) -> HarnessEnvironment:
        return self.kind(Processes(self.ledger))

    @property
    def folder(self) -> Path:
        """Return the private folder of the run."""
        return socket_of(self.provider.specs[0]).parent.parent

    async def solve(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        """Play the oracle."""
        await shell(sandbox, oracle(WORD))
        return result("solved")

    async def asking(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        """Solve the task, and ask the model once."""
        await shell(sandbox, oracle(WORD))
        status = await ask(socket_of(self.provider.specs[0]), assignment.api_key)
        return result(f"status {status}")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    """Return a function that makes an environment class."""
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    yield lambda base=HarnessEnvironment: Made(PlainProvider(tmp_path), ledger, base)
    ledger.close()


@asynccontextmanager
async def ready(made: Made) -> AsyncIterator[HarnessEnvironment]:
    """Reset an environment, and close it."""
    environment = made.environment()
    await environment.reset(Task(WORD), 0)
    try:
        yield environment
    finally:
        await environment.close()


async def test_a_reset_starts_nothing(make: Callable[..., Made]) -> None:
    made = make()
    environment = made.environment()
    seen = await environment.reset(Task(WORD), 0)
    assert seen.text == generate(WORD).instruction
    assert seen.data == {"timeout_s": 600.0, "actions": "run_agent"}
    with pytest.raises(ConfigError, match="actions are 'run_agent'; the agent loop plays"):
        opening(seen)
    assert made.provider.started == []


async def test_a_run_and_its_verdict(make: Callable[..., Made], tmp_path: Path) -> None:
    made = make()
    made.harness.shown = [Mount(tmp_path, "/opt/scripted")]
    async with ready(made.playing(made.solve)) as environment:
        step = await environment.step(running(timeout_s=12))
        assert (step.done, step.truncated, step.observation.text) == (True, False, "solved")
        assert step.observation.data == {"exit_code": 0, "timed_out": False, "cut_bytes": 3, "seconds": 1.5}
        assert not made.folder.exists()
        assert [sandbox.stopped for sandbox in made.provider.started] == [False]
        verdict = await environment.evaluate()
        assert (verdict.status, verdict.score) == ("ok", 1.0)
    inside = f"http://127.0.0.1:{PORT}/v1"
    assert made.harness.assignments == [Assignment(generate(WORD).instruction, inside, KEY, "policy", 12.0)]
    mine, verifiers = made.provider.specs
    assert mine.mounts == [Mount(tmp_path, "/opt/scripted")]
    assert [door.port for door in mine.doors] == [PORT]
    assert (mine.limits.memory_mib, mine.limits.processes) == (LIMITS.memory_mib + 100, LIMITS.processes + 7)
    assert (mine.limits.disk_mib, mine.limits.cpus) == (LIMITS.disk_mib, LIMITS.cpus)
    assert (verifiers.limits, list(verifiers.doors)) == (LIMITS, [])
    assert [mount.inside for mount in verifiers.mounts] == ["/tests"]
    assert all(sandbox.stopped for sandbox in made.provider.started)


async def test_the_task_s_files_are_there(make: Callable[..., Made]) -> None:
    name = "shell/sum_column/train/0"

    async def look(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        return await shell(sandbox, "find . -type f | sort")

    environment = make().playing(look).environment()
    await environment.reset(Task(name), 0)
    step = await environment.step(running())
    assert step.observation.text.split() == sorted(f"./{path}" for path in generate(name).environment)
    await environment.close()


async def test_an_agent_that_does_nothing_has_failed(make: Callable[..., Made]) -> None:
    async with ready(make()) as environment:
        assert not (await environment.step(running())).truncated
        assert (await environment.evaluate()).status == "task_failed"


def late(made: Made, asks: int = 0) -> Made:
    """Let the program solve its task, ask the model, and have no time left."""

    async def play(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        for _ in range(asks):
            await ask(socket_of(made.provider.specs[0]), assignment.api_key)
        await shell(sandbox, oracle(WORD))
        return result(timed_out=True)

    return made.playing(play)


@pytest.mark.parametrize(
    "healths",
    [
        [{"engine_away_seconds": 7.0}, {"engine_away_seconds": 7.0}],
        [{"engine_away_seconds": 7.0}, {"engine_away_seconds": 7.9}],
        [{"engine_away_seconds": 7.0}, {"engine_away_seconds": 0.0}],
        [{"status": "ok"}],
        [[]],
        [refused(404)],
    ],
)
async def test_a_program_that_was_ended_is_truncated_and_judged(healths: list[Any], make: Callable[..., Made]) -> None:
    made = make()
    async with scripted_chat([said("hello")]) as chat, ready(late(made, 2)) as environment:
        made.kind.gateway_url, chat.healths = chat.url, healths
        step = await environment.step(running())
        assert (step.done, step.truncated, step.observation.data["exit_code"]) == (True, True, None)
        assert (await environment.evaluate()).score == 1.0
        assert len(chat.asked) == 2


@pytest.mark.parametrize(
    ("answers", "healths", "problem"),
    [
        ([said("hello")], [{}, None], r"does not say within 0\.2 s"),
        ([said("hello")], [{}, refused(503)], "does not say within"),
        ([said("hello")], [{"engine_away_seconds": 7.0}, {"engine_away_seconds": 9.0}], r"its engine for 2\.0 s"),
        ([refused(503), said("hello")], [{}], "status 503"),
        ([refused(500), refused(503), said("hello")], [{}], "status 500"),
    ],
)
async def test_time_that_the_gateway_took_is_never_the_agent_s(
    answers: list[Any], healths: list[Any], problem: str, make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_health, "ANSWER_S", 0.2 if None in healths else gateway_health.ANSWER_S)
    made = make()
    async with scripted_chat(answers) as chat, ready(late(made, len(answers))) as environment:
        made.kind.gateway_url, chat.healths = chat.url, healths
        with pytest.raises(InfraError, match=problem):
            await environment.step(running())
        with pytest.raises(InfraError):
            await environment.evaluate()


async def test_a_gateway_that_is_gone_when_the_time_is_over_is_never_the_agent_s_doing(
    make: Callable[..., Made],
) -> None:
    async with ready(late(make())) as environment:
        with pytest.raises(InfraError, match="the gateway failed scripted: it does not say"):
            await environment.step(running())


async def test_the_client_sees_the_end_of_the_output_without_the_key(make: Callable[..., Made]) -> None:
    async def talk(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        return result("x" * MAX_OUTPUT + f" wrong key {assignment.api_key} \N{SNOWMAN}\n")

    async with ready(make().playing(talk)) as environment:
        text = (await environment.step(running())).observation.text
    assert len(text) == MAX_OUTPUT
    assert text.endswith("x wrong key [api key] \N{SNOWMAN}\n")


@pytest.mark.parametrize(
    "action",
    [
        *({}, {"command": "true"}, {**running(), "more": 1}, running(more=1), {"run_agent": KEY}),
        *(running(timeout_s=value) for value in (0, 7201, float("nan"), "60")),
        *(running(api_key=value) for value in ("", f"{KEY} {KEY}", f"{KEY}\n", "k\N{SNOWMAN}", KEY * 30)),
        *(running(model=""), running(harness="h" * 101)),
    ],
)
async def test_an_action_that_makes_no_sense(action: dict[str, Any], make: Callable[..., Made]) -> None:
    made = make()
    async with ready(made) as environment:
        with pytest.raises(InvalidError, match=r'send \{"run_agent"') as caught:
            await environment.step(action)
        assert KEY not in str(caught.value)
        assert made.provider.started == []
        assert (await environment.step(running())).done


async def test_only_what_is_offered_runs(make: Callable[..., Made]) -> None:
    made = make()
    async with ready(made) as environment:
        with pytest.raises(InvalidError, match="no harness 'other'; it offers scripted"):
            await environment.step(running("other"))
        assert (await environment.step(running())).done
    assert len(made.harness.assignments) == 1


async def test_one_run_for_a_reset(make: Callable[..., Made]) -> None:
    made = make()
    environment = made.environment()
    with pytest.raises(InfraError, match="reset it first"):
        await environment.step(running())
    await environment.reset(Task(WORD), 0)
    with pytest.raises(InfraError, match="no agent has run"):
        await environment.evaluate()
    await environment.step(running())
    with pytest.raises(InvalidError, match="reset it for another run"):
        await environment.step(running())
    await environment.reset(Task(WORD), 0)
    assert [sandbox.stopped for sandbox in made.provider.started] == [True]
    await environment.step(running())
    await environment.close()
    with pytest.raises(InfraError):
        await environment.evaluate()
    with pytest.raises(InfraError):
        await environment.step(running())
    await environment.close()


async def test_the_program_reaches_the_operator_s_gateway_with_its_key(make: Callable[..., Made]) -> None:
    made = make()
    async with scripted_chat([said("hello")]) as chat, ready(made.playing(made.asking)) as environment:
        made.kind.gateway_url = chat.url
        assert (await environment.step(running())).observation.text == "status 200"
        assert chat.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("answer", "status", "problem"),
    [
        (lambda: refused(503, "engine_unavailable", "service_unavailable_error"), 503, "status 503"),
        (lambda: refused(500, "internal_error", "server_error"), 500, "status 500"),
        (lambda: refused(400, "engine_died"), 400, "engines died"),
        (lambda: streamed('{"choices":[]}', breaks=True), 0, "connection failed"),
        (lambda: streamed('{"choices":[]}'), 200, "before its end"),
        (lambda: streamed('{"error":{"type":"server_error","code":"engine_error"}}'), 200, "engine_error"),
    ],
)
async def test_a_gateway_that_fails_is_never_the_agent_s_doing(
    answer: Callable[[], Any], status: int, problem: str, make: Callable[..., Made]
) -> None:
    seen: list[int] = []
    made = make()

    async def give_up(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        seen.append(await ask(socket_of(made.provider.specs[0]), assignment.api_key))
        return await made.solve(sandbox, assignment)

    async with scripted_chat(lambda number, body: answer()) as chat, ready(made.playing(give_up)) as environment:
        made.kind.gateway_url = chat.url
        with pytest.raises(InfraError, match=problem):
            await environment.step(running())
        with pytest.raises(InfraError):
            await environment.evaluate()
    assert seen == [status]
    assert not made.folder.exists()


async def test_a_gateway_that_is_gone_is_never_the_agent_s_doing(make: Callable[..., Made]) -> None:
    made = make()
    async with ready(made.playing(made.asking)) as environment:
        with pytest.raises(InfraError, match="the gateway failed scripted: its connection failed"):
            await environment.step(running())


async def test_a_failure_that_the_agent_got_over_counts_no_more(make: Callable[..., Made]) -> None:
    made = make()

    async def twice(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        await made.asking(sandbox, assignment)
        return await made.asking(sandbox, assignment)

    async with scripted_chat([refused(503), said("hello")]) as chat, ready(made.playing(twice)) as environment:
        made.kind.gateway_url = chat.url
        assert (await environment.step(running())).observation.text == "status 200"
        assert (await environment.evaluate()).score == 1.0


async def test_a_refusal_of_the_gateway_is_the_agent_s_doing(make: Callable[..., Made]) -> None:
    made = make()
    async with scripted_chat([refused(400)]) as chat, ready(made.playing(made.asking)) as environment:
        made.kind.gateway_url = chat.url
        assert (await environment.step(running())).observation.text == "status 400"
        assert (await environment.evaluate()).score == 1.0


async def test_what_the_sandbox_refuses_is_not_the_client_s_fault(make: Callable[..., Made]) -> None:
    async def refuse(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        raise InvalidError("no folder /nowhere", code="bad_cwd")

    async with ready(make().playing(refuse)) as environment:
        with pytest.raises(InfraError, match="scripted could not be started: no folder /nowhere"):
            await environment.step(running())
        with pytest.raises(InvalidError, match="reset it for another run"):
            await environment.step(running())
        with pytest.raises(InfraError):
            await environment.evaluate()


class Hanging:
    """A program that never ends, and what is left of it."""

    def __init__(self, made: Made) -> None:
        self.made = made.playing(self.play)
        self.began, self.cancelled = asyncio.Event(), False

    async def play(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        raise AssertionError

    def left(self) -> bool:
        """Return whether anything is left."""
        return self.made.folder.exists() or not all(sandbox.stopped for sandbox in self.made.provider.started)


async def test_a_cancelled_run_leaves_nothing_once_it_is_closed(make: Callable[..., Made]) -> None:
    hanging = Hanging(make())
    environment = hanging.made.environment()
    await environment.reset(Task(WORD), 0)
    step = asyncio.create_task(environment.step(running()))
    await hanging.began.wait()
    socket = socket_of(hanging.made.provider.specs[0])
    assert socket.is_socket()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert hanging.cancelled
    with pytest.raises(InfraError, match="no agent has run to its end"):
        await environment.evaluate()
    await environment.close()
    assert not hanging.left()
    await environment.close()


async def test_a_door_is_closed_though_a_sandbox_does_not_stop(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(make())
    environment = hanging.made.environment()
    await environment.reset(Task(WORD), 0)
    step = asyncio.create_task(environment.step(running()))
    await hanging.began.wait()
    (sandbox,) = hanging.made.provider.started
    stop = sandbox.stop

    async def stuck() -> None:
        raise OSError("it does not answer")

    monkeypatch.setattr(sandbox, "stop", stuck)
    step.cancel()
    with pytest.raises(OSError, match="does not answer"):
        await environment.close()
    assert not hanging.made.folder.exists()
    monkeypatch.setattr(sandbox, "stop", stop)
    await environment.close()
    assert not hanging.left()


@asynccontextmanager
async def pooled(made: Made, clock: Clock) -> AsyncIterator[InProcessLeases]:
    """Serve a class of environments in a pool of this process."""
    metrics = PoolMetrics(CollectorRegistry())
    pool = Pool(
        Registry([made.kind]), Capacity(1, Weight(2000, 2.0)), made.ledger, metrics, timeouts=QUICK, clock=clock
    )
    await pool.start()
    try:
        yield InProcessLeases(pool)
    finally:
        assert await pool.stop(60.0) == 0


def stepping(seq: int, **settings: Any) -> StepRequest:
    return StepRequest(request_id="step-0001", seq=seq, action=running(), **settings)


@pytest.mark.parametrize("how", ["released", "expired"])
async def test_a_lease_that_ends_ends_the_run(how: str, make: Callable[..., Made]) -> None:
    hanging, clock = Hanging(make()), Clock()
    async with pooled(hanging.made, clock) as client:
        lease = (await client.lease(asked(WORD))).lease_id
        await client.reset(lease, resetting())
        step = asyncio.create_task(client.step(lease, stepping(2, timeout_s=100.0)))
        await hanging.began.wait()
        if how == "released":
            assert (await client.release(lease)).found
        else:
            clock.now += 99.0
            await client.renew(lease, renewing(1.0))
            clock.now += 2.0
        with pytest.raises(NotFoundError, match="released or expired"):
            await step
        await until(lambda: not hanging.left())
        assert (await client.lease(asked(WORD, wait_s=60.0))).lease_id != lease


async def test_a_run_past_its_deadline_has_no_score(make: Callable[..., Made]) -> None:
    hanging = Hanging(make())
    async with pooled(hanging.made, Clock()) as client:
        lease = (await client.lease(asked(WORD))).lease_id
        await client.reset(lease, resetting())
        with pytest.raises(AgentError, match="longer than"):
            await client.step(lease, stepping(2, timeout_s=0.2))
        verdict = await client.evaluate(lease, judging())
        assert (verdict.status, verdict.score) == ("timeout", None)


@pytest.mark.parametrize("url", ["alive", NOWHERE])
async def test_the_key_is_in_no_log(url: str, make: Callable[..., Made], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = make()
    async with scripted_chat([said("hello")]) as chat, pooled(made.playing(made.asking), Clock()) as client:
        made.kind.gateway_url = chat.url if url == "alive" else url
        lease = (await client.lease(asked(WORD))).lease_id
        await client.reset(lease, resetting())
        outcome = (await asyncio.gather(client.step(lease, stepping(2)), return_exceptions=True))[0]
        assert isinstance(outcome, InfraError) == (url == NOWHERE)
        verdict = await client.evaluate(lease, judging())
    assert verdict.status == ("ok" if url == "alive" else "infra_error")
    assert KEY not in f"{outcome} {verdict.detail}"
    assert KEY not in caplog.text


class MyTasks(ShellEnvironment):
    """Tasks of one's own."""

    loaded: list[str]

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        return [Task("mine", weight=Weight(512, 2.0))]

    def load(self, task: Task) -> HarborTask:
        self.loaded.append(task.id)
        return generate(WORD)


class Mine(HarnessEnvironment, MyTasks):
    """Agent programs on one's own tasks."""

    loaded: list[str] = []


async def test_agents_on_tasks_of_one_s_own(make: Callable[..., Made]) -> None:
    made = make(Mine)
    assert made.kind.tasks() == [Task("mine", weight=Weight(612, 2.0))]
    assert MyTasks.tasks() == [Task("mine", weight=Weight(512, 2.0))]
    environment = made.playing(made.solve).environment()
    await environment.reset(Task("mine"), 0)
    assert Mine.loaded == ["mine"]
    await environment.step(running())
    assert (await environment.evaluate()).score == 1.0
    await environment.close()


def test_a_task_weighs_as_much_as_the_largest_program_needs(make: Callable[..., Made]) -> None:
    made = make()
    made.kind.harnesses = {"scripted": made.harness, "large": ScriptedHarness(memory_mib=900)}
    plain = {task.id: task.weight for task in ShellEnvironment.tasks()}
    for task in made.kind.tasks():
        assert task.weight == plain[task.id] + Weight(900)


async def test_doors_of_a_killed_pool_are_removed_and_no_others(make: Callable[..., Made]) -> None:
    made = make()

    async def look(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        assert made.folder.is_dir()
        assert sweep_doors("another") == 0
        assert made.folder.is_dir()
        assert sweep_doors(made.ledger.pool) == 1
        assert not made.folder.exists()
        made.folder.mkdir()
        return result("seen")

    async with ready(made.playing(look)) as environment:
        await environment.step(running())
