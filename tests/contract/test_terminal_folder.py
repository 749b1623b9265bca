"""Every name of the folder ``terminal-rl/``, called as it is documented."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import convert_task_to_dataset
import generate as terminal
import load_tasks
import pool_server
import pytest
import rollout_log
import router_server
import terminal_task
from generate import TerminalConfig
from terminal_task import Task as TerminalTask

from agentrl import pool_process
from agentrl.environment import Task, load_environment
from agentrl.pool import build_parser as pool_parser
from agentrl.rollout import generate as loop
from agentrl.rollout.records import names
from agentrl.router import build_parser as router_parser
from agentrl.tasks.harbor import write_task
from agentrl.tasks.shell.generate import generate, task_toml
from agentrl.tasks.terminal.source import TaskSource
from groundwork.exceptions import ConfigError
from groundwork.variables import refuse_set
from lab.testkit.agent_rollouts import GUESS, talk
from openclaw.launch.__main__ import main as launch
from openclaw.launch.names import name_warnings
from openclaw.launch.task import find_task
from openclaw.ledger.records import Vote
from slime.args import Arguments
from slime.rollout.train_data import convert
from slime.utils import logging_utils
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, PARAMETERS, staged
from tests.helpers.launch_plans import task_of, task_plan

THINKS = {"non_think_mode": False}
"""The tiny model's template knows no word against thinking."""


