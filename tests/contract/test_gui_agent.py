"""The program of ``run_gui_agent.sh``: its options, the limits of an episode, and what it tells of failures."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gui_agent
import httpx
import pytest
from gui_agent import Played

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import Ending, JsonObject, Observation, StepResult
from agentrl.rollout.chat_policy import Endpoint, message_of
from agentrl.rollout.settings import Settings
from groundwork.exceptions import ConfigError
from lab.testkit.agent_rollouts import Talk, talk

TOOL: JsonObject = {"type": "function", "function": {"name": "computer_use", "parameters": {"type": "object"}}}
SCREEN: dict[str, Any] = {"system": "You work.", "tools": [TOOL], "actions": "computer_use", "steps": 2}
WORDS = ["--base-url", "http://host/v1", "--model", "m", "--tasks", "2"]
CLICK = {"action": "left_click", "coordinate": [1, 2]}
IDS = ("miniwob/click_test/heldout/0", "miniwob/click_test/heldout/1")


@pytest.fixture(autouse=True)
def _no_variables_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("GUI_", "AGENTRL_")) or name in ("TASK_TYPE", "MAX_GUI_STEPS", "MAX_STEPS"):
            monkeypatch.delenv(name)


class Pictured(Talk):
    """Shows a picture of its number instead of words."""

    async def reset(self, task: Task, seed: int) -> Observation:
        begin = await super().reset(task, seed)
        return Observation(text=begin.text, images=("p0",), data=begin.data)

    async def step(self, action: JsonObject) -> StepResult:
        found = await super().step(action)
        return StepResult(observation=Observation(text="", images=(f"p{self.count}",)), done=found.done)


class Server:
    """An endpoint that gives messages in turn, the last one again and again."""

    def __init__(self, *messages: dict[str, Any], finish: str = "stop", status: int = 200) -> None:
        self.messages, self.finish, self.status = messages, finish, status
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        message = self.messages[min(len(self.asked), len(self.messages)) - 1]
        choice = {"message": {"role": "assistant", **message}, "finish_reason": self.finish}
        return httpx.Response(self.status, json={"choices": [choice]})


def call(arguments: object = CLICK, name: str = "computer_use", id: str = "c") -> dict[str, Any]:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}


def says(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"content": None, "tool_calls": list(calls)} if calls else {"content": "I look around."}


async def played(server: Server, kind: type[Talk], task: Task, settings: Settings, **parameters: Any) -> Played:
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as client:
        processes: Any = None
        endpoint = Endpoint("http://host", "m", None, client)
        return await gui_agent.play(endpoint, settings, parameters, kind(processes), task)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the program with an environment and a server in place of browsers and a model."""
    real = httpx.AsyncClient

    def run(kind: type[Talk], server: Server, *words: str) -> int:
        monkeypatch.setattr(gui_agent, "load_environment", lambda name: kind)
        transport = httpx.MockTransport(server)
        monkeypatch.setattr(gui_agent.httpx, "AsyncClient", lambda **given: real(transport=transport, **given))
        return gui_agent.main([*WORDS, *words])

    monkeypatch.setenv("GUI_FAMILIES", "click_test")
    return run


def screens(**more: Any) -> type[Talk]:
    return talk(*(Task(each, {**SCREEN, **more}) for each in IDS))


