"""The evaluation as a whole: what is asked, resuming, Ctrl-C, suites that cannot run, servers that refuse, the report."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import run_eval
from evaluation import options, suites
from evaluation.case import SuiteError
from evaluation.records import Results
from evaluation.run import Plan
from evaluation.suites import build_suites

from tests.helpers.scripted_model import Messages, ScriptedClient
from tests.helpers.stand_in_server import StandInServer, stand_in_server

Evaluate = Callable[..., int]
WORDS = ["--base-url", "http://model.test/v1", "--eval-tasks", "retention", "--num-problems", "6"]


def answers_by_name(number: str) -> Callable[[Messages], str]:
    return lambda messages: f"It is {number}."


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    """The client of every server; tests give it another script."""
    found = ScriptedClient(answers_by_name("7"))
    monkeypatch.setattr(run_eval, "server_client", lambda url, timeout, key: found)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandInServer]:
    with stand_in_server(tmp_path, lambda prompt: "so it is 7") as running:
        yield running


def lines(folder: Path, name: str = "results.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_a_learning_server_is_asked_and_trains_nothing(server: StandInServer, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ["--base-url", f"{server.url}/v1", "--eval-tasks", "conversation,retention", "--num-problems", "5"]
    assert run_eval.main([*words, "--output-dir", str(folder), "--samples", "2", "--max-tokens", "40"]) == 0
    heard = server.chats()
    assert {request.headers["x-turn-type"] for request in heard} == {"side"}
    assert len({request.headers["x-session-id"] for request in heard}) == 20
    assert {turn.kind for turn in server.turns()} == {"side"}
    rows = lines(folder)
    assert len(rows) == 20
    assert {(row["suite"], row["task"], row["sample"]) for row in rows} == {
        (case.suite, case.id, sample)
        for suite in build_suites(["conversation", "retention"], None)
        for case in suite.cases(0, 5)
        for sample in (0, 1)
    }
    assert all(row["tokens"] > 0 and row["seconds"] > 0 and row["messages"] for row in rows)
    assert report(folder)["model"]["suites"]["retention"]["problems"] == 5
    page = (folder / "report.md").read_text()
    for part in ("## Scores", "## Failures by reason", "## Latency", "## Examples", "![scores.png](scores.png)"):
        assert part in page
    assert (folder / "scores.png").read_bytes().startswith(b"\x89PNG")


def test_a_prompt_beyond_the_context_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in_server(tmp_path, lambda prompt: "7", context_length=40, prm_max_new_tokens=8) as server:
        words = ["--base-url", f"{server.url}/v1", "--eval-tasks", "coding", "--num-problems", "2"]
        status = run_eval.main([*words, "--output-dir", str(tmp_path / "out")])
    said = capsys.readouterr().err
    if "coding did not run: code that a model wrote" not in said:  # a machine without bubblewrap refuses earlier
        assert "no case fits the model's context" in said
        assert "CONTEXT_LENGTH" in said
        assert {row["reason"] for row in lines(tmp_path / "out")} == {"context_too_short"}
    assert status == 1


def test_the_two_models_get_the_same_problems_and_are_compared(client: ScriptedClient, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = [*WORDS, "--seeds", "0,3", "--output-dir", str(folder), "--compare-to", "http://other.test/v1"]
    assert run_eval.main(words) == 0
    asked = [json.dumps(request["messages"]) for request in client.requests]
    assert len(asked) == 24
    assert sorted(asked[:12]) == sorted(asked[12:])
    compared = report(folder)["comparison"]["retention"]
    assert (compared["problems"], compared["difference"], compared["gained"], compared["lost"]) == (12, 0.0, 0, 0)
    assert compared["low"] < 0 < compared["high"]
    assert "## Comparison" in (folder / "report.md").read_text()


def test_what_is_done_is_not_asked_again(client: ScriptedClient, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = [*WORDS, "--output-dir", str(folder)]
    assert run_eval.main(words) == 0
    whole = lines(folder)
    kept = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "results.jsonl").write_text("".join(kept[:4]) + kept[4][:30])
    client.requests.clear()
    assert run_eval.main(words) == 0
    assert len(client.requests) == 2
    again = {row["task"]: row["passed"] for row in lines(folder)}
    assert again == {row["task"]: row["passed"] for row in whole}
    assert run_eval.main(words) == 0
    assert len(client.requests) == 2


def test_other_settings_need_another_folder(
    client: ScriptedClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert run_eval.main([*WORDS, "--output-dir", str(folder)]) == 0
    assert run_eval.main([*WORDS, "--output-dir", str(folder), "--temperature", "0"]) == 1
    assert "other settings (temperature None, now 0.0); name another --output-dir" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert run_eval.main([*WORDS, "--output-dir", str(tmp_path)]) == 1
    assert "is not empty and holds no evaluation" in capsys.readouterr().err
    assert len(client.requests) == 6
    assert client.requests[0]["max_tokens"] == 1024
    assert "temperature" not in client.requests[0]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Handle SIGINT as Python does by default, whatever this process inherited or an earlier test installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    client: ScriptedClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(messages: Messages) -> str:
        if len(client.requests) == 4:
            signal.raise_signal(signal.SIGINT)
        return "It is 7."

    client.script = interrupted
    folder = tmp_path / "out"
    words = [*WORDS, "--parallel", "1", "--output-dir", str(folder)]
    assert run_eval.main(words) == 130
    assert "stopped; to go on: bash openclaw-test/run_eval.sh --base-url" in capsys.readouterr().err
    done = len(lines(folder))
    assert 3 <= done < 6
    assert not report(folder)["complete"]
    assert "**Incomplete**" in (folder / "report.md").read_text()
    client.script = answers_by_name("7")
    client.requests.clear()
    assert run_eval.main(words) == 0
    assert len(client.requests) == 6 - done
    assert report(folder)["complete"]


class Broken:
    """A suite that cannot run on this machine."""

    name = "coding"
    cases = suites.CONVERSATION.cases

    async def open(self) -> None:
        raise SuiteError("here is no sandbox; install bubblewrap")

    async def close(self) -> None:
        return None


def test_a_suite_that_cannot_run_does_not_stop_the_others(
    client: ScriptedClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "Coding", lambda box: Broken())
    folder = tmp_path / "out"
    words = [*WORDS[:2], "--eval-tasks", "coding,retention", "--num-problems", "3", "--output-dir", str(folder)]
    assert run_eval.main(words) == 1
    assert "coding did not run: here is no sandbox; install bubblewrap" in capsys.readouterr().err
    assert {row["suite"] for row in lines(folder)} == {"retention"}
    assert "**coding did not run**" in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--base-url", "http://127.0.0.1:9/v1"],
            "no server answers at http://127.0.0.1:9/v1/; start one, or write --model-path P",
        ),
        (["--gsm8k", "no_file.json"], "no_file.json is not a GSM8K file"),
        (["--run", "no-run"], "--run no-run: no arguments.json of a run there"),
    ],
)
def test_what_is_missing_is_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*words, "--eval-tasks", "retention", "--num-problems", "1", "--output-dir", str(tmp_path / "out")]
    assert run_eval.main(command) == 1
    assert says in capsys.readouterr().err


def test_a_refused_key_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_in_server(tmp_path, lambda prompt: "7", api_key="the-key") as server:
        words = ["--base-url", f"{server.url}/v1", "--eval-tasks", "retention", "--num-problems", "1"]
        assert run_eval.main([*words, "--output-dir", str(tmp_path / "a")]) == 1
        assert "refuses the key; set SGLANG_API_KEY, or name a variable with --key-variable" in capsys.readouterr().err
        monkeypatch.setenv("MY_KEY", "the-key")
        assert run_eval.main([*words, "--output-dir", str(tmp_path / "b"), "--key-variable", "MY_KEY"]) == 0
    assert all("the-key" not in path.read_text() for path in (tmp_path / "b").iterdir() if path.suffix != ".png")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--eval-tasks", "conversation,cooking"], "unknown task cooking; use conversation, coding, tool-use"),
        (["--base-url", "u", "--model-path", "p"], "name two models"),
        (["--model-path", "p", "--allow-code-execution"], "coding runs in a sandbox, without a flag"),
        (
            ["--model-path", "p", "--port", "8000"],
            "--port 8000: the checkpoint is served at a free port of this machine",
        ),
        (["--model-path", "p", "--host", "::1"], "leave --host out"),
        (["--base-url", "u", "--eval-tasks", "tool-use", "--gpu-ids", "0"], "unknown argument --gpu-ids"),
        (["--model-path", "p", "--key-variable", "K"], "--key-variable is for a server; add --base-url URL"),
        (["--base-url", "http://h", "--key-variable", "NOT_SET"], "NOT_SET: this environment variable is not set"),
        (["--base-url", "HTTP://me:word@h"], "--base-url: leave the name and password out of the URL"),
        (["--base-url", "me:word@h:30000/v1"], "--base-url: leave the name and password out of the URL"),
        (["--compare-to", "https://word@h/v1"], "--compare-to: leave the name and password out of the URL"),
        (["--seeds", "0,x"], "'0,x' is not a list of seeds"),
        (["--samples", "0"], "'0' is not a whole number of 1 or more"),
        (["--eval-tasks", "coding", "--gsm8k", "f"], "add it to --eval-tasks"),
        (["--compare-model", "m"], "--compare-model needs --compare-to URL"),
    ],
)
def test_bad_options_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_eval.main(words)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("compared", [[], ["--compare-to", "http://h/v1"]])
def test_the_checkpoint_that_a_run_began_with_is_offered_until_it_is_compared(
    compared: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "checkpoint_of", lambda run: (run / "iter_0000003", Path("the-first")))
    assert run_eval.main(["--run", "runs/mine", *compared, "--dry-run"]) == 0
    assert ("--compare-to the-first compares with it" in capsys.readouterr().err) is not bool(compared)


def test_without_options_it_asks_the_run_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_eval.main(["--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"server   {options.DEFAULT_URL}" in said
    assert "tasks    conversation, coding, tool-use, shell, terminal, retention, 16 problems each" in said


def test_several_seeds_and_tries_are_different_cases() -> None:
    (suite,) = build_suites(["retention"], None)
    cases = Plan((0, 1), 5, 3, 8).cases(suite)
    assert len({(case.id, sample) for case, sample in cases}) == 30


def test_a_gsm8k_file_adds_its_questions(client: ScriptedClient, tmp_path: Path) -> None:
    rows = [{"question": f"How many? ({number})", "answer": f"So\n#### {number},000"} for number in range(1, 9)]
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(map(json.dumps, rows)))
    client.script = answers_by_name("3,000.0")
    words = [*WORDS[:-1], "8", "--gsm8k", str(tmp_path / "gsm8k.jsonl"), "--output-dir", str(tmp_path / "out")]
    assert run_eval.main(words) == 0
    asked = [row for row in lines(tmp_path / "out") if row["family"] == "gsm8k"]
    assert len({row["messages"][0]["content"] for row in asked}) == 8
    assert [row["messages"][0]["content"] for row in asked if row["passed"]] == ["How many? (3)"]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(run_eval.EvalError, match="holds no results of this command"):
        Results(tmp_path / "results.jsonl")