class Judge:
    """Two votes for the first step, one against, and an unreadable one; none on others."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.counts: list[int] = []

    async def length(self, kind: Any, question: Any) -> int:
        return len(question.prompt[-1]["content"])

    async def votes(self, kind: Any, question: Any, count: int) -> list[Vote]:
        self.asked.append(question.prompt[-1]["content"])
        self.counts.append(count)
        values = [1, 1, -1, None] if question.reply == "one" else [None] * 4
        return [Vote(kind, "", value, None, 0.1) for value in values[:count]]


def dry_run_status(*words: str) -> int:
    """Return the exit status of a dry run of the launcher, which shows its plan if that is valid."""
    try:
        launch(["--task", "terminal", *words, "--dry-run"])
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def configured(args: Arguments, **values: Any) -> Arguments:
    """Return arguments with attributes as ``--custom-config-path`` sets them."""
    changed = args.changed()
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


async def played(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, replies: Sequence[str], task: Task, **values: Any
) -> tuple[list[Sample], Any]:
    """Return the samples of `generate.generate` and the stage."""
    async with staged(talk(task), replies, folder, model, monkeypatch) as on:
        prompt: Any = {"task_name": "any", "task_path": task.id, "instruction": "", "data_source": "x"}
        sample = on.sample(prompt=prompt, metadata={})
        found = await terminal.generate(configured(on.args, **THINKS | values), sample, dict(PARAMETERS))
        assert isinstance(found, list)
        return found, on


async def test_generate_returns_samples_with_rewards_in_parts(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*inspect.signature(terminal.generate).parameters]
    assert names == ["args", "sample", "sampling_params", "evaluation"]
    assert inspect.iscoroutinefunction(terminal.generate)
    task = Task("guess", {"steps": 2, "score": 0.75})
    (sample,), _ = await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], task)
    assert sample.reward == {
        "accuracy": 0.75,
        "raw_score": 0.75,
        "base_score": 0.5,
        "score": 0.5,
        "prm_turn_score": None,
    }


@pytest.mark.parametrize(("config", "coefficient"), [({}, 0.5), ({"prm_turn_coef": 0.25}, 0.25)])
async def test_votes_and_coefficient_reach_samples_and_loss_inputs(
    config: dict[str, Any], coefficient: float, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judge()
    monkeypatch.setattr(loop, "judge_of", lambda args: judge)
    task = Task("guess", {"steps": 2, "score": 1.0})
    replies = [f"one{END}", f"two{END}"]
    flags = {"prm_m": 4, "prm_step_coef": 0.5}
    (sample,), on = await played(tmp_path, tiny_random_model, monkeypatch, replies, task, **flags, **config)
    mean = 1 / 3
    assert judge.counts == [4, 4], "--prm-m votes on each step"
    wise = sample.metadata["step_wise"]
    assert wise["step_scores"] == [pytest.approx(mean), None], "an invalid vote is not a vote, and none is not a score"
    assert wise["step_scores_with_outcome"] == [pytest.approx(1 + coefficient * mean), 1.0]
    assert sample.reward["score"] == pytest.approx(1 + coefficient * mean)
    assert sample.reward["prm_turn_score"] == pytest.approx(mean)
    args = on.args.changed(advantage_estimator="step_wise", reward_key="score")
    data = convert(args, [sample])
    assert data["step_wise_step_rewards"] == [[pytest.approx(1 + coefficient * mean), 1.0]]
    assert data["step_wise_step_token_spans"] == [wise["step_token_spans"]]
    assert convert(on.args.changed(reward_key="score"), [sample])["raw_reward"] == [
        pytest.approx(1 + coefficient * mean)
    ]


@pytest.mark.parametrize(("mode", "early"), [("head_tail", True), ("last_k", False)])
async def test_the_judge_sees_the_history_of_the_mode(
    mode: str, early: bool, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judge()
    monkeypatch.setattr(loop, "judge_of", lambda args: judge)
    replies = [f"say {'abcdefgh'[number]}{END}" for number in range(8)]
    task = Task("guess", {"steps": 8})
    await played(tmp_path, tiny_random_model, monkeypatch, replies, task, prm_history_mode=mode)
    last = judge.asked[-1]
    assert ("say a" in last) == early
    assert "say d" not in last
    assert "say g" in last
    assert "say h" in last


async def test_limits_of_the_custom_config_hold(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Task("guess", {"steps": 40})
    (sample,), _ = await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], long)
    assert (sample.metadata["agent"]["turns"], sample.metadata["agent"]["ending"]) == (10, "turns")
    (sample,), _ = await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], long, max_iteration=2)
    assert sample.metadata["agent"]["turns"] == 2
    broken = Task("guess", {"steps": 40, "tools": [GUESS]})
    (sample,), _ = await played(tmp_path, tiny_random_model, monkeypatch, [f"<tool_call>\n{{{END}"], broken)
    assert (sample.metadata["agent"]["turns"], sample.metadata["agent"]["ending"]) == (3, "malformed")
    (sample,), _ = await played(
        tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], Task("guess", {"steps": 40}), max_total_tokens=100
    )
    assert len(sample.tokens) <= 100
    (sample,), on = await played(
        tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], Task("guess", {"steps": 1}), non_think_mode=True
    )
    assert "Guess my number. /no_think" in on.tokenizer.decode(sample.tokens)


def test_the_documented_defaults() -> None:
    assert TerminalConfig().model_dump() == {
        "max_iteration": 10,
        "max_parse_errors": 3,
        "max_total_tokens": 32768,
        "sglang_max_context_len": None,
        "sglang_request_timeout": None,
        "non_think_mode": True,
        "non_think_mode_source": "prompt",
        "ensure_image_timeout": 300,
        "reset_session_timeout": 300,
        "close_session_timeout": 60,
        "eval_timeout": 600,
        "tbench_output_root": None,
        "prm_turn_coef": None,
        "prm_max_total_tokens": 16384,
        "prm_history_mode": "head_tail",
        "terminal_agent_type": "camel_agent",
        "model_type": "slime-sglang",
        "chat_template_type": "hf",
        "chat_template_kwargs": None,
        "messages_delimiter_start": "<|im_start|>",
        "messages_delimiter_end": "<|im_end|>",
        "tool_call_parser": "qwen25",
    }
    settings = TerminalConfig().settings({})
    assert (settings.max_turns, settings.max_malformed, settings.evaluate_seconds) == (10, 3, 600)
    assert (settings.judge_history, settings.reward, settings.reset_seconds) == ("head_tail", "partial", 600)
    assert (settings.judge_tokens, settings.close_seconds, settings.reply_seconds) == (16384, 60, None)
    told = {"AGENTRL_MAX_TURNS": "50", "ENV_SERVER_URL": "http://h:1", "AGENTRL_REWARD": "binary"}
    settings = TerminalConfig().settings(told)
    assert (settings.max_turns, settings.pool_url, settings.reward) == (50, "http://h:1", "binary")
    assert TerminalConfig(max_iteration=7).settings(told).max_turns == 7


async def test_places_and_bounds_of_the_custom_config_hold(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sample,), _ = await played(
        tmp_path,
        tiny_random_model,
        monkeypatch,
        [f"one{END}"],
        Task("guess", {"steps": 40}),
        sglang_max_context_len=100,
    )
    assert len(sample.tokens) <= 100
    root = tmp_path / "build_outputs"
    await played(
        *(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], Task("guess", {"steps": 1})),
        tbench_output_root=str(root),
    )
    assert len(names(root / "AgentRunner_Output")) == 1
    config = {
        "ensure_image_timeout": 7.0,
        "reset_session_timeout": 5.0,
        "close_session_timeout": 3.0,
        "sglang_request_timeout": 2.0,
        "prm_max_total_tokens": 900,
    }
    told = {"AGENTRL_RESET_SECONDS": "1", "AGENTRL_CLOSE_SECONDS": "1", "SGLANG_REQUEST_TIMEOUT": "1"}
    for environment in ({}, told):
        settings = TerminalConfig.model_validate(config).settings(environment)
        assert (settings.reset_seconds, settings.close_seconds, settings.reply_seconds) == (12.0, 3.0, 2.0)
        assert settings.judge_tokens == 900
    settings = TerminalConfig().settings(told)
    assert (settings.reset_seconds, settings.close_seconds, settings.reply_seconds) == (1.0, 1.0, 1.0)


async def test_the_judge_has_the_tokens_of_the_custom_config(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in counts characters; most of these are the rules around the texts."""
    judge = Judge()
    monkeypatch.setattr(loop, "judge_of", lambda args: judge)
    task = Task("guess", {"steps": 1, "text": "word " * 1000})
    flags = {"prm_m": 4, "prm_max_new_tokens": 100, "rollout_max_context_len": None}
    for most in (16384, 2000):
        await played(tmp_path, tiny_random_model, monkeypatch, [f"one{END}"], task, prm_max_total_tokens=most, **flags)
    long, short = map(len, judge.asked)
    assert long > 5000 > 1900 >= short


