"""Every name of the folder ``toolcall-rl/``, called as it is documented."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generate_with_retool
import httpx
import pytest
import tool_sandbox
import toolcall_training
import torch
from tool_sandbox import PythonSandbox, ToolRegistry
from toolcall_agent import Endpoint

from agentrl.exceptions import InvalidError
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.toolcall.config import read_config
from agentrl.tasks.toolcall.generate import generate
from groundwork.exceptions import ConfigError
from lab.testkit.trainer import trainer_args
from slime.algorithms.losses.custom import reads_response_rows
from slime.algorithms.losses.reduce import make_reducer
from slime.utils.misc import load_function
from slime.utils.types import Sample
from tests.helpers.plain_sandboxes import PlainProvider

STORE = "toolcall/get_value/train/0"
BUILTIN = {name: {"function": {"name": name}, "binding": {"kind": "builtin"}} for name in ("calculator", "store_get")}
CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "generate": (generate_with_retool.generate, "args, sample, sampling_params, evaluation"),
    "reward_func": (generate_with_retool.reward_func, "args, sample, kwargs"),
    "wrong_shaping": (generate_with_retool.wrong_shaping, "calls, coefficient"),
    "format_tool_descriptions": (toolcall_training.format_tool_descriptions, "tools"),
    "collect_toolcall_trajectory": (
        toolcall_training.collect_toolcall_trajectory,
        "model, task, available_tools, max_turns",
    ),
    "compute_toolcall_loss": (toolcall_training.compute_toolcall_loss, "args, batch, logits, sum_of_sample_mean"),
    "train_toolcall_agent": (toolcall_training.train_toolcall_agent, "model, tools_config_path, flags"),
    "PythonSandbox": (PythonSandbox, "timeout, stateful"),
    "ToolRegistry": (ToolRegistry, "config, allowed_urls"),
    "execute_tool": (ToolRegistry.execute_tool, "self, tool_name, arguments"),
    "get_tool_specs": (ToolRegistry.get_tool_specs, "self"),
    "execute_code": (PythonSandbox.execute_code, "self, code"),
}


@pytest.mark.parametrize("name", CALLS)
def test_names_take_what_is_documented(name: str) -> None:
    function, parameters = CALLS[name]
    assert ", ".join(inspect.signature(function).parameters) == parameters


def test_plugin_paths_lead_to_them() -> None:
    assert load_function("generate_with_retool.generate") is generate_with_retool.generate
    assert load_function("generate_with_retool.reward_func") is generate_with_retool.reward_func
    assert load_function("toolcall_training.compute_toolcall_loss") is toolcall_training.compute_toolcall_loss
    assert tool_sandbox.format_tool_descriptions is toolcall_training.format_tool_descriptions
    for each in (generate_with_retool.generate, generate_with_retool.reward_func):
        assert inspect.iscoroutinefunction(each)


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., Path]:
    def write(*names: str) -> Path:
        path = tmp_path / "tools.json"
        path.write_text(json.dumps({"tools": [BUILTIN[name] for name in names]}))
        return path

    return write


async def test_descriptions_name_each_tool_on_a_line(tools: Callable[..., Path]) -> None:
    async with ToolRegistry(tools("calculator", "store_get")) as registry:
        specs = registry.get_tool_specs()
        lines = toolcall_training.format_tool_descriptions(specs).splitlines()
        assert [json.loads(line)["function"]["name"] for line in lines] == ["calculator", "store_get"]
        assert await registry.execute_tool("calculator", {"expression": "6 * 7"}) == "42"
        assert (await registry.execute_tool("calculator", {"n": 1})).startswith("Error: the arguments of calculator")
        assert (await registry.execute_tool("shell", {})).startswith("Error: there is no tool")


async def test_a_program_runs_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has no walls; the real one is in ``tests/integration/test_toolcall.py``."""
    plain = PlainProvider(tmp_path)
    monkeypatch.setattr(Bubblewrap, "start", lambda self, spec, processes: plain.start(spec, processes))
    async with PythonSandbox(timeout=20) as sandbox:
        assert await sandbox.execute_code("print(6 * 7)") == "42"


