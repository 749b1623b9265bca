"""OSWorld's layout against stand-in machines: tasks, set-up, actions, getters, metrics, providers, and what goes wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.exceptions import ConfigError, InfraError
from agentrl.processes.ledger import ProcessLedger
from agentrl.processes.owned import Processes, end_leftovers
from agentrl.tasks.gui.osworld.environment import OsWorldEnvironment
from agentrl.tasks.gui.osworld.getters import GETTERS
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.providers import DockerVm, Machine
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.source import ids
from tests.helpers.fake_vm import TREE, FakeVms
from tests.helpers.gui_agents import gui_environment, use

pytestmark = pytest.mark.slow
URL = "https://example.org/files/start.txt"
WRITTEN = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "cat done.txt", "shell": True},
    "expected": {"type": "rule", "rules": {"expected": "yes"}},
}
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
            {"type": "rule", "rules": [{"xpath": ".//button[@name='Open']", "text": "Open"}]},
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
    assert (orders[2]["start"], orders[2]["point"]) == ([0, 0], [64, 48])
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
        ({}, [{"type": "execute", "parameters": {"command": ["sh", "-c", "exit 3"]}}], "step 1, execute"),
        (
            {},
            [{"type": "download", "parameters": {"files": [{"url": URL, "path": "/x"}]}}],
            "put it into GUI_CACHE_DIR",
        ),
        ({}, [{"type": "execute", "parameters": {}}], "lack or spoil 'command'"),
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
    monkeypatch.setattr("agentrl.tasks.gui.osworld.vm.BETWEEN_S", 0.0)
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
    monkeypatch.setattr("agentrl.tasks.gui.osworld.vm.BETWEEN_S", 0.0)
    await environment.reset(task(), 0)
    vms.kill()
    with pytest.raises(InfraError):
        await environment.step(use("left_click", coordinate=[1, 1]))
    with pytest.raises(InfraError, match="broken"):
        await environment.evaluate()


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


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"instruction": ""}, "instruction"),
        ({"config": [{"type": "fly"}]}, "no step 'fly'"),
        ({"evaluator": {"func": "guess", "result": {"type": "rule"}}}, "no metric 'guess'"),
        ({"evaluator": {"func": "exact_match", "result": {"type": "moon"}}}, "no getter 'moon'"),
        ({"evaluator": {"func": "exact_match"}}, "no result"),
        ({"evaluator": {"func": ["exact_match", "infeasible"], "result": [{"type": "rule"}]}}, "2 func and 1"),
    ],
)
def test_a_task_that_cannot_run_is_refused_at_the_start(
    fields: dict[str, Any], why: str, vms: FakeVms, task: Write
) -> None:
    task(name=f"bad-{why[:4].strip()}", **fields)
    with pytest.raises(ConfigError, match=why):
        OsWorldEnvironment.tasks()


def test_splits_are_apart(vms: FakeVms, task: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        task(name=name)
    for variable, names in (("GUI_TRAIN_META_PATH", ["a"]), ("GUI_EVAL_META_PATH", ["b"])):
        (tmp_path / variable).write_text(json.dumps({"files": names}))
        monkeypatch.setenv(variable, str(tmp_path / variable))
    assert ids(VmSettings.from_env(), "train") == ["osworld/files/a"]
    assert ids(VmSettings.from_env(), "heldout") == ["osworld/files/b"]
    (tmp_path / "GUI_EVAL_META_PATH").write_text(json.dumps({"files": ["a", "b"]}))
    with pytest.raises(ConfigError, match="1 tasks are in GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH"):
        ids(VmSettings.from_env(), "train")
    (tmp_path / "GUI_EVAL_META_PATH").write_text(json.dumps({"files": ["c"]}))
    with pytest.raises(ConfigError, match="names osworld/files/c"):
        ids(VmSettings.from_env(), "heldout")


RIGHT: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("exact_match", " yes\n", {"expected": "yes"}, {}),
    ("literal_match", {"a": 1}, {"expected": {"a": 1}}, {}),
    ("match_in_list", b"two\n", {"expected": ["one", "two"]}, {}),
    ("is_in_list", ["a", "b"], {"expected": "b"}, {}),
    ("check_include_exclude", "all good", {"include": ["good"], "exclude": ["bad"]}, {}),
    ("check_regex", "version 12", {"pattern": r"version \d+"}, {}),
    ("fuzzy_match", "same", {"expected": "same"}, {}),
    ("compare_text_file", b"A\n\nb", b"a\nB\n", {"ignore_case": True, "ignore_blanks": True}),
    ("file_contains", b"one two", {"expected": ["one", "two"]}, {}),
    ("compare_csv", b"a, b\n1,2\n", b"a,b\r\n1,2\r\n", {}),
    ("check_json", b'{"a": {"b": [1, 2]}}', {"expect": [{"key": ["a", "b", 1], "value": 2}]}, {}),
    ("check_accessibility_tree", TREE, [{"xpath": ".//application[@name='Files']"}], {}),
    ("is_expected_tabs", [{"url": "https://a.org/"}], {"urls": ["https://a.org"]}, {}),
]
WRONG: dict[str, Any] = {"is_in_list": ["a"], "is_expected_tabs": [], "check_include_exclude": "good but bad"}


@pytest.mark.parametrize(("name", "result", "expected", "options"), RIGHT, ids=[each[0] for each in RIGHT])
def test_every_metric(name: str, result: Any, expected: Any, options: dict[str, Any]) -> None:
    assert METRICS[name](result, expected, options) == 1.0
    assert METRICS[name](WRONG.get(name, "something else"), expected, options) < 1.0
    assert METRICS[name](None, expected, options) == 0.0, "what is missing is wrong"


def test_the_metrics_above_are_all() -> None:
    assert {each[0] for each in RIGHT} == set(METRICS)
    assert {"vm_file", "vm_command_line", "accessibility_tree", "open_tabs_info", "rule"} <= set(GETTERS)


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