def test_a_run_may_ask_a_judge_that_runs_already(tmp_path: Path) -> None:
    judged = ["--task", "terminal", "--model", "qwen3-8B", "--step-judge"]
    args = task_plan(judged, PRM_SGLANG_URL="http://judge:1", PRM_M="3").args
    assert (args.prm_sglang_url, args.prm_enable, args.prm_m, args.num_nodes) == ("http://judge:1", False, 3, 1)
    args = task_plan(judged).args
    assert (args.prm_sglang_url, args.prm_enable, args.prm_num_gpus, args.num_nodes) == (None, True, 8, 2)


def test_one_variable_lets_a_judge_compare_the_episodes_of_a_task() -> None:
    run = ["--task", "terminal", "--model", "qwen3-8B"]
    elsewhere = {"OPENCLAW_JUDGE_BASE_URL": "https://host/v1", "OPENCLAW_JUDGE_MODEL": "big"}
    plan = task_plan(run, GROUP_JUDGE="1", **elsewhere)
    assert (plan.args.group_rm, plan.args.custom_rm_path) == (True, "agentrl.rollout.group_reward.group_reward")
    task = find_task("terminal")
    assert name_warnings({"GROUP_JUDGE": "1", **elsewhere}, task) == []
    assert len(name_warnings(elsewhere, task)) == 2, "nothing else reads them"
    args = task_plan([*run, "--step-judge"], GROUP_JUDGE="1").args
    assert (args.prm_enable, args.prm_step_coef, args.advantage_estimator, args.group_rm) == (True, 0.0, "grpo", True)
    with pytest.raises(ConfigError, match="GROUP_JUDGE=1 needs a judge"):
        task_plan(run, GROUP_JUDGE="1")
    with pytest.raises(ConfigError, match="N_SAMPLES is 16; set N_SAMPLES=8"):
        task_plan(run, GROUP_JUDGE="1", N_SAMPLES="16", **elsewhere)


def test_a_worker_knows_the_variables_of_older_set_ups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        "WORKER_MAX_TASKS": "3",
        "WORKER_MAX_RUNS_PER_TASK": "4",
        "CLOSE_SESSION_TIMEOUT": "7",
        "ENV_SERVER_BIND_HOST": "0.0.0.0",
        "ENV_SERVER_PORT": "1234",
        "TBENCH_OUTPUT_ROOT": str(tmp_path / "out"),
        "SANDBOX": "docker",
        "SANDBOX_IMAGE": "i",
    }
    pool = pool_parser().parse_args(pool_server.pool_words(pool_server.WorkerVariables.from_env(told)))
    assert (pool.slots, pool.close_seconds, pool.host, pool.port) == (12, 7.0, "0.0.0.0", 1234)
    assert (pool.sandbox, pool.sandbox_image, pool.ledger) == ("docker", "i", tmp_path / "out" / "pool.sqlite")
    defaults = pool_parser().parse_args(pool_server.pool_words(pool_server.WorkerVariables.from_env({})))
    assert (defaults.slots, defaults.host, defaults.port, defaults.close_seconds) == (128, "127.0.0.1", 18081, 60.0)
    assert load_environment(defaults.env[0]).__name__ == "TerminalEnvironment"
    started: list[list[str]] = []
    monkeypatch.setattr(pool_server, "pool", lambda words: started.append(words) or 0)
    monkeypatch.setenv("TBENCH_OUTPUT_ROOT", str(tmp_path / "out"))
    assert pool_server.main(["--cpu", "1"]) == 0
    assert pool_parser().parse_args(started[0]).cpu == 1.0
    assert pool_server.main(["--dry-run"]) == 0
    assert "bash_commands, 5720" in capsys.readouterr().out
    assert len(started) == 1, "a dry run starts nothing"