@pytest.mark.parametrize("given", ["file", "config", "variable"])
async def test_a_trajectory_is_collected_with_the_available_tools(
    given: str, tools: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tools("store_get")
    available = {"file": path, "config": read_config(path), "variable": None}[given]
    if given == "variable":
        monkeypatch.setenv("TOOLS_CONFIG", str(path))
    draft = generate(STORE)
    assert draft.answer is not None
    call = {"name": "store_get", "arguments": json.dumps(draft.calls[0]["arguments"])}
    replies: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "assistant", "content": f"Answer: {draft.answer.text}"},
    ]
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"message": replies[len(asked) - 1]}]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = Endpoint("http://host", "m", None, client)
        played = await toolcall_training.collect_toolcall_trajectory(model, STORE, available)
        assert (played.verdict.score, [step.tool for step in played.steps]) == (1.0, ["store_get"])
        assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["store_get"]
        with pytest.raises(InvalidError, match="needs calculator"):
            await toolcall_training.collect_toolcall_trajectory(model, "toolcall/chain/train/0", tools("store_get"))


def test_the_loss_is_the_clipped_one_and_tools_have_no_gradient() -> None:
    """One response of three tokens, whose second a tool wrote; the third has moved out of the clip range."""
    args = trainer_args("", rollout_temperature=1.0, eps_clip=0.2, eps_clip_high=0.28, entropy_coef=0.0)
    tokens, mask = torch.tensor([3, 1, 4, 2]), torch.tensor([1.0, 0.0, 1.0])
    logits = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    now = logits.detach()[0, :3].log_softmax(-1)[range(3), tokens[1:]]
    old = now - torch.tensor([0.0, 0.0, 1.0])
    streams = {"log_probs": [old], "rollout_log_probs": [old], "advantages": [torch.ones(3)]}
    lengths = {"unconcat_tokens": [tokens], "total_lengths": [4], "response_lengths": [3]}
    batch: Any = {**lengths, **streams, "loss_masks": [mask], "ref_log_probs": None, "teacher_log_probs": None}
    loss, metrics = toolcall_training.compute_toolcall_loss(args, batch, logits, make_reducer(False, [3], [mask]))
    assert loss.item() == pytest.approx(-(1.0 + 1.28) / 2)
    [gradient] = torch.autograd.grad(loss, logits)
    assert [bool(row.abs().sum() > 1e-6) for row in gradient[0]] == [True, False, False, False]
    assert reads_response_rows(toolcall_training.compute_toolcall_loss)
    assert not any(value.requires_grad for value in metrics.values())


def test_training_is_the_run_of_the_script(
    tools: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[tuple[list[str], dict[str, str]]] = []

    def call(command: list[str], env: dict[str, str]) -> int:
        called.append((command, env))
        return 7

    monkeypatch.setattr(toolcall_training.subprocess, "call", call)
    monkeypatch.chdir(tools("calculator").parent)
    assert toolcall_training.train_toolcall_agent("/m/model", "tools.json", "--num-rollout", "3") == 7
    ((command, environment),) = called
    assert Path(command[1]).name == "run_toolcall_rl.sh"
    assert Path(command[1]).is_file()
    assert command[2:] == ["--num-rollout", "3"]
    assert (environment["HF_CKPT"], environment["TOOLS_CONFIG"]) == ("/m/model", str(tmp_path / "tools.json"))
    (tmp_path / "tools.json").write_text("[]")
    with pytest.raises(ConfigError, match="has no tools"):
        toolcall_training.train_toolcall_agent("/m/model", "tools.json")
    assert len(called) == 1


async def test_rewards_and_shaping() -> None:
    args = trainer_args("")
    sample = Sample(response="so it is \\boxed{42}", label="42")
    assert await generate_with_retool.reward_func(args, sample) == {"score": 1.0, "acc": True, "pred": "42"}
    wrong = Sample(response="so it is \\boxed{41}", label="42")
    both = await generate_with_retool.reward_func(args, [sample, wrong])
    assert [found["score"] for found in both] == [1.0, -1.0]
    assert generate_with_retool.wrong_shaping(0, 1.0) == pytest.approx(-1.1)
    assert generate_with_retool.wrong_shaping(100, 1.0) == -0.6
    assert generate_with_retool.wrong_shaping(5, 0.0) == -1.0
