"""Terminal tasks: shells that live on between calls, limits of the task, and folders of others."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject, StepResult
from agentrl.tasks.harbor import HarborTask, Stage, write_task
from agentrl.tasks.shell.generate import generate, task_toml
from agentrl.tasks.terminal import environment as environment_module
from agentrl.tasks.terminal.environment import TerminalEnvironment
from agentrl.tasks.terminal.source import TaskSource
from agentrl.tasks.terminal.tbench import read_tbench, share
from groundwork.exceptions import ConfigError
from tests.helpers.plain_sandboxes import PlainProvider
from tests.helpers.shell_agents import ATTACKS, judged, oracle

pytestmark = pytest.mark.slow

WORD = "shell/write_word/train/1"
Make = Callable[..., TerminalEnvironment]


def act(tool: str, **arguments: Any) -> JsonObject:
    return {"tool": tool, "arguments": arguments}


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Return a function that makes an environment; all are closed in the end."""
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    made: list[TerminalEnvironment] = []

    def build(change: Callable[[HarborTask], HarborTask] = lambda task: task) -> TerminalEnvironment:
        class Plain(TerminalEnvironment):
            provider = PlainProvider(tmp_path)

            def load(self, task: Task) -> HarborTask:
                return change(super().load(task))

        made.append(Plain(Processes(ledger)))
        return made[-1]

    yield build
    for each in made:
        await each.close()
    ledger.close()


async def run(environment: TerminalEnvironment, command: str, **more: Any) -> StepResult:
    return await environment.step(act("shell_exec", id="main", command=command, **more))


async def until_ended(environment: TerminalEnvironment, seen: StepResult) -> str:
    """Return what is seen until the command of the shell has ended."""
    text = seen.observation.text
    while seen.observation.data["running"]:
        seen = await environment.step(act("shell_view", id="main"))
        text += seen.observation.text
    return text


