"""Tiny agents that learn: the environments answer as the traces say, and a short run reports what its records hold."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.environment import Task, load_environment
from agentrl.exceptions import InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject
from agentrl.rollout.actions import error_text, opening
from agentrl.rollout.records import names, read
from lab.tiny_learning.sets import TASK_SETS
from lab.tiny_learning.traces import TaskSet
from tests.helpers.gui_agents import needs_browser

EPISODES = 24
UPDATES, PROMPTS, SAMPLES, HELDOUT = 2, 2, 2, 1
TWICE = 2


def action_of(text: str) -> JsonObject:
    """Return what a reply does."""
    if not text.startswith("<tool_call>"):
        return {"text": text}
    called = json.loads(text.split("\n")[1])
    return {"tool": called["name"], "arguments": called["arguments"]}


SETS = [
    pytest.param(each, id=name, marks=needs_browser if name == "gui" else ())
    for name, each in TASK_SETS.items()
    if isinstance(each, TaskSet)
]


@pytest.mark.parametrize("tasks", SETS)
async def test_the_environment_answers_as_the_traces_say(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, so the policy of the warm start has seen what it meets; the last verdict is the verifier's too."""
    for variable, value in tasks.variables.items():
        monkeypatch.setenv(variable, value)
    rng = random.Random(3)
    ledger = ProcessLedger(tmp_path / "processes.sqlite")
    environment = load_environment(tasks.environment)(Processes(ledger))
    try:
        for _ in range(EPISODES):
            name, trace = tasks.drawn(rng)
            begin = opening(await environment.reset(Task(name), 0))
            assert (begin.messages, begin.tools) == (trace.messages, trace.tools)
            for step in trace.steps:
                try:
                    heard = (await environment.step(action_of(step.text))).observation.text
                except InvalidError as error:
                    heard = error_text(error.code, error.message)
                assert heard == step.heard, (name, step)
            verdict = await environment.evaluate()
            assert (verdict.score == 1) == trace.steps[-1].good, (name, trace.steps)
    finally:
        await environment.close()
        ledger.close()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "judged"),
    [("toolcall", True), pytest.param("gui_pictures", False, marks=needs_browser)],
)
def test_a_short_run_reports_what_its_records_hold(name: str, judged: bool, repository: Path, tmp_path: Path) -> None:
    """One with a judge and without a sandbox, one from screenshots."""
    run_dir, report = tmp_path / "run", tmp_path / "report.json"
    words = ["--task", name, "--updates", UPDATES, "--prompts", PROMPTS, "--samples", SAMPLES]
    words += ["--process-reward"] * judged
    words += ["--heldout", HELDOUT, "--slots", "4", "--seed", "5", "--run-dir", run_dir, "--report", report]
    paths = (repository, repository / "slime", repository / "openclaw-test")
    done = subprocess.run(
        [sys.executable, repository / "lab" / "agent_learning.py", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"update {UPDATES}/{UPDATES}:" in done.stdout
    made = json.loads(report.read_text())
    assert report.with_suffix(".png").stat().st_size > 1000
    tasks = TASK_SETS[name]
    records = [read(run_dir, each, tokens=False) for each in names(run_dir)]
    ended = [record for record in records if record.first("end")]
    trained = [record for record in ended if record.name.startswith("train-")]
    assert (made["task"], made["seed"], made["updates"], made["process_reward"]) == (name, 5, UPDATES, judged)
    assert made["episodes"] == len(trained) == UPDATES * PROMPTS * SAMPLES
    assert made["heldout_episodes"] == len(tasks.families) * HELDOUT * TWICE
    assert len(ended) - len(trained) == 2 * made["heldout_episodes"]
    assert made["infrastructure_failures"] == sum(bool(record.first("lost")) for record in records)
    replies = [event for record in trained for event in record.events if event["kind"] == "policy"]
    assert made["trained_tokens"] == sum(event["tokens"] for event in replies) > 0
    assert 0 <= made["success_before"] <= 1
    assert 0 <= made["success_after"] <= 1
    assert (made["judge"] is not None) == judged
    if judged:
        assert made["judge"]["steps"] > 0
        assert made["judge"]["votes"] == 3 * len(replies)
    versions = {event["weight_spans"][0][0] for event in replies}
    assert len(versions) == UPDATES, "each update's episodes have weights of their own"
