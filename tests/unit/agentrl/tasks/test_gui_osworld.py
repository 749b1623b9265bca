"""OSWorld's layout against stand-in machines: tasks, set-up, actions, getters, metrics, providers, and what goes wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task, Weight
from agentrl.exceptions import InfraError
from agentrl.processes import Processes, ProcessLedger, end_leftovers
from agentrl.tasks.gui.osworld.environment import OsWorldEnvironment
from agentrl.tasks.gui.osworld.providers import DockerVm, Machine
from agentrl.tasks.gui.osworld.settings import VmSettings
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, staged
from tests.helpers.fake_vm import FakeVms
from tests.helpers.gui_agents import gui_environment, use

pytestmark = pytest.mark.slow
URL = "https://example.org/files/start.txt"
WRITTEN = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "cat done.txt", "shell": True},
    "expected": {"type": "rule", "rules": {"expected": "yes"}},
}
CLICK = (
    '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [9, 9]}}\n</tool_call>'
)
Write = Callable[..., Task]


@pytest.fixture
def vms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeVms:
    found = FakeVms(tmp_path / "vms")
    monkeypatch.setenv("GUI_PROVIDER_NAME", "command")
    monkeypatch.setenv("GUI_VM_COMMAND", str(found.program))
    monkeypatch.setenv("GUI_TEST_CONFIG_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("GUI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GUI_VM_BOOT_SECONDS", "5")
    monkeypatch.setattr(OsWorldEnvironment, "swept", set())
    (tmp_path / "cache").mkdir()
    return found


@pytest.fixture
def task(tmp_path: Path) -> Write:
    """Return a function that writes a task's file and returns the task."""

    def write(name: str = "one", domain: str = "files", **fields: Any) -> Task:
        path = tmp_path / "examples" / domain / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"id": name, "instruction": "Write yes.", "config": [], "evaluator": WRITTEN, **fields}
        path.write_text(json.dumps(whole))
        return Task(f"osworld/{domain}/{name}", {"path": str(path)})

    return write


@pytest.fixture
async def environment(vms: FakeVms, tmp_path: Path) -> AsyncIterator[OsWorldEnvironment]:
    async with gui_environment(tmp_path, OsWorldEnvironment) as made:
        yield made
    assert vms.running() == []


async def test_an_episode_from_set_up_to_verdict(
    environment: OsWorldEnvironment, vms: FakeVms, task: Write, tmp_path: Path
) -> None:
    """Files and commands of the set-up reach the machine; actions reach it as data; every kind of getter is judged."""
    (tmp_path / "cache" / hashlib.sha256(URL.encode()).hexdigest()).write_bytes(b"a,b\n1,2\n")
    steps = [
        {"type": "download", "parameters": {"files": [{"url": URL, "path": "/home/start.csv"}]}},
        {"type": "launch", "parameters": {"command": ["editor"]}},
        {"type": "execute", "parameters": {"command": ["sh", "-c", "printf yes > done.txt"]}},
    ]
    evaluator = {
        "func": ["exact_match", "compare_csv", "check_accessibility_tree", "check_include_exclude", "is_in_list"],
        "result": [
            WRITTEN["result"],
            {"type": "vm_file", "path": "/home/start.csv"},
            {"type": "accessibility_tree"},
            {"type": "vm_terminal_output"},
            {"type": "list_directory", "path": "."},
        ],
        "expected": [
            WRITTEN["expected"],
            {"type": "cloud_file", "path": URL},
            {"type": "rule", "rules": [{"xpath": "//button[contains(@name, 'Open')]", "text": "Open"}]},
            {"type": "rule", "rules": {"include": ["user@vm"], "exclude": ["error"]}},
            {"type": "rule", "rules": {"expected": "done.txt"}},
        ],
    }
    seen = await environment.reset(task(config=steps, evaluator=evaluator), 0)
    assert seen.text == "Task: Write yes."
    assert len(seen.images) == 1
    text = "it's \"here\"\n'); import os #"
    for action in (
        use("left_click", coordinate=[500, 500]),
        use("triple_click"),
        use("left_click_drag", start_coordinate=[0, 0], coordinate=[999, 999]),
        use("scroll", pixels=-120, coordinate=[10, 10]),
        use("hscroll", pixels=10),
        use("key", keys=["Control", "a"]),
        use("type", text=text),
        use("type", text="é"),
    ):
        await environment.step(action)
    orders = vms.orders()
    assert [each["what"] for each in orders] == ["click", "click", "drag", "scroll", "hscroll", "keys", "type", "paste"]
    assert (orders[0]["point"], orders[1]["times"], orders[3]["notches"], orders[4]["notches"]) == ([32, 24], 3, -2, 1)
    assert (orders[2]["start"], orders[2]["point"]) == ([0, 0], [63, 47])
    assert orders[5]["keys"] == ["ctrl", "a"]
    assert orders[6]["text"] == text
    assert (await environment.step(use("terminate", status="success"))).done
    verdict = await environment.evaluate()
    assert (verdict.status, verdict.score, verdict.passed, verdict.total) == ("ok", 1.0, 5, 5), verdict.detail


