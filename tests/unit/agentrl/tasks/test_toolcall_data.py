"""Data sets for tool tasks: converted rows, prompts, oracles' conversations, and an agent of any endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from toolcall_agent import Endpoint, collect_toolcall_trajectory
from toolcall_agent import main as agent

from agentrl.tasks.toolcall.__main__ import main
from agentrl.tasks.toolcall.convert import conversations, questions
from agentrl.tasks.toolcall.generate import generate


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


DAPO = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2", "style": "rule"}}


def test_questions(tmp_path: Path) -> None:
    rows = [DAPO, {"prompt": "2+2?", "label": "4"}, {"problem": "3?", "answer": 3}, {"question": "4?", "label": 4.0}]
    rows.append({"Problem": "5?", "Solution": "Count.", "Answer": 5})
    rows += [{"prompt": "6?", "label": ["6"]}, {"prompt": "7?", "label": '["7"]'}, {"prompt": "8?", "label": "[1, 2)"}]
    rows += [{"prompt": "9?", "label": "[9]"}, {"prompt": "10?", "label": float("nan"), "answer": "10"}]
    out = tmp_path / "data" / "out.jsonl"
    assert questions(["--input", written(tmp_path / "in.jsonl", *rows), "--output", str(out)]) == 0
    assert [row["label"] for row in rows_of(out)] == ["2", "4", "3", "4", "5", "6", "7", "[1, 2)", "[9]", "10"]
    assert rows_of(out)[0] == {"prompt": "1+1?", "label": "2", "metadata": {"grader": "math"}}


def test_questions_of_parquet(tmp_path: Path) -> None:
    parquet.write_table(arrow.Table.from_pylist([DAPO]), tmp_path / "in.parquet")
    out = tmp_path / "out.jsonl"
    assert questions(["--input", str(tmp_path / "in.parquet"), "--output", str(out), "--grader", "numeric"]) == 0
    assert rows_of(out) == [{"prompt": "1+1?", "label": "2", "metadata": {"grader": "numeric"}}]


def test_conversations(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<code>1</code>"}]
    shared = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    out = tmp_path / "out.jsonl"
    assert (
        conversations(["--input", written(tmp_path / "in.jsonl", {"messages": messages}, shared), "--output", str(out)])
        == 0
    )
    assert rows_of(out)[0] == {"messages": messages}
    assert [message["role"] for message in rows_of(out)[1]["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("command", "row", "says"),
    [
        (questions, {"prompt": "x"}, "row 1 has no label; give"),
        (questions, {"prompt": "x", "label": float("nan")}, "row 1 has no label; give"),
        (questions, {"prompt": "x", "label": float("-inf")}, "row 1 has no label; give"),
        (questions, {"prompt": "x", "label": ["1", "2"]}, "row 1 has 2 labels; give the one right answer"),
        (questions, {"prompt": "x", "label": '["1", "2"]'}, "row 1 has 2 labels; give the one right answer"),
        (questions, {"prompt": "x", "label": {"a": 1}}, "row 1 has no label but"),
        (questions, {"label": "x"}, "row 1 has no prompt"),
        (conversations, {}, "row 1 has no messages"),
        (conversations, {"messages": [{"role": "user", "content": "x"}]}, "row 1 does not end with the assistant"),
        (
            conversations,
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}]},
            "row 1 has tool_calls, which this would lose; give the file to --prompt-data as it is",
        ),
        (conversations, {"messages": ["x"]}, "row 1 has a message that is not an object"),
        (conversations, {"messages": [{"role": "robot", "content": "x"}]}, "row 1 has a message without a role"),
    ],
)
def test_a_bad_row(command: Any, row: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"prompt": "x", "label": "1", "messages": [{"role": "assistant", "content": "x"}]}
    source, out = written(tmp_path / "in.jsonl", good, row), tmp_path / "out.jsonl"
    assert command(["--input", source, "--output", str(out)]) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()
    assert command(["--input", source, "--output", str(out), "--skip-bad"]) == 0
    assert "1 rows, 1 left out" in capsys.readouterr().out
    assert command(["--input", source, "--output", str(out)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["rl_data_preprocess.py", "sft_data_processing.py"])
def test_the_scripts_run_from_anywhere(script: str, repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(repository / "toolcall-rl" / script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin"}, capture_output=True, text=True, check=False)
    assert (done.returncode, "--input" in done.stdout) == (0, True), done.stderr


def test_prompts_and_conversations_of_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, sft = tmp_path / "p.jsonl", tmp_path / "s.jsonl"
    assert main(["prompts", str(prompts), "--family", "chain", "--count", "2"]) == 0
    assert rows_of(prompts)[1] == {
        "prompt": "toolcall/chain/train/1",
        "label": "",
        "metadata": {"task_id": "toolcall/chain/train/1"},
    }
    assert main(["sft", str(sft), "--family", "home_population", "--count", "2"]) == 0
    messages = rows_of(sft)[0]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    answer = generate("toolcall/home_population/train/0").answer
    assert answer is not None
    assert answer.text in messages[-2]["content"]
    assert rows_of(sft)[0]["tools"][0]["function"]["name"] == "table_lookup"
    assert main(["prompts", str(prompts)]) == 2
    assert main(["ids", "--family", "mixture"]) == 2
    assert main(["prompts", str(tmp_path / "x"), "--first", "999"]) == 0
    assert main(["prompts", str(tmp_path / "y"), "--first", "1000"]) == 2
    assert "a pool offers 1000 tasks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "words", "says"),
    [
        (
            "tools",
            ["prompts", "FILE", "--family", "chain", "--family", "sales_of"],
            "TOOLS_CONFIG lacks a tool of sales_of;",
        ),
        (
            "tools",
            ["agent", "--task", "toolcall/sales_of/heldout/0", "--dry-run"],
            "TOOLS_CONFIG lacks a tool of sales_of;",
        ),
        ("text", ["sft", "FILE", "--family", "add_two"], "TOOLCALL_ACTIONS=retool_text is for training; unset it here"),
        ("text", ["agent", "--dry-run"], "TOOLCALL_ACTIONS=retool_text is for training; unset it here"),
        ("", ["prompts", "FILE", "--count", "0"], "invalid --count 0: must be >= 1"),
        ("", ["agent", "--output", "/none/x.json", "--dry-run"], "there is no folder /none; create it"),
        ("", ["agent", "--max-turns", "0"], "invalid --max-turns 0: must be >= 1"),
    ],
)
def test_what_a_command_refuses(
    variables: str,
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variables == "tools":
        tools = written(tmp_path / "tools.json", [{"function": {"name": "calculator"}, "binding": {"kind": "builtin"}}])
        monkeypatch.setenv("TOOLS_CONFIG", tools)
    elif variables == "text":
        monkeypatch.setenv("TOOLCALL_ACTIONS", "retool_text")
    told = [str(tmp_path / "out") if word == "FILE" else word for word in words]
    assert (agent(told[1:]) if told[0] == "agent" else main(told)) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_names_the_tools_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert agent(["--dry-run"]) == 0
    assert "\ntools    table_lookup, calculator\n" in capsys.readouterr().out


async def test_an_agent_of_any_endpoint(tmp_path: Path) -> None:
    """The endpoint gets key, tools and observations; the trajectory has what happened."""
    name = "toolcall/get_value/train/0"
    draft = generate(name)
    assert draft.answer is not None
    requests: list[httpx.Request] = []
    key = draft.calls[0]["arguments"]

    def called(arguments: str) -> dict[str, Any]:
        function = {"name": "store_get", "arguments": arguments}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }

    replies = [
        called("{"),
        called('{"key": "none"}'),
        called(json.dumps(key)),
        {"role": "assistant", "content": f"Answer: {draft.answer.text}"},
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json={"choices": [{"message": replies[len(requests) - 1]}]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = Endpoint("http://host/v1", "m", "sesame", client)
        played = await collect_toolcall_trajectory(model, name)
    assert played.verdict.score == 1.0
    assert [step.error for step in played.steps] == ["malformed_action", "no_key", None]
    assert str(requests[0].url) == "http://host/v1/chat/completions"
    assert requests[0].headers["Authorization"] == "Bearer sesame"
    sent = json.loads(requests[-1].content)
    assert sent["tools"][0]["function"]["name"] == "store_get"
    assert sent["messages"][-1] == {"role": "tool", "tool_call_id": "c", "content": draft.answer.text}