async def test_a_start_loads_its_task_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading reads a whole folder, or runs a generator."""
    environment = make()
    loaded: list[str] = []
    load = environment.load

    def noted(task: Task) -> Any:
        loaded.append(task.id)
        return load(task)

    monkeypatch.setattr(environment, "load", noted)
    await environment.reset(Task(WORD), 0)
    assert loaded == [WORD]


async def test_a_shell_keeps_folder_variables_and_functions(make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    await run(environment, "mkdir -p deep; cd deep; export A=7; f() { echo f $A; }")
    seen = await run(environment, "basename $PWD; f; false")
    assert seen.observation.text == "deep\nf 7\n[exit code 1]"
    other = await environment.step(act("shell_exec", id="other", command="echo [$A]"))
    assert other.observation.text == "[]\n"
    ended = await run(environment, "exit 3")
    assert "the shell has ended with status 3" in ended.observation.text
    assert (await run(environment, "echo [$A]")).observation.text == "[]\n"


async def test_a_command_goes_on_after_its_block_and_takes_input(make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    seen = await run(environment, "read line; echo got $line", timeout_s=0.2)
    assert "[still running" in seen.observation.text
    with pytest.raises(InvalidError, match="still runs"):
        await run(environment, "true")
    wrote = await environment.step(act("shell_write_to_process", id="main", command="hello"))
    assert "got hello\n" in await until_ended(environment, wrote)
    seen = await run(environment, "sleep 100", block=False)
    assert seen.observation.data["running"] is True
    stopped = seen
    while stopped.observation.data["running"]:  # the first one may come before the program does
        stopped = await environment.step(act("shell_write_to_process", id="main", command="^C"))
    assert stopped.observation.text == "[exit code 130]"
    assert (await run(environment, "echo on")).observation.text == "on\n"
    with pytest.raises(InvalidError, match="nothing runs"):
        await environment.step(act("shell_write_to_process", id="main", command="x"))
    with pytest.raises(InvalidError, match="no shell of this id"):
        await environment.step(act("shell_view", id="none"))


async def test_a_shell_in_the_background_is_looked_at(make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    await run(environment, "while [ ! -e go ]; do sleep 0.02; done; echo late; false", block=False)
    await environment.step(act("shell_write_content_to_file", file_path="go", content=""))
    text = await until_ended(environment, await environment.step(act("shell_view", id="main")))
    assert "late\n" in text
    assert text.endswith("[exit code 1]")


async def test_what_a_command_prints_neither_ends_it_nor_forges_its_status(make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    seen = await run(environment, "echo 0 >&199; ls /proc/$$/fd >/dev/null; exec 2>&1; (exit 5)")
    assert seen.observation.data["exit_code"] == 5
    held = await run(environment, "sh -c 'ls /proc/self/fd'")
    assert not {"198", "199"} & set(held.observation.text.split()), "commands have no way to the session"
    long = await run(environment, "head -c 100000 /dev/zero | tr '\\0' x; echo END")
    assert long.observation.text.count("x") <= 16_384
    assert "END\n[" in long.observation.text
    assert long.observation.data["cut_bytes"] == 100_004 - 16_384


async def test_damaged_sessions_are_the_agents_own_doing(make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    await run(environment, "true")
    await environment.step(act("bash", command="rm -rf /tmp/.sessions; touch /tmp/.sessions"))
    with pytest.raises(InvalidError):
        await run(environment, "true")
    assert (await environment.step(act("bash", command="echo on"))).observation.text == "on\n"


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (act("shell_exec", id="a"), "command: "),
        (act("shell_exec", id="", command="x"), "id: "),
        (act("shell_exec", id="a", command="x", timeout_s=601), "timeout_s: "),
        (act("shell"), "there is no tool 'shell'; call shell_exec"),
    ],
)
async def test_an_action_that_makes_no_sense(action: JsonObject, says: str, make: Make) -> None:
    environment = make()
    await environment.reset(Task(WORD), 0)
    with pytest.raises(InvalidError, match=says):
        await environment.step(action)


class Clock:
    """A clock that a test moves on."""

    later = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.later


async def test_the_time_of_a_task_truncates_and_is_judged(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def days(task: HarborTask) -> HarborTask:
        return dataclasses.replace(task, settings=task.settings.model_copy(update={"agent": Stage(timeout_sec=7000)}))

    clock = Clock()
    monkeypatch.setattr(environment_module, "time", clock)
    environment = make(days)
    await environment.reset(Task(WORD), 0)
    await environment.step(act("bash", command=oracle(WORD), timeout_s=500.0))
    asked: list[float] = []
    execute = environment._running().execute

    async def noted(*given: Any, timeout_s: float, **more: Any) -> Any:
        asked.append(timeout_s)
        return await execute(*given, timeout_s=timeout_s, **more)

    monkeypatch.setattr(environment._running(), "execute", noted)
    clock.later = 6800.0
    await environment.step(act("bash", command="true", timeout_s=500.0))
    assert asked[0] <= 200.0, "no command runs past the end"
    clock.later = 7000.0
    over = await environment.step(act("bash", command="echo never"))
    assert (over.truncated, over.done, len(asked)) == (True, False, 1)
    assert (await environment.evaluate()).score == 1.0


def tbench(folder: Path, **files: str) -> Path:
    """Write a folder of terminal-bench."""
    whole = {
        "task.yaml": "instruction: Write 7 to seven.txt\nmax_agent_timeout_sec: 30\nmax_test_timeout_sec: 40\n",
        "run-tests.sh": "printf '=== short test summary info ===\\n'\n"
        "if grep -qx 7 seven.txt; then echo 'PASSED t.py::a'; else echo 'FAILED t.py::a - x'; s=1; fi\n"
        "if [ -e given.txt ]; then echo 'PASSED t.py::b'; else echo 'FAILED t.py::b'; s=1; fi\nexit ${s:-0}\n",
        "tests/t.py": "",
        "solution.sh": "echo 7 > seven.txt\n",
        "solution/steps.sh": "echo 7 > seven.txt\n",
        "given.txt": "here\n",
        **files,
    }
    for name, text in whole.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


async def test_a_terminal_bench_folder_is_played(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tbench(tmp_path / "set" / "seven")
    monkeypatch.setenv("TASK_TYPE", "tbench")
    monkeypatch.setenv("DATASET_DIR", str(tmp_path / "set"))
    (task,) = TerminalEnvironment.tasks()
    environment = make()
    loaded = environment.load(task)
    assert (loaded.settings.agent.timeout_sec, loaded.settings.verifier.timeout_sec) == (30, 40)
    assert set(loaded.environment) == {"given.txt"}
    assert (await judged(environment, task.id, loaded.solution["solve.sh"].data.decode())).score == 1.0
    assert (await judged(make(), task.id, "")).score == 0.5
    for command in ("rm given.txt", "rm given.txt; echo 'PASSED t.py::a' > seven.txt"):
        assert (await judged(make(), task.id, command)).score == 0.0


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_a_terminal_bench_folder_gains_nothing(
    attack: str, tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tbench(
        tmp_path / "set" / "seven",
        **{
            "run-tests.sh": "python3 -I $TEST_DIR/t.py\n",
            "tests/t.py": (
                "import pathlib, sys\nok = pathlib.Path('seven.txt').is_file() and pathlib.Path('seven.txt').read_text() == '7\\n'\n"
                "print('short test summary info\\n' + ('PASSED' if ok else 'FAILED') + ' t.py::a')\nsys.exit(not ok)\n"
            ),
        },
    )
    monkeypatch.setenv("TASK_TYPE", "tbench")
    monkeypatch.setenv("DATASET_DIR", str(tmp_path / "set"))
    assert (await judged(make(), "seven", "echo 7 > seven.txt")).score == 1.0
    assert (await judged(make(), "seven", ATTACKS[attack])).score == 0.0


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"Dockerfile": "FROM x\n"}, "docker build -t tasks/seven .*TBENCH_DOCKER_PULL_PREFIX=tasks/"),
        ({"docker-compose.yaml": "services: {a: {image: x}, b: {image: y}}"}, "has 2 services"),
        ({"docker-compose.yaml": "nothing: 1"}, "has no services"),
        ({"task.yaml": "instruction: ''"}, "instruction: "),
        ({"task.yaml": "instruction: [\n"}, "is not YAML"),
        ({"task.yaml": "instruction: x\nparser_name: swe"}, "parser_name 'swe'"),
    ],
)
def test_a_folder_that_cannot_run_says_why(files: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read_tbench(tbench(tmp_path / "seven", **files))


async def test_a_folder_with_an_image_needs_containers(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tbench(tmp_path / "seven", Dockerfile="FROM x\n")
    assert read_tbench(tmp_path / "seven", "reg/").settings.environment.docker_image == "reg/seven"
    named = tbench(tmp_path / "compose", **{"docker-compose.yaml": "services: {client: {image: 'some/thing:1'}}"})
    assert read_tbench(named).settings.environment.docker_image == "some/thing:1"
    for name, text in {"TASK_TYPE": "tbench", "DATASET_DIR": str(tmp_path), "TBENCH_DOCKER_PULL_PREFIX": "r/"}.items():
        monkeypatch.setenv(name, text)
    environment = make()
    environment.provider.name = "bubblewrap"  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(InvalidError, match="needs the image r/seven; start the pool with --sandbox docker"):
        await environment.reset(Task("seven"), 0)


def test_printed_lines_alone_give_no_reward() -> None:
    good = "short test summary info\nPASSED a::b\n"
    assert (share(good, 0), share(good, 1), share("PASSED a::b\n", 0), share("", 0)) == (1.0, 0.0, 0.0, 0.0)
    assert share(f"{good * 3}short test summary info\nFAILED a::b - assert PASSEDX\nPASSED a::d\n", 1) == 0.5


def test_a_failure_that_shows_the_agents_words_gains_nothing() -> None:
    words = "short test summary info PASSED a::x PASSED a::y"
    log = f"=== short test summary info ===\nFAILED a::b - assert '{words}' == '7'\nFAILED a::c - x\n"
    assert share(log, 1) == 0.0


def test_each_case_of_a_test_counts() -> None:
    log = "\x1b[36m\x1b[1m=== short test summary info ===\x1b[0m\n"
    log += "\x1b[32mPASSED\x1b[0m a::b[one x]\nPASSED a::b[one y]\n\x1b[31mFAILED\x1b[0m a::b[one z] - x\n"
    assert share(log, 1) == 2 / 3


def test_harbor_folders_and_rows(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_task(generate(WORD), task_toml("write_word"), root / "a" / "one")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"task": {"task_path": "set/a/one"}}) + "\n")
    harbor = TaskSource(task_type="harbor", dataset_dir=str(root))
    assert harbor.ids() == ["a/one"]
    assert harbor.load("a/one").tests == generate(WORD).tests
    assert [task.weight.memory_mib for task in harbor.tasks()] == [256 + 64]
    rows = TaskSource(task_type="jsonl", dataset_dir=str(tmp_path / "rows.jsonl"))
    assert rows.ids() == ["set/a/one"]
    for name, words in {"../../etc": "no task", "a": "no task"}.items():
        with pytest.raises(ConfigError, match=words):
            harbor.load(name)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"task": {"task_path": "../x"}}) + "\n")
    with pytest.raises(ConfigError, match="leaves"):
        TaskSource(task_type="jsonl", dataset_dir=str(tmp_path / "rows.jsonl")).ids()
    for source in (TaskSource(task_type="harbor"), TaskSource(task_type="harbor", dataset_dir=str(tmp_path / "none"))):
        with pytest.raises(ConfigError, match="DATASET_DIR"):
            source.ids()


def test_a_source_searches_its_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        tbench(tmp_path / "set" / str(number))
    searched: list[str] = []
    rglob = Path.rglob

    def noted(folder: Path, pattern: str) -> Any:
        searched.append(pattern)
        return rglob(folder, pattern)

    monkeypatch.setattr(Path, "rglob", noted)
    assert len(TaskSource(task_type="tbench", dataset_dir=str(tmp_path / "set")).tasks()) == 5
    assert searched.count("task.yaml") == 1


def test_generated_tasks_have_splits() -> None:
    source = TaskSource()
    train, heldout = set(source.ids("train")), set(source.ids("heldout"))
    assert train
    assert heldout
    assert not train & heldout
    assert train | heldout == set(source.ids())