async def test_every_episode_begins_on_a_reverted_machine(
    environment: OsWorldEnvironment, vms: FakeVms, task: Write
) -> None:
    made = task(config=[{"type": "execute", "parameters": {"command": ["sh", "-c", "printf yes > done.txt"]}}])
    await environment.reset(made, 0)
    assert (await environment.evaluate()).score == 1.0
    await environment.reset(task(name="two"), 0)
    assert (await environment.evaluate()).score == 0.0, "the file of the last episode is gone"
    assert len(vms.running()) == 1


async def test_the_infeasible_and_the_one_who_gives_up(environment: OsWorldEnvironment, task: Write) -> None:
    for name, evaluator, status, score in (
        ("one", {"func": "infeasible"}, "failure", 1.0),
        ("two", {"func": "infeasible"}, "success", 0.0),
        ("three", WRITTEN, "failure", 0.0),
    ):
        await environment.reset(task(name, evaluator=evaluator), 0)
        await environment.step(use("terminate", status=status))
        assert (await environment.evaluate()).score == score


async def test_postconfig_runs_before_the_judge_and_either_of_two_may_be_enough(
    environment: OsWorldEnvironment, task: Write
) -> None:
    save = {"type": "command", "parameters": {"command": "printf yes > done.txt", "shell": True}}
    both = {
        "func": ["exact_match", "exact_match"],
        "result": [WRITTEN["result"], WRITTEN["result"]],
        "expected": [WRITTEN["expected"], {"type": "rule", "rules": {"expected": "no"}}],
        "postconfig": [save],
    }
    for conj, score in (("and", 0.0), ("or", 1.0)):
        await environment.reset(task(conj, evaluator={**both, "conj": conj}), 0)
        assert (await environment.evaluate()).score == score


