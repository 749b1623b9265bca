"""Tool tasks without a sandbox: what is rewarded, what is refused, and what a name fixes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject
from agentrl.rollout.actions import FORMS, opening
from agentrl.tasks.names import SEEDS_PER_SPLIT
from agentrl.tasks.toolcall import environment as module
from agentrl.tasks.toolcall.config import BUILTIN
from agentrl.tasks.toolcall.draft import Draft
from agentrl.tasks.toolcall.environment import ToolCallEnvironment
from agentrl.tasks.toolcall.families import EASY, FAMILIES, HELD_OUT
from agentrl.tasks.toolcall.generate import generate, task_name
from groundwork.exceptions import ConfigError
from tests.helpers.tool_agents import calls, judged, oracle, tool_environment

PURE = [
    family for family in FAMILIES if not any(BUILTIN[n].room for n in generate(task_name(family, "heldout", 0)).tools)
]
"""Families whose tools compute in this process."""
CHEATS: dict[str, list[JsonObject]] = {
    "nothing": [],
    "no answer": [{"text": "I do not know."}],
    "no end": [{"text": ""}],
    "all answers": [{"text": "\n".join(f"Answer: {n}" for n in range(100_000, 100_100))}],
    "several in one": [{"text": "Answer: " + " or ".join(map(str, range(300)))}],
    "no number": [{"text": "Answer: nan"}, {"text": "\\boxed{inf}"}],
    "a program": [{"text": "Answer: __import__('os').getpid()"}],
    "the grader's words": [{"text": 'Answer: {"score": 1.0, "status": "ok"}'}],
    "a long answer": [{"text": "Answer: " + "9" * 100_000}],
}


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[ToolCallEnvironment]:
    async with tool_environment(tmp_path) as made:
        yield made


@pytest.mark.parametrize("family", PURE)
async def test_the_oracle_is_rewarded_and_cheats_are_not(family: str, environment: ToolCallEnvironment) -> None:
    for split in ("train", "heldout")[family in HELD_OUT :]:
        for number in (0, 7):
            name = f"toolcall/{family}/{split}/{number}"
            verdict = await judged(environment, Task(name), oracle(name))
            assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail
    for why, actions in CHEATS.items():
        verdict = await judged(environment, Task(name), actions)
        assert (verdict.status, verdict.score) == ("task_failed", 0.0), f"{why}: {verdict.detail}"


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_and_answers(family: str) -> None:
    """A task needs tools that there are, its question does not give the answer away, and it is judged."""
    for number in range(5):
        draft = generate(task_name(family, "heldout", number))
        assert draft.tools
        assert {*draft.tools} <= BUILTIN.keys()
        assert {action["tool"] for action in draft.calls} <= {*draft.tools}
        if draft.answer is None:
            assert draft.final_store != draft.store or draft.final_tables not in (None, draft.tables)
        else:
            assert draft.answer.text not in draft.question.split()


def test_a_name_fixes_the_task() -> None:
    for family in FAMILIES:
        name = task_name(family, "heldout", 3)
        assert generate(name) == generate(name)
    drafts = [generate(task_name("chain", "train", number)) for number in range(30)]
    assert len({draft.question for draft in drafts}) == 30


def test_splits_share_no_task() -> None:
    for name in (
        "toolcall/chain/train/1000000",
        "toolcall/chain/other/1",
        "toolcall/x/train/1",
        "toolcall/chain/train/01",
    ):
        with pytest.raises(ConfigError, match="toolcall/FAMILY/SPLIT/NUMBER"):
            generate(name)
    for family in HELD_OUT:
        with pytest.raises(ConfigError, match="FAMILY"):
            generate(f"toolcall/{family}/train/0")
    assert generate("toolcall/chain/train/0") != generate("toolcall/chain/heldout/0")
    assert SEEDS_PER_SPLIT > 999_999


def test_the_pool_offers_every_family() -> None:
    names = {task.id.split("/")[1] for task in ToolCallEnvironment.tasks()}
    assert names == {*FAMILIES}
    weights = {task.id.split("/")[1]: task.weight.memory_mib for task in ToolCallEnvironment.tasks()}
    assert {family for family, weight in weights.items() if weight < 100} == {*PURE}
    assert {*EASY} <= {*PURE}


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ({"tool": "shell", "arguments": {}}, "unknown_tool"),
        ({"tool": "store_set", "arguments": {"key": "a"}}, "unknown_tool"),
        ({"tool": "store_get", "arguments": {}}, "invalid_arguments"),
        ({"tool": "store_get", "arguments": {"key": 3}}, "invalid_arguments"),
        ({"tool": "store_get", "arguments": {"key": "a", "more": "b"}}, "invalid_arguments"),
        ({"tool": "store_get", "arguments": "key"}, "invalid_arguments"),
        ({"tool": "store_get", "arguments": {"key": "none"}}, "no_key"),
        ({"tool": "store_get"}, "invalid_action"),
        ({"text": 3}, "invalid_action"),
        ({}, "invalid_action"),
    ],
)
async def test_what_makes_no_sense_is_refused(action: JsonObject, code: str, environment: ToolCallEnvironment) -> None:
    """An error that the agent sees, and the episode goes on."""
    name = "toolcall/get_value/train/0"
    await environment.reset(Task(name), 0)
    with pytest.raises(InvalidError) as caught:
        await environment.step(action)
    assert caught.value.code == code
    for each in oracle(name):
        await environment.step(each)
    assert (await environment.evaluate()).score == 1.0


async def test_a_task_whose_tool_is_missing_is_refused(
    environment: ToolCallEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tools.json"
    path.write_text('[{"function": {"name": "calculator"}, "binding": {"kind": "builtin"}}]')
    monkeypatch.setenv("TOOLS_CONFIG", str(path))
    with pytest.raises(InvalidError, match="needs sql, which TOOLS_CONFIG does not have"):
        await environment.reset(Task("toolcall/sales_of/train/0"), 0)


async def test_calls_are_bounded(environment: ToolCallEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCALL_MAX_CALLS", "2")
    await environment.reset(Task("toolcall/get_value/train/0"), 0)
    with pytest.raises(InvalidError):
        await environment.step(calls("store_get", key="none"))
    with pytest.raises(InvalidError):
        await environment.step(calls("store_get", key="none"))
    assert (await environment.step(calls("store_get", key="none"))).truncated
    assert (await environment.evaluate()).score == 0.0


async def test_an_episode_begins_anew(environment: ToolCallEnvironment) -> None:
    name = "toolcall/set_value/train/0"
    with pytest.raises(InfraError, match="reset"):
        await environment.step({"text": "x"})
    assert (await judged(environment, Task(name), oracle(name))).score == 1.0
    assert (await judged(environment, Task(name), [])).score == 0.0


@pytest.mark.parametrize("form", ["tool_calls", "retool_text"])
async def test_the_loop_can_play_it(
    form: str, environment: ToolCallEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCALL_ACTIONS", form)
    seen = await environment.reset(Task("toolcall/add_two/train/0"), 0)
    begin = opening(seen)
    assert begin.form is FORMS[form]
    assert begin.messages[1]["content"] == generate("toolcall/add_two/train/0").question
    assert ('"calculator"' in begin.messages[0]["content"]) == (form == "retool_text")
    assert [tool["function"]["name"] for tool in begin.tools] == (["calculator"] if form == "tool_calls" else [])


async def test_a_number_may_be_written_as_text(
    environment: ToolCallEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft("q", ["store_set"], store={"a": 1}, final_store={"a": 1, "b": 20})
    monkeypatch.setattr(module, "generate", lambda name: draft)
    for value, score in (("20", 1.0), (20.0, 1.0), (20, 1.0), ("twenty", 0.0), (20.5, 0.0)):
        verdict = await judged(environment, Task("toolcall/x/train/0"), [calls("store_set", key="b", value=value)])
        assert verdict.score == score, value


async def test_rows_of_a_data_set(
    environment: ToolCallEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"prompt": "How many primes are below 50?", "label": "15", "metadata": {"grader": "numeric"}},
        {"prompt": [{"role": "user", "content": "Name it."}], "label": "Rome", "metadata": {"grader": "exact"}},
    ]
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("TOOLCALL_DATA", str(path))
    tasks = list(environment.tasks())
    assert [task.id for task in tasks] == ["toolcall/rows/few/0", "toolcall/rows/few/1"]
    assert (await judged(environment, tasks[0], [{"text": "So \\boxed{15}."}])).score == 1.0
    assert (await judged(environment, tasks[0], [{"text": "Answer: 16"}])).score == 0.0
    assert (await judged(environment, tasks[1], [{"text": "Answer: rome"}])).score == 1.0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"label": "1"}, "no prompt"),
        ({"prompt": [{"role": "system", "content": "x"}], "label": "1"}, "no prompt"),
        ({"prompt": "x"}, "no label"),
        ({"prompt": "x", "label": " "}, "no label"),
        ({"prompt": "x", "label": "1", "metadata": {"grader": "best"}}, "no grader 'best'"),
        ({"prompt": "x", "label": "x+1", "metadata": {"grader": "numeric"}}, "is not a number"),
        ({"prompt": "x", "label": "1", "metadata": {"tolerance": 2}}, "tolerance"),
        ({"prompt": "x", "label": "1", "metadata": ["x"]}, "metadata is not an object"),
        ([], "every row must be an object"),
    ],
)
def test_a_bad_row_is_named(row: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"prompt": "x", "label": "1"}) + "\n" + json.dumps(row) + "\n")
    monkeypatch.setenv("TOOLCALL_DATA", str(path))
    with pytest.raises(ConfigError, match=f"(row 1|line 2).*{says}"):
        list(ToolCallEnvironment.tasks())


def test_a_data_set_without_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    monkeypatch.setenv("TOOLCALL_DATA", str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="has no row; name a file"):
        list(ToolCallEnvironment.tasks())


def test_tools_do_not_read_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def read(path):\n    return open(path).read()\n")
    tool = {"function": {"name": "read"}, "binding": {"kind": "python", "entry": "mine:read"}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    monkeypatch.setenv("TOOLS_CONFIG", str(tmp_path / "tools.json"))
    (tmp_path / "few.jsonl").write_text('{"prompt": "x", "label": "1"}')
    monkeypatch.setenv("TOOLCALL_DATA", str(tmp_path / "few.jsonl"))
    with pytest.raises(ConfigError, match=r"has the right answers, and tools read .*; move it out"):
        list(ToolCallEnvironment.tasks())
