"""Shell tasks: the oracle is rewarded, nothing and attacks are not, and a failure of the grader never is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes.ledger import ProcessLedger
from agentrl.processes.owned import Processes
from agentrl.tasks.harbor import File, HarborTask
from agentrl.tasks.shell import snapshot
from agentrl.tasks.shell.environment import MOST_OUTPUT, ShellEnvironment
from agentrl.tasks.shell.families import EASY, FAMILIES
from agentrl.tasks.shell.generate import generate
from tests.helpers.plain_sandboxes import PlainProvider
from tests.helpers.shell_agents import ATTACKS, judged, oracle

Make = Callable[..., ShellEnvironment]
WORD = "shell/write_word/train/1"


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
        settings=task.settings.model_copy(update={"verifier": type(task.settings.agent)(timeout_sec=2)}),
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


async def test_a_reward_between(make: Make) -> None:
    verdict = await judged(make(_with_test('echo 0.25 > "$REWARD_FILE"')), WORD, "")
    assert (verdict.status, verdict.score) == ("ok", 0.25)


async def test_steps(make: Make) -> None:
    environment = make()
    with pytest.raises(InfraError, match="reset it first"):
        await environment.step({"command": "true"})
    seen = await environment.reset(Task(WORD), 0)
    assert seen.text == generate(WORD).instruction
    await environment.step({"write_file": {"path": "sub/a.txt", "content": "höher\n"}})
    result = await environment.step({"command": "cat sub/a.txt; echo wrong >&2; exit 3"})
    assert result.observation.text == "höher\nwrong\n"
    assert (result.observation.data["exit_code"], result.observation.data["timed_out"]) == (3, False)
    result = await environment.step({"command": "yes", "timeout_s": 0.3})
    assert (result.observation.data["exit_code"], result.observation.data["timed_out"]) == (None, True)
    assert len(result.observation.text.encode()) <= MOST_OUTPUT
    assert result.observation.data["cut_bytes"]
    await environment.close()
    await environment.close()


@pytest.mark.parametrize(
    "action",
    [
        *({}, {"command": ""}, {"command": 3}, {"command": "true", "timeout_s": 0}, {"command": "true", "more": 1}),
        *({"write_file": {"path": path, "content": ""}} for path in ("/etc/passwd", "../x")),
    ],
)
async def test_an_action_that_makes_no_sense(action: dict[str, object], make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    with pytest.raises(InvalidError):
        await environment.step(action)  # pyright: ignore[reportArgumentType]
    assert (await environment.step({"command": "echo on"})).observation.text == "on\n"
    await environment.close()


async def test_a_reset_starts_anew(make: Make, provider: PlainProvider) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    await environment.step({"command": oracle(WORD)})
    await environment.reset(Task(WORD), 0)
    assert [sandbox.stopped for sandbox in provider.started] == [True, False]
    assert (await environment.evaluate()).score == 0.0
    await environment.close()


async def test_too_many_names(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MOST_NAMES", 50)
    verdict = await judged(make(), WORD, f"{oracle(WORD)}\ntouch {{1..60}}")
    assert (verdict.status, verdict.score) == ("task_failed", 0.0)
    assert "more than 50 names" in verdict.detail


def test_the_tasks() -> None:
    ids = [task.id for task in ShellEnvironment.tasks()]
    assert len(ids) == len(set(ids))
    families = {each.split("/")[1] for each in ids}
    assert len(families - set(EASY)) >= 12
    assert all(task.weight.memory_mib >= 64 and task.weight.cpu > 0 for task in ShellEnvironment.tasks())