@pytest.mark.parametrize(
    ("wrong", "steps", "why"),
    [
        ({"broken": ["/setup/launch"]}, [{"type": "launch", "parameters": {"command": ["x"]}}], "step 1, launch"),
        (
            {},
            [{"type": "execute", "parameters": {"command": ["sh", "-c", "exit 3"], "until": {"returncode": 0}}}],
            "step 1, execute: the command did not reach its until in 0 s: status 3",
        ),
        (
            {},
            [{"type": "download", "parameters": {"files": [{"url": URL, "path": "/x"}]}}],
            "put it into GUI_CACHE_DIR",
        ),
        ({"blank": True}, [], "the screen is blank"),
        ({"broken": ["/screenshot"]}, [], "failed /screenshot"),
        ({"refuses": ["start"]}, [], "no start today"),
    ],
)
async def test_a_reset_that_failed_is_never_rewarded(
    wrong: dict[str, Any],
    steps: list[Any],
    why: str,
    environment: OsWorldEnvironment,
    vms: FakeVms,
    task: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.tasks.gui.osworld.vm.BETWEEN_SECONDS", 0.0)
    monkeypatch.setattr("agentrl.tasks.gui.osworld.environment.MAX_REPEATED_SECONDS", 0.0)
    vms.settings(**wrong)
    with pytest.raises(InfraError, match=why):
        await environment.reset(task(config=steps, evaluator={"func": "infeasible"}), 0)
    vms.settings()
    with pytest.raises(InfraError, match="has not begun"):
        await environment.step(use("terminate", status="failure"))
    with pytest.raises(InfraError, match="has not begun"):
        await environment.evaluate()


async def test_a_machine_that_dies_is_never_judged(
    environment: OsWorldEnvironment, vms: FakeVms, task: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.tasks.gui.osworld.vm.BETWEEN_SECONDS", 0.0)
    await environment.reset(task(), 0)
    vms.kill()
    with pytest.raises(InfraError):
        await environment.step(use("left_click", coordinate=[1, 1]))
    with pytest.raises(InfraError, match="broken"):
        await environment.evaluate()


class Light(OsWorldEnvironment):
    """Machines that fit into the small pool of a test."""

    @classmethod
    def tasks(cls) -> list[Task]:
        return [replace(each, weight=Weight(100, 1.0)) for each in super().tasks()]


@pytest.mark.parametrize("tries", [2, 1])
async def test_the_loop_plays_an_episode_again_whose_machine_died(
    tries: int, vms: FakeVms, task: Write, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the second action: a new lease plays the task, or, without a try left, the sample has no reward."""
    monkeypatch.setenv("GUI_OBSERVATION_TYPE", "a11y_tree")
    monkeypatch.setenv("AGENTRL_TRIES", str(tries))
    monkeypatch.setenv("AGENTRL_MAX_TURNS", "2")
    monkeypatch.setattr("agentrl.tasks.gui.osworld.vm.BETWEEN_SECONDS", 0.0)
    made = task(config=[{"type": "execute", "parameters": {"command": "printf yes > done.txt", "shell": True}}])
    died: list[Path] = []
    async with staged(Light, [CLICK + END], tmp_path, tiny_random_model, monkeypatch) as on:
        script = on.policy.script

        def killing(prompt: list[int]) -> list[int]:
            if len(on.policy.requests) == 2:
                died.extend(vms.running())
                vms.kill()
            return script(prompt)

        on.policy.script = killing
        played = await on.play(on.sample(made.id))
        verdicts = on.kinds().count("verdict")
        if tries == 1:
            assert (played.status, played.reward) == (Sample.Status.ABORTED, None)
            assert verdicts == 0
        else:
            (sample,) = played
            agent = sample.metadata["agent"]
            assert (agent["attempts"], agent["turns"], len(on.policy.requests)) == (2, 2, 4)
            assert (sample.reward, verdicts) == (1.0, 1), "only the episode that was played to its end has a verdict"
            assert sum(sample.loss_mask) == 2 * len(on.tokenizer.encode(CLICK + END)), (
                "nothing of the lost one is trained"
            )
    assert len(died) == 1
    assert vms.running() == []


async def test_a_click_is_sent_once(environment: OsWorldEnvironment, vms: FakeVms, task: Write) -> None:
    await environment.reset(task(), 0)
    vms.settings(broken=["/execute"])
    with pytest.raises(InfraError, match="failed /execute"):
        await environment.step(use("left_click", coordinate=[1, 1]))
    assert vms.calls("/execute") == 1


async def test_machines_of_a_killed_pool_end_with_the_next_one(vms: FakeVms, task: Write, tmp_path: Path) -> None:
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    await OsWorldEnvironment(Processes(ledger)).reset(task(), 0)  # nobody closes it, as if the pool were killed
    await end_leftovers(ledger)
    ledger.close()
    (left,) = vms.running()
    OsWorldEnvironment.swept.clear()
    async with gui_environment(tmp_path, OsWorldEnvironment) as environment:
        await environment.reset(task(), 0)
        assert len(vms.running()) == 1
        assert vms.running() != [left]


async def test_commands_of_the_set_up_run_as_in_osworld(
    vms: FakeVms, task: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A status does not count; ``until`` repeats; size and password stand in for their placeholders, and stay out of logs."""
    monkeypatch.setenv("GUI_CLIENT_PASSWORD", "pa55")
    monkeypatch.setattr("agentrl.tasks.gui.osworld.environment.BETWEEN_SECONDS", 0.0)
    steps = [
        {"type": "command", "parameters": {"command": "echo pa55 is wrong >&2; exit 3", "shell": True}},
        {
            "type": "execute",
            "parameters": {"command": "echo . >> n; wc -l < n", "shell": True, "until": {"stdout": "3"}},
        },
        {
            "type": "execute",
            "parameters": {"command": "printf {CLIENT_PASSWORD}:{SCREEN_WIDTH} > done.txt", "shell": True},
        },
    ]
    expected = {"type": "rule", "rules": {"expected": "...pa55:64"}}
    result = {**WRITTEN["result"], "command": "tr -d '\\n' < n; cat done.txt"}
    async with gui_environment(tmp_path, OsWorldEnvironment) as environment:
        await environment.reset(task(config=steps, evaluator={**WRITTEN, "result": result, "expected": expected}), 0)
        assert (await environment.evaluate()).score == 1.0
    assert "ended with 3: *** is wrong" in caplog.text
    assert "pa55" not in caplog.text
    assert "pa55" not in repr(environment.vm_settings)


async def test_what_is_missing_in_the_machine_is_wrong(
    environment: OsWorldEnvironment, task: Write, tmp_path: Path
) -> None:
    """Also if it is what was expected, and the result is empty; a file of the task that is missing here is not a score."""
    empty, gone = (
        {"type": "vm_file", "path": "/done.txt", "dest": "x"},
        {"type": "vm_file", "path": "/gone", "dest": "y"},
    )
    steps = [{"type": "execute", "parameters": {"command": ["touch", "done.txt"]}}]
    for name, result, expected in (("one", empty, gone), ("two", gone, empty)):
        evaluator = {"func": "compare_text_file", "result": result, "expected": expected}
        await environment.reset(task(name, config=steps, evaluator=evaluator), 0)
        assert (await environment.evaluate()).score == 0.0
    several = {"type": "cloud_file", "path": [URL, f"{URL}.2"], "dest": ["a", "b"], "multi": True, "gives": [0, 1]}
    evaluator = {"func": "compare_csv", "result": empty, "expected": several}
    await environment.reset(task("three", config=steps, evaluator=evaluator), 0)
    with pytest.raises(InfraError, match="put it into GUI_CACHE_DIR"):
        await environment.evaluate()
    for name, text in (("start.txt", "a\n"), ("start.txt.2", "")):
        (tmp_path / "cache" / name).write_text(text)
    assert (await environment.evaluate()).score == 1.0, "one of several files is enough"


async def test_all_metrics_count_where_all_must_hold(environment: OsWorldEnvironment, task: Write) -> None:
    """As in OSWorld: with ``and`` the mean, or 0 if one is 0."""
    half = {"type": "rule", "rules": {"expected": "yes" + "x" * 6}}
    none = {"type": "rule", "rules": {"expected": "zzz"}}
    save = {"type": "command", "parameters": {"command": "printf yes > done.txt", "shell": True}}
    for name, expected, score in (("one", half, 0.75), ("two", none, 0.0)):
        both = {"func": ["exact_match", "fuzzy_match"], "result": [WRITTEN["result"]] * 2, "postconfig": [save]}
        await environment.reset(task(name, evaluator={**both, "expected": [WRITTEN["expected"], expected]}), 0)
        assert (await environment.evaluate()).score == pytest.approx(score)


async def test_docker_starts_a_machine_of_its_own_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words that docker gets: loopback only, a read-only disk, a name and label by which to end it."""
    engine = tmp_path / "docker"
    engine.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\ncase "$1" in port) echo 127.0.0.1:49153;; ps) echo old;; esac\n'
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "vm.qcow2").touch()
    with pytest.raises(InfraError, match="GUI_PATH_TO_VM=None"):
        DockerVm(VmSettings())
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    processes = Processes(ledger)
    provider = DockerVm(VmSettings(disk=str(tmp_path / "vm.qcow2")))
    assert await provider.sweep(processes) == 1
    machine = await provider.start(processes, "init")
    assert machine == Machine(machine.id, "http://127.0.0.1:49153")
    again = await provider.revert(processes, machine, "init")
    await provider.stop(processes, again)
    ps, swept, run, _, removed, _, _, last = (tmp_path / "said").read_text().splitlines()
    assert ps.endswith(f"label=agentrl.vm={processes.pool}")
    assert swept == "rm --force old"
    assert f"--name {machine.id} --label agentrl.vm={processes.pool}" in run
    assert "--publish 127.0.0.1::5000" in run
    assert f"{tmp_path}/vm.qcow2:/System.qcow2:ro" in run
    assert removed == f"rm --force {machine.id}"
    assert last == f"rm --force {again.id}"
    assert await processes.end() == 0
    ledger.close()