def test_a_dry_run_tells_tasks_and_limits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUI_FAMILIES", "click_test")
    more = ["--max-steps", "4", "--pictures", "2", "--max-tokens", "99", "--temperature", "1", "--parallel", "1"]
    assert gui_agent.main([*WORDS, *more, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "2 of miniwob" in shown
    assert "4 replies, 3 format errors, 2 pictures, 99 tokens of a reply" in shown


@pytest.mark.parametrize("name", ["MAX_GUI_STEPS", "GUI_MAX_STEPS", "MAX_STEPS", "AGENTRL_MAX_TURNS"])
def test_variables_set_the_limits_of_training(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gui_agent.main(["--dry-run"]) == 0
    assert "30 replies, 3 format errors, 3 pictures, 1024 tokens" in capsys.readouterr().out
    for each, text in ((name, "7"), ("AGENTRL_MAX_MALFORMED", "2"), ("GUI_MAX_IMAGE_HISTORY_LENGTH", "4")):
        monkeypatch.setenv(each, text)
    assert gui_agent.main(["--dry-run"]) == 0
    assert "7 replies, 2 format errors, 4 pictures" in capsys.readouterr().out
    assert gui_agent.main(["--dry-run", "--max-steps", "8"]) == 0
    assert "8 replies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variables", "words", "why"),
    [
        ({"MAX_GUI_STEPS": "abc"}, [], "MAX_GUI_STEPS='abc' is not a whole number"),
        ({"AGENTRL_MAX_MALFORMED": "0"}, [], "AGENTRL_MAX_MALFORMED=0 is too small"),
        ({"GUI_OBSERVATION_TYPE": "smell"}, [], "GUI_OBSERVATION_TYPE='smell' is not a choice"),
        ({"GUI_FAMILIES": "fly"}, [], "there is no family fly"),
        ({}, ["--parallel", "0"], "--parallel 0 is too small"),
        ({}, ["--max-steps", "0"], "--max-steps 0 is too small"),
        ({}, ["--max-tokens", "0"], "--max-tokens 0 is too small"),
        ({}, ["--temperature", "-1"], "invalid --temperature -1: must be >= 0"),
        ({}, ["--output", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    variables: dict[str, str],
    words: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert gui_agent.main([*words, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("run_gui_agent.sh: ")
    assert why in said
    assert said.count("\n") == 1


def test_a_key_in_the_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gui_agent.main(["--base-url", "http://me:secret@host/v1", "--dry-run"])
    assert "secret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (says(), "the reply has no call; call computer_use"),
        (says(call(), call(id="d")), "the reply has 2 calls; write exactly one"),
        (says(call({"action": "fly"})), "there is no action 'fly'"),
        (says(call("[1]")), "the arguments of computer_use are not a JSON object"),
        (says(call(name="shell")), "this is not an action"),
    ],
)
async def test_three_format_errors_end_an_episode(reply: dict[str, Any], why: str) -> None:
    """The model is told of each as in training; nothing reaches the screen."""
    server, kind = Server(reply), screens()
    found = await played(server, kind, Task("t", SCREEN), Settings(max_malformed=3))
    assert (found.ending, found.turns, found.format_errors, found.score) == ("malformed", 3, 3, 1.0)
    assert kind.seen == []
    calls = reply.get("tool_calls", [])
    answers = server.asked[1]["messages"][3:]
    assert [(each["role"], each.get("tool_call_id")) for each in answers] == (
        [("tool", each["id"]) for each in calls] or [("user", None)]
    )
    for each in answers:
        error = json.loads(each["content"])["error"]
        assert error["code"] == "malformed_action"
        assert why in error["message"]


async def test_what_the_screen_refuses_is_no_format_error() -> None:
    class Refusing(Talk):
        async def step(self, action: JsonObject) -> StepResult:
            raise InvalidError("there is no element 9", code="no_element")

    server = Server(says(call()))
    found = await played(server, Refusing, Task("t", SCREEN), Settings(max_malformed=1, max_turns=2))
    assert (found.ending, found.turns, found.format_errors) == ("turns", 2, 0)
    told = server.asked[1]["messages"][-1]
    assert (told["role"], told["tool_call_id"]) == ("tool", "c")
    assert json.loads(told["content"])["error"] == {"code": "no_element", "message": "there is no element 9"}


async def test_every_limit_ends_an_episode_which_is_judged() -> None:
    task = Task("t", {**SCREEN, "steps": 40, "score": 0.5})
    click = says(call())
    for settings, finish, ending, turns in (
        (Settings(max_turns=4), "tool_calls", "turns", 4),
        (Settings(episode_seconds=1e-9), "tool_calls", "seconds", 0),
        (Settings(), "length", "reply_tokens", 1),
    ):
        found = await played(Server(click, finish=finish), Talk, task, settings, max_tokens=64)
        assert (found.ending, found.turns, found.score) == (ending, turns, 0.5 if turns else 0.0)
    over = await played(Server(click), Talk, Task("t", SCREEN), Settings(), temperature=0.5)
    assert (over.ending, over.turns, over.score) == ("done", 2, 1.0)


async def test_a_step_that_takes_too_long_fails_the_episode() -> None:
    class Stuck(Talk):
        async def step(self, action: JsonObject) -> StepResult:
            return await asyncio.get_running_loop().create_future()

    found = await played(Server(says(call())), Stuck, Task("t", SCREEN), Settings(step_seconds=0.01))
    assert (found.ending, found.turns, found.score) == ("step_seconds", 1, 0.0)


async def test_the_model_sees_its_newest_pictures_only() -> None:
    server = Server(says(call()))
    task = Task("t", {**SCREEN, "steps": 4})
    await played(server, Pictured, task, Settings(keep_pictures=2, prompt_note="/no_think"), max_tokens=64)

    def urls(messages: Sequence[dict[str, Any]]) -> list[str]:
        parts = [part for each in messages if isinstance(each["content"], list) for part in each["content"]]
        return [part["image_url"]["url"].rpartition(",")[2] for part in parts if part["type"] == "image_url"]

    assert [urls(each["messages"]) for each in server.asked] == [["p0"], ["p0", "p1"], ["p1", "p2"], ["p2", "p3"]]
    last = server.asked[-1]
    assert (last["max_tokens"], last["tools"]) == (64, [TOOL])
    assert [each["role"] for each in last["messages"][:5]] == ["system", "user", "assistant", "tool", "user"]
    first = last["messages"][1]["content"]
    assert first[0] == {"type": "text", "text": "[an older picture is left out]\n"}
    assert first[1]["text"].endswith(" /no_think")


def test_a_reply_is_repeated_with_its_thought_and_its_arguments_as_text() -> None:
    given = {"content": None, "reasoning_content": "hm", "refusal": None, "tool_calls": [call()]}
    assert message_of(given) == {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call()]}
    loose = {"tool_calls": [{**call(), "function": {"name": "computer_use", "arguments": CLICK}}]}
    assert message_of(loose)["tool_calls"] == [call()]
    assert message_of({"content": "hello"}) == {"role": "assistant", "content": "hello"}


def test_the_program_plays_and_writes_what_came_of_it(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, file = Server(says(), says(call())), tmp_path / "found.json"
    assert program(screens(), server, "--output", str(file), "--parallel", "1", "--temperature", "0.5") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2].split() == ["all", "100.0%", "of", "2,", "0", "lost,", "1", "format", "errors"]
    assert f"{IDS[0]}  1  3 turns, done" in shown[3]
    assert {(each["max_tokens"], each["temperature"]) for each in server.asked} == {(1024, 0.5)}
    written = json.loads(file.read_text())
    assert written["domains"]["click_test"] == {"episodes": 2, "lost": 0, "success": 1.0, "format_errors": 1}
    assert [each["ending"] for each in written["episodes"]] == ["done", "done"]


def test_a_lost_episode_is_played_again_and_never_counts(
    program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_TRIES", "2")
    kind = screens()
    kind.broken = 3
    assert program(kind, Server(says(call())), "--parallel", "1") == 0
    shown = capsys.readouterr().out
    assert f"{IDS[0]}  lost  0 turns, lost  the image is missing" in shown
    assert f"{IDS[1]}  1  2 turns, done" in shown
    assert "100.0% of 1, 1 lost" in shown
    kind.broken = 4
    assert program(kind, Server(says(call())), "--parallel", "1") == 1, "nothing was measured"


def test_a_server_that_fails_is_one_line(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(screens(), Server(says(), status=500)) == 2
    said = capsys.readouterr().err
    assert said.startswith("run_gui_agent.sh: http://host/v1/chat/completions answered 500")
    assert said.count("\n") == 1
    assert program(screens(actions="fly"), Server(says(call()))) == 2
    assert "the environment's actions are 'fly'" in capsys.readouterr().err


@pytest.mark.parametrize("beside", [None, InfraError("gone", code="gone"), ConfigError("wrong")])
def test_a_defect_keeps_its_traceback(beside: Exception | None, program: Any) -> None:
    """Also if a failure that is not a defect happens beside it."""

    class Defective(Talk):
        async def step(self, action: JsonObject) -> StepResult:
            if beside is not None and self.task.id == IDS[1]:
                raise beside
            raise KeyError("a defect")

    kind = type("Own", (Defective,), {"offered": list(screens().offered)})
    with pytest.raises(ExceptionGroup) as raised:
        program(kind, Server(says(call())))
    assert raised.group_contains(KeyError, match="a defect")


def test_the_table_counts_solved_episodes_of_each_domain() -> None:
    table = gui_agent.table(
        [
            Played("miniwob/a/heldout/0", 1.0, 1, 0, Ending.DONE, ""),
            Played("miniwob/a/heldout/1", 0.5, 2, 1, Ending.TURNS, ""),
            Played("miniwob/b/heldout/0", None, 0, 0, Ending.LOST, "gone"),
        ]
    )
    assert table["a"] == {"episodes": 2, "lost": 0, "success": 0.5, "format_errors": 1}
    assert table["b"] == {"episodes": 0, "lost": 1, "success": 0.0, "format_errors": 0}
    assert table["all"]["episodes"] == 2