@pytest.mark.parametrize(
    ("table", "start"),
    [
        (pool_server.OLDER, lambda: pool_server.main(["--dry-run"])),
        (terminal_task.OLDER, lambda: dry_run_status("--model", "qwen3-8B")),
        (router_server.OLDER, lambda: router_server.main(["--workers", "http://h:1"])),
    ],
)
def test_older_variables_without_a_meaning_are_refused_by_name(
    table: Mapping[str, str],
    start: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in table:
        monkeypatch.setenv(name, "1")
    assert start() == 2
    said = capsys.readouterr().err
    assert [name for name, why in table.items() if f"unset {name}: {why}" not in said] == []
    refuse_set(table, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool_call_parser": "glm"},
        {"terminal_agent_type": "other"},
        {"max_iteration": 0},
        {"messages_delimiter_start": "[INST]"},
        {"messages_delimiter_end": "</s>"},
        {"ensure_image_timeout": 0},
        {"tbench_output_root": ""},
    ],
)
def test_a_value_that_would_change_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TerminalConfig.of(configured(Arguments(), **wrong))


def test_a_prompt_without_a_task_is_an_error() -> None:
    for prompt in ({}, "", None):
        with pytest.raises(ConfigError, match="give its row a task with a task_path"):
            terminal.task_id(Sample(prompt=prompt))  # pyright: ignore[reportArgumentType]
    assert terminal.task_id(Sample(prompt="shell/write_word/train/1")) == "shell/write_word/train/1"


def test_rollout_log_logs_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, Any], str]] = []
    monkeypatch.setattr(logging_utils, "log", lambda args, metrics, step_key: logged.append((metrics, step_key)))

    def sample(status: Sample.Status, score: float, judged: float | None, removed: bool = False) -> Sample:
        reward: Any = {"score": score, "accuracy": (score + 1) / 2, "prm_turn_score": judged}
        return Sample(status=status, reward=reward, remove_sample=removed)

    kinds = Sample.Status
    samples = [
        sample(kinds.COMPLETED, 1.0, 0.5),
        sample(kinds.TRUNCATED, -1.0, None),
        sample(kinds.FAILED, 0.0, None, True),
        Sample(status=kinds.ABORTED),
    ]
    assert rollout_log.rollout_log(3, Arguments(), samples, {}, 2.5) is False
    ((metrics, key),) = logged
    assert (key, metrics.pop(key)) == ("rollout/step", 3)
    assert metrics == {
        f"terminal/{name}": value
        for name, value in {
            **{"total_samples": 4, "completed": 1, "truncated": 1, "failed": 1, "aborted": 1},
            **{"failed_ratio": 0.5, "non_trainable_ratio": 0.25, "rollout_time": 2.5},
            **{"reward_mean": 0.0, "reward_min": -1.0, "reward_max": 1.0, "accuracy": 0.5, "prm_turn_score": 0.5},
        }.items()
    }
    assert rollout_log.terminal_metrics([], 1.0)["terminal/total_samples"] == 0


def test_the_router_takes_workers_host_and_port() -> None:
    words = ["--workers", "http://10.0.0.1:18081,http://10.0.0.2:18081", "--host", "127.0.0.1", "--port", "18080"]
    told = router_parser().parse_args(router_server.words_of(router_server.build_parser().parse_args(words)))
    assert dict(told.worker) == {
        "10-0-0-1-18081": "http://10.0.0.1:18081",
        "10-0-0-2-18081": "http://10.0.0.2:18081",
    }
    assert (told.host, told.port) == ("127.0.0.1", 18080)


def test_the_variables_of_guides_are_honoured(tmp_path: Path) -> None:
    told = {"ENV_TYPE": "terminal", "MAX_STEPS": "20", "PARALLEL_ENVS": "32", "SANDBOX": "podman", "SANDBOX_IMAGE": "i"}
    plan = task_plan(["--task", "terminal"], **told)
    assert plan.environment["AGENTRL_MAX_TURNS"] == "20"
    pool = pool_parser().parse_args(task_of(plan).pool(tmp_path))
    assert (pool.slots, pool.sandbox, pool.sandbox_image) == (32, "podman", "i")
    assert load_environment(pool.env[0]).__name__ == "TerminalEnvironment"


