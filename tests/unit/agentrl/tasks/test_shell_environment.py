"""Shell tasks: the oracle is rewarded, nothing and attacks are not, and a failure of the grader never is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject
from agentrl.rollout.actions import FORMS, opening
from agentrl.tasks.harbor import File, HarborTask, VerifierStage
from agentrl.tasks.shell import snapshot
from agentrl.tasks.shell.environment import MAX_OUTPUT, STEP_S, ShellEnvironment
from agentrl.tasks.shell.families import EASY, FAMILIES
from agentrl.tasks.shell.generate import generate
from tests.helpers.plain_sandboxes import PlainProvider, PlainSandbox
from tests.helpers.shell_agents import ATTACKS, bash, judged, oracle

pytestmark = pytest.mark.slow

Make = Callable[..., ShellEnvironment]
WORD = "shell/write_word/train/1"


def writing(path: str, content: str) -> JsonObject:
    return {"tool": "write_file", "arguments": {"path": path, "content": content}}


@pytest.fixture
def provider(tmp_path: Path) -> PlainProvider:
    return PlainProvider(tmp_path)


@pytest.fixture
def make(provider: PlainProvider, tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes an environment whose tasks a function may change."""
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")

    def made(change: Callable[[HarborTask], HarborTask] = lambda task: task) -> ShellEnvironment:
        class Plain(ShellEnvironment):
            def load(self, task: Task) -> HarborTask:
                return change(super().load(task))

        Plain.provider = provider
        return Plain(Processes(ledger))

    yield made
    ledger.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_oracle_and_nothing(family: str, make: Make, provider: PlainProvider) -> None:
    for split, number in (("train", 0), ("heldout", 0), ("train", 199)):
        name = f"shell/{family}/{split}/{number}"
        verdict = await judged(make(), name, oracle(name))
        assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail
        verdict = await judged(make(), name, "")
        assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail
    assert all(sandbox.stopped for sandbox in provider.started)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("family", ["write_word", "filter_json", "fix_function"])
async def test_an_attack_has_no_reward(family: str, attack: str, make: Make) -> None:
    verdict = await judged(make(), f"shell/{family}/train/1", ATTACKS[attack])
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail


async def test_the_agents_sandbox_is_gone_before_the_verifiers_starts(make: Make, provider: PlainProvider) -> None:
    gone: list[bool] = []
    start = provider.start

    async def watched(*given: object) -> object:
        gone.append(all(sandbox.stopped for sandbox in provider.started))
        return await start(*given)  # pyright: ignore[reportArgumentType]

    provider.start = watched  # pyright: ignore[reportAttributeAccessIssue]
    name = "shell/fix_function/train/0"
    assert (await judged(make(), name, oracle(name))).score == 1.0
    assert gone == [True, True, True]


CHEAT = """
import os, sys, glob
for root, _, names in os.walk("/" if len(sys.argv) > 9 else os.path.abspath("..")):
    for name in names:
        if name == "expected.json":
            open("trial/output.txt", "w").write("found")
            print("found the answers")
for fd in range(3, 64):
    try:
        os.write(fd, b"1")
    except OSError:
        pass
print("None\\n" * 10)
os._exit(0)
"""


async def test_a_tried_program_finds_no_answers(make: Make) -> None:
    name = "shell/fix_function/train/0"
    verdict = await judged(make(), name, f"cat > windows.py <<'_END_'\n{CHEAT}\n_END_")
    assert verdict.score == 0.0
    assert "trial/output.txt has other lines" in verdict.detail


def _with_test(script: str) -> Callable[[HarborTask], HarborTask]:
    tests = MappingProxyType({"test.sh": File(script.encode())})
    return lambda task: dataclasses.replace(
        task,
        tests=tests,
        settings=task.settings.model_copy(update={"verifier": VerifierStage(timeout_sec=2)}),
    )


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 0", "reward is missing"),
        ('echo 1 > "$REWARD_FILE"; exit 3', "status 3"),
        ('echo 1 > "$REWARD_FILE"; sleep 100', "in time"),
        ('echo nan > "$REWARD_FILE"', "reward is nan"),
        ('echo 2 > "$REWARD_FILE"', "reward is 2"),
        ('echo yes > "$REWARD_FILE"', "reward is yes"),
        ('mkdir "$REWARD_FILE"', "reward is missing"),
    ],
)
async def test_a_broken_verifier_is_no_reward(script: str, says: str, make: Make) -> None:
    verdict = await judged(make(_with_test(script)), WORD, oracle(WORD))
    assert (verdict.status, verdict.score) == ("infra_error", None)
    assert says in verdict.detail


@pytest.mark.parametrize("script", ["test ! -e broken", "test ! -e broken || sleep 100"])
async def test_a_verifier_that_what_the_agent_left_breaks_is_its_own_failure(script: str, make: Make) -> None:
    environment = make(_with_test(f'{script} || exit 3; echo 0 > "$REWARD_FILE"'))
    verdict = await judged(environment, WORD, "touch broken")
    assert (verdict.status, verdict.score) == ("task_failed", 0.0)


async def test_a_verifier_has_a_home_of_its_own_and_leaves_nothing_running(make: Make, provider: PlainProvider) -> None:
    praise = "echo 1 > $REWARD_FILE.new; mv $REWARD_FILE.new $REWARD_FILE"  # whole, whenever it is ended
    leftover = f"(while [ -e $HOME ]; do {praise}; done) > /dev/null 2>&1 &"
    script = f'test ! -e "$HOME/.profile" && [ "$HOME" != "$TASK_HOME" ] && echo 0 > "$REWARD_FILE"; {leftover}'
    read: list[bool] = []
    read_file = PlainSandbox.read_file

    async def watched(sandbox: PlainSandbox, path: str, **more: Any) -> bytes:
        read.append(any(Path(f"/proc/{group}").exists() for group in sandbox.groups[-1:]))
        return await read_file(sandbox, path, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainSandbox, "read_file", watched)
        assert (await judged(make(_with_test(script)), WORD, "touch .profile")).status in ("ok", "task_failed")
    assert read == [False]


