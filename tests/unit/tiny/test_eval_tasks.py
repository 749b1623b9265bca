"""The evaluation tasks against a client that answers well, and one that does not."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import run_eval
from eval_tasks import FUNCTIONS, OPERATORS, TASKS, code_of, passes, result
from rich.console import Console

SOLUTIONS = {
    "add_all": "def add_all(numbers):\n    return sum(numbers)",
    "is_even": "def is_even(n):\n    return n % 2 == 0",
}


class Client:
    """Answers as OpenAI's client does; ``good`` says whether right."""

    def __init__(self, good: bool) -> None:
        self.good = good
        self.headers: list[dict[str, str]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[dict[str, Any]], extra_headers: dict[str, str], **fields: Any) -> Any:
        self.headers.append(extra_headers)
        message = SimpleNamespace(content=self.text(messages), tool_calls=self.calls(messages, fields.get("tools")))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    def text(self, messages: list[dict[str, Any]]) -> str:
        last = messages[-1]["content"]
        if not self.good:
            return "I do not know."
        if last == "What is my name?":
            return "You are " + re.findall(r"my name is (\w+)", messages[0]["content"])[0]
        name = next((name for name in SOLUTIONS if f" {name}(" in last), None)
        return f"```python\n{SOLUTIONS[name]}\n```" if name else "Blue."

    def calls(self, messages: list[dict[str, Any]], tools: Any) -> list[Any] | None:
        if not tools:
            return None
        left, operator, right = re.findall(r"is (\d+) (.) (\d+)", messages[0]["content"])[0]
        arguments = json.dumps({"left": int(left), "operator": operator, "right": int(right) + (not self.good)})
        return [SimpleNamespace(function=SimpleNamespace(name="calculator", arguments=arguments))]


@pytest.mark.parametrize("good", [True, False])
async def test_figures_say_how_good_the_replies_are(good: bool) -> None:
    client: Any = Client(good)
    figures = await run_eval.evaluate(client, "policy", list(TASKS), 2, Console(quiet=True))
    assert figures == dict.fromkeys(TASKS, 1.0 if good else 0.0)
    assert {headers["X-Turn-Type"] for headers in client.headers} == {"side"}
    assert len({headers["X-Session-Id"] for headers in client.headers}) == 2 * len(TASKS)


def test_code_is_taken_from_its_block_and_its_check_decides() -> None:
    assert code_of("Sure!\n```python\nx = 1\n```\nDone.") == "x = 1\n"
    assert code_of("x = 1") == "x = 1"
    assert passes(SOLUTIONS["add_all"], FUNCTIONS[0][1])
    assert not passes("def add_all(numbers):\n    return 6", FUNCTIONS[0][1])
    assert not passes("import sys; sys.exit(0)", "True")
    assert not passes("open('x', 'w').writelines(['much'] * 100000)", "True")
    assert not passes("x = 'a' * 2**31", "True")


def test_results_of_the_calculator() -> None:
    assert result('{"left": 2, "operator": "*", "right": 3}') == OPERATORS["*"](2, 3)
    for wrong in (
        "",
        "[]",
        '{"left": 2}',
        '{"left": 2, "operator": "/", "right": 3}',
        '{"left": "x", "operator": "+", "right": 1}',
    ):
        assert result(wrong) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--eval-tasks", "conversation,cooking"], "unknown task cooking; use conversation, coding, tool-use"),
        (["--base-url", "u", "--model-path", "p"], "write one of them"),
        (["--model-path", "p", "--eval-tasks", "coding"], "add --allow-code-execution"),
        (["--base-url", "u", "--eval-tasks", "tool-use", "--gpu-ids", "0"], "unknown argument --gpu-ids"),
    ],
)
def test_bad_options_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_eval.main(words)
    assert says in capsys.readouterr().err


def test_without_options_it_asks_the_run_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval.main(["--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"server   {run_eval.DEFAULT_URL}" in said
    assert "tasks    conversation, tool-use, 16 problems each" in said
    assert run_eval.main(["--dry-run", "--allow-code-execution"]) == 0
    assert "tasks    conversation, coding, tool-use" in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_eval.main(["--base-url", "http://127.0.0.1:9/v1", "--eval-tasks", "tool-use", "--num-problems", "1"]) == 1
    )
    assert "no server answers at http://127.0.0.1:9/v1/; start one, or write --model-path P" in capsys.readouterr().err