def test_folders_are_not_evaluated_on_what_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"TASK_TYPE": "harbor", "DATASET_DIR": str(tmp_path), "EVAL_INTERVAL": "20"}
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    assert dry_run_status("--model", "qwen3-8B") == 2
    assert "TASK_TYPE=harbor has no held-out tasks; set EVAL_PROMPT_DATA" in capsys.readouterr().err
    for more in ({"EVAL_PROMPT_DATA": "test.jsonl"}, {"TASK_TYPE": "bash_commands"}):
        given = told | more
        TerminalTask.from_env(given).check(given, trains=True)


def test_a_pool_that_starts_again_has_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = "agentrl.pool: listening on http://127.0.0.1:{}\n"
    log = tmp_path / "pool.log"
    log.write_text(listening.format(1))

    class Started:
        def __init__(self, command: Sequence[str], **given: Any) -> None:
            pool_parser().parse_args(command[3:])
            with given["log_path"].open("a") as log:
                log.write(listening.format(2))

        def alive(self) -> bool:
            return True

        def stop(self, seconds: float) -> None: ...

    monkeypatch.setattr(pool_process, "spawn", Started)
    words = TerminalTask().pool(tmp_path)
    with ExitStack() as stack:
        assert pool_process.start_pool(words, log, stack) == "http://127.0.0.1:2"


def test_a_trainer_beside_a_pool_gets_its_address_and_both_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: dict[int, Any] = {}
    monkeypatch.setattr(pool_process.signal, "signal", caught.__setitem__)
    program = "import os, sys; sys.exit(7 if os.environ['AGENTRL_POOL_URL'] == 'http://pool' else 1)"
    command = [sys.executable, "-c", program]
    assert pool_process.train_beside_pool(command, os.environ, "http://pool", [], tmp_path) == 7
    assert set(caught) == {signal.SIGINT, signal.SIGTERM}


def test_the_data_tools_use_every_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(10):
        name = f"shell/write_word/train/{number}"
        write_task(generate(name), task_toml("write_word"), tmp_path / "tasks" / str(number))
    write_task(generate("shell/copy_file/heldout/1"), task_toml("copy_file"), tmp_path / "held" / "x")
    assert load_tasks.main(["--tasks_dir", str(tmp_path / "tasks")]) == 0
    assert capsys.readouterr().out.split() == sorted(map(str, range(10)))
    convert_words = ["-d", str(tmp_path / "tasks"), "--output_dir", str(tmp_path / "out")]
    assert convert_task_to_dataset.main([*convert_words, "--train_split", "0.7"]) == 0

    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()]

    assert (len(rows("train")), len(rows("test"))) == (7, 3)
    assert rows("train")[0]["task"].keys() == {"task_name", "task_path", "instruction", "data_source"}
    assert rows("train")[0]["metadata"]["task_id"] == rows("train")[0]["task"]["task_path"]
    assert convert_task_to_dataset.main([*convert_words, "--test_tasks_dir", str(tmp_path / "held")]) == 0
    assert (len(rows("train")), [row["task"]["task_path"] for row in rows("test")]) == (10, ["held/x"])
    root = TaskSource(task_type="harbor", dataset_dir=str(tmp_path))
    assert {row["metadata"]["task_id"] for row in [*rows("train"), *rows("test")]} <= set(root.ids()), (
        "one pool has all"
    )
    inner = tmp_path / "tasks" / "inner"
    write_task(generate("shell/copy_file/heldout/2"), task_toml("copy_file"), inner / "y")
    assert convert_task_to_dataset.main([*convert_words, "--test_tasks_dir", str(inner)]) == 2
    assert "inner/y is in both folders" in capsys.readouterr().err
    shutil.rmtree(inner)
    assert convert_task_to_dataset.main([*convert_words, "--test_tasks_dir", str(tmp_path / "tasks")]) == 2
    (tmp_path / "tasks" / "3" / "instruction.md").unlink()
    assert convert_task_to_dataset.main(convert_words) == 2
    assert "instruction.md is missing" in capsys.readouterr().err
    assert convert_task_to_dataset.main([*convert_words, "--skip", "--train_split", "1"]) == 0
    assert len(rows("train")) == 9
    assert load_tasks.main(["--tasks_dir", str(tmp_path / "tasks")]) == 1
    assert load_tasks.main(["--tasks_dir", str(tmp_path / "out")]) == 2