async def test_a_provider_without_mounts_has_the_tests_written(make: Make, provider: PlainProvider) -> None:
    provider.mounts = False
    assert (await judged(make(), WORD, oracle(WORD))).score == 1.0
    assert (await judged(make(), WORD, ATTACKS["edited tests"])).score == 0.0


async def test_a_reward_between(make: Make) -> None:
    verdict = await judged(make(_with_test('echo 0.25 > "$REWARD_FILE"')), WORD, "")
    assert (verdict.status, verdict.score) == ("ok", 0.25)


async def test_variables_of_a_task(make: Make) -> None:
    """Those of the environment reach agent and verifier, those of the verifier only this."""
    script = 'test "$SEEN$HIDDEN" = "by all" && echo 1 > "$REWARD_FILE"'

    def with_variables(task: HarborTask) -> HarborTask:
        verifier = VerifierStage(timeout_sec=2, env={"HIDDEN": " all"})
        machine = task.settings.environment.model_copy(update={"env": {"SEEN": "by"}})
        settings = task.settings.model_copy(update={"verifier": verifier, "environment": machine})
        return dataclasses.replace(task, tests={"test.sh": File(script.encode())}, settings=settings)

    environment = make(with_variables)
    await environment.reset(Task(WORD), 0)
    seen = await environment.step({"tool": "bash", "arguments": {"command": 'echo "$SEEN-$HIDDEN"'}})
    assert seen.observation.text.strip() == "by-"
    assert (await environment.evaluate()).score == 1.0


async def test_steps(make: Make) -> None:
    environment = make()
    with pytest.raises(InfraError, match="reset it first"):
        await environment.step(bash("true"))
    seen = await environment.reset(Task(WORD), 0)
    assert seen.text == generate(WORD).instruction
    await environment.step(writing("sub/a.txt", "höher\n"))
    result = await environment.step(bash("cat sub/a.txt; echo wrong >&2; exit 3"))
    assert result.observation.text == "höher\nwrong\n[exit code 3]"
    assert (result.observation.data["exit_code"], result.observation.data["timed_out"]) == (3, False)
    result = await environment.step(bash("yes", timeout_s=0.3))
    assert (result.observation.data["exit_code"], result.observation.data["timed_out"]) == (None, True)
    shown, cut, ended = result.observation.text.rsplit("\n", 2)
    assert len(shown.encode()) <= MAX_OUTPUT
    assert cut == f"[{result.observation.data['cut_bytes']} bytes in the middle of the output are left out]"
    assert ended == "[ended after 0.3 s, with everything that it had started]"
    assert (await environment.step(bash("true"))).observation.text == "[exit code 0]"
    await environment.close()
    await environment.close()


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ({}, "an action is"),
        ({"command": "true"}, "call bash with a command"),
        ({"tool": "bash", "arguments": {}, "more": 1}, "an action is"),
        ({"tool": "ls", "arguments": {}}, "there is no tool 'ls'; call bash"),
        ({"tool": "bash", "arguments": "true"}, "arguments of bash are wrong: it: Input should be"),
        *((bash(command), "arguments of bash are wrong: command: ") for command in ("", 3)),
        (bash("true", timeout_s=0), "arguments of bash are wrong: timeout_s: "),
        (bash("true", more=1), "arguments of bash are wrong: more: "),
        ({"tool": "write_file", "arguments": {"path": "x"}}, "arguments of write_file are wrong: content: "),
        *((writing(path, ""), "is outside of /work and /tmp") for path in ("/etc/passwd", "../x")),
    ],
)
async def test_an_action_that_makes_no_sense(action: Any, says: str, make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    with pytest.raises(InvalidError, match=says):
        await environment.step(action)
    assert (await environment.step(bash("echo on"))).observation.text == "on\n"
    await environment.close()


async def test_a_reply_without_a_call_ends_the_episode(make: Make) -> None:
    environment = make()
    seen = await environment.reset(Task(WORD), 0)
    begin = opening(seen)
    assert begin.form is FORMS["tool_calls"]
    assert [tool["function"]["name"] for tool in begin.tools] == ["bash", "write_file"]
    assert begin.tools[0]["function"]["parameters"]["properties"].keys() == {"command", "timeout_s"}
    assert begin.messages[0]["role"] == "system"
    assert begin.step_seconds == STEP_S
    assert (await environment.step({"text": "Done."})).done
    await environment.close()


async def test_a_reset_starts_anew(make: Make, provider: PlainProvider) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    await environment.step(bash(oracle(WORD)))
    await environment.reset(Task(WORD), 0)
    assert [sandbox.stopped for sandbox in provider.started] == [True, False]
    assert (await environment.evaluate()).score == 0.0
    await environment.close()


async def test_too_many_names(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_NAMES", 50)
    verdict = await judged(make(), WORD, f"{oracle(WORD)}\ntouch {{1..60}}")
    assert (verdict.status, verdict.score) == ("task_failed", 0.0)
    assert "more than 50 names" in verdict.detail


def test_the_tasks() -> None:
    ids = [task.id for task in ShellEnvironment.tasks()]
    assert len(ids) == len(set(ids))
    families = {each.split("/")[1] for each in ids}
    assert len(families - set(EASY)) >= 12
    assert all(task.weight.memory_mib >= 64 and task.weight.cpu > 0 for task in ShellEnvironment.tasks())
