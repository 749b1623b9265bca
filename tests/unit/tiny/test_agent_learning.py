"""A tiny agent's learning: what the warm start imitates, what the run is asked for, and figures from records."""

from __future__ import annotations

import io
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.environment import load_environment
from agentrl.pool import build_parser
from agentrl.rollout import step_judge
from agentrl.rollout.records import EpisodeRecord
from agentrl.tasks.shell.draft import WORDS
from agentrl.tasks.swe.draft import FIRST, SECOND
from agentrl.tasks.swe.families.easy import NOUNS
from agentrl.tasks.toolcall.draft import THINGS
from groundwork.checkpoint_names import LATEST
from lab import agent_learning
from lab.tiny_learning import report, warm_start
from lab.tiny_learning.encode import Coder
from lab.tiny_learning.evidence import Evidence
from lab.tiny_learning.outcomes import Outcomes, share, transcript
from lab.tiny_learning.sets import TASK_SETS, UPDATES, judges
from lab.tiny_learning.traces import AgentTasks, TaskSet, Trace
from lab.tiny_learning.training import TEMPERATURE, Plan, Sizes, pool_words
from lab.tiny_learning.vocabulary import build_tokenizer
from lab.tiny_learning.warm_start import NOTE, SHIPPED, failures, key
from lab.tiny_models import sampling
from lab.tiny_models.tokenizer import END, SPECIAL_TOKENS
from openclaw.judge.endpoint import ClassJudge, load_scorer
from slime.arguments import parse_args

SETS = [each for each in TASK_SETS.values() if isinstance(each, TaskSet)]
NAMED = {*WORDS, *THINGS, *NOUNS, *FIRST, *SECOND} - {"table"}  # which is an argument of a tool, too
KEYS = {
    "task",
    "seed",
    "updates",
    "heldout_episodes",
    "success_before",
    "success_after",
    "process_reward",
    "episodes",
    "infrastructure_failures",
    "trained_tokens",
    "seconds_total",
}


def plan_of(folder: Path, tasks: AgentTasks = SETS[0], **changes: Any) -> Plan:
    values = {"updates": 2, "seed": 3, "process_reward": False, "sizes": Sizes(prompts=1, samples=2, heldout=1)}
    return Plan(tasks=tasks, model=folder / "model", folder=folder, **(values | changes))


@pytest.mark.parametrize("tasks", SETS, ids=lambda tasks: tasks.name)
def test_the_careless_agent_is_sometimes_right_and_the_other_always(tasks: TaskSet) -> None:
    rng = random.Random(0)
    found = [tasks.drawn(rng)[1] for _ in range(200)]
    right = sum(all(step.good for step in trace.steps) for trace in found) / len(found)
    assert 0.15 < right < 0.45
    assert all(step.heard and step.reason for trace in found for step in trace.steps)
    for trace in (tasks.drawn(rng, careless=False)[1] for _ in range(20)):
        assert all(step.good for step in trace.steps)
        assert len(trace.steps) >= tasks.needed


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(SETS, traces=1000)


@pytest.fixture(scope="module")
def coder(tokenizer: Any) -> Coder:
    return Coder(tokenizer)


@pytest.mark.parametrize("tasks", SETS, ids=lambda tasks: tasks.name)
def test_the_warm_start_learns_the_replies_and_nothing_else(tasks: TaskSet, tokenizer: Any, coder: Coder) -> None:
    rng = random.Random(1)
    for _ in range(5):
        _, trace = tasks.drawn(rng)
        encoded = coder.policy(trace)
        learned = tokenizer.decode([i for i, weight in zip(encoded.ids, encoded.weights, strict=True) if weight])
        assert learned == "".join(step.text + END for step in trace.steps)
        for number in range(len(trace.steps)):
            prompt = coder.prompt(trace, number)
            assert encoded.ids[: len(prompt)] == prompt
            assert encoded.weights[len(prompt) - 1 : len(prompt) + 1] == [0.0, 1.0]
        asked, answer = coder.judge(trace, 0)
        assert trace.messages[-1]["content"].strip() in tokenizer.decode(asked)
        good = trace.steps[0].good
        told = tokenizer.decode(answer)
        assert told.startswith("Good. " if good else "Bad. ")
        assert told.endswith(f"\\boxed{{{1 if good else -1}}}{END}")


@pytest.mark.parametrize("tasks", SETS, ids=lambda tasks: tasks.name)
def test_a_call_has_the_tokens_of_its_task(tasks: TaskSet, tokenizer: Any, coder: Coder) -> None:
    """A model of this size copies a token; it does not learn which tokens spell the same word."""
    rng = random.Random(2)
    for _ in range(40):
        _, trace = tasks.drawn(rng, careless=False)
        asked = coder.ids(trace.messages[-1]["content"])
        said = coder.ids(trace.steps[0].text)
        names = [
            token
            for token in said
            if len(word := tokenizer.decode([token]).strip()) > 2 and word.isalpha() and word in NAMED
        ]
        assert {*names} <= {*asked}


def test_an_echo_repeats_words(coder: Coder, tokenizer: Any) -> None:
    rng = random.Random(3)
    for _ in range(10):
        encoded = coder.echo(rng)
        asked, _, told = tokenizer.decode(encoded.ids).partition(f"{END}\n<|im_start|>assistant\n")
        assert asked.removeprefix("<|im_start|>user\n") + END == told
        learned = [i for i, weight in zip(encoded.ids, encoded.weights, strict=True) if weight]
        assert tokenizer.decode(learned) == told
        assert not {*learned[:-1]} & {
            *tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>", *SPECIAL_TOKENS])
        }


def test_the_gate_names_what_is_wrong() -> None:
    assert failures({"solved": 0.3, "judge_right": 0.95}) == []
    assert failures({"solved": 0.1, "judge_right": 0.95}) == ["0.1 of the tasks are solved, not 0.2 to 0.5"]
    assert len(failures({"solved": 0.9, "judge_right": 0.5})) == 2


@pytest.mark.parametrize("tasks", SETS, ids=lambda tasks: tasks.name)
def test_a_warm_starts_key_is_of_what_the_traces_and_the_judge_say(
    tasks: TaskSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "KEYED", 4)
    monkeypatch.setattr(warm_start, "KEYED_WORDS", 20)
    first = key(tasks)
    assert key(tasks) == first, "the judge's fences have a random word"

    def quiet(rng: random.Random, task: str, careless: bool) -> Trace:
        trace = tasks.trace(rng, task, careless)
        return replace(trace, steps=[replace(step, heard=f"{step.heard} ") for step in trace.steps])

    assert key(replace(tasks, trace=quiet)) != first
    monkeypatch.setattr(step_judge, "SYSTEM", "Judge.")
    assert key(tasks) != first


def test_the_shipped_warm_starts_are_those_of_the_sources() -> None:
    notes = {note.parent.name: json.loads(note.read_text()) for note in SHIPPED.glob(f"*/{NOTE}")}
    assert notes.keys() == TASK_SETS.keys()
    for tasks in SETS:
        told = (
            f"make it anew: PYTHONPATH=openclaw-test python -m lab.tiny_learning {tasks.name}, and move what it prints"
        )
        assert notes[tasks.name]["key"] == key(tasks), told
        assert failures(notes[tasks.name]["metrics"]) == []


@pytest.mark.parametrize(
    ("tasks", "judged"), [(each, judged) for each in TASK_SETS.values() for judged in {False, judges(each)}]
)
def test_pool_and_trainer_take_what_the_run_asks_for(
    tasks: AgentTasks, judged: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path, tasks, process_reward=judged, sizes=Sizes())
    pool = build_parser().parse_args(pool_words(plan))
    offered = {task.id for task in load_environment(pool.env[0]).tasks()}
    with pytest.raises(SystemExit) as stopped:
        parse_args([*plan.words(), "--dry-run"])
    assert stopped.value.code == 0
    assert ("judge" in capsys.readouterr().out) == judged
    trained, heldout = ([json.loads(line)["prompt"] for line in file.open()] for file in plan.prompts())
    assert {*trained, *heldout} <= offered
    assert len(trained) == plan.updates * plan.sizes.prompts
    assert len(heldout) == len(tasks.families) * plan.sizes.heldout
    assert not any(f"/{tasks.unseen}/" in name for name in trained)
    assert any(f"/{tasks.unseen}/" in name for name in heldout)
    assert not {*trained} & {*heldout}


def test_a_judge_of_groups_gives_the_rewards_where_it_is_asked_for(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(plan_of(tmp_path, TASK_SETS["toolcall"], group_judge=True), model=tiny_random_model)
    args = parse_args(plan.words())
    assert (args.group_rm, args.custom_rm_path) == (True, "agentrl.rollout.group_reward.group_reward")
    monkeypatch.setenv("OPENCLAW_JUDGE_BASE_URL", "")
    judge = plan.variables("http://pool")["OPENCLAW_JUDGE_CLASS"]
    assert ClassJudge(load_scorer(judge)).compares
    monkeypatch.setenv("OPENCLAW_JUDGE_BASE_URL", "https://host/v1")
    assert "OPENCLAW_JUDGE_CLASS" not in plan.variables("http://pool"), "a judge that somebody names goes first"


def test_evidence_tells_right_episodes_from_others_without_the_answer() -> None:
    tasks, scores = TASK_SETS["toolcall"], {True: set[float](), False: set[float]()}
    assert isinstance(tasks, TaskSet)
    for number in range(300):
        trace = tasks.trace(random.Random(number), tasks.task(tasks.families[number % 4], "train", number % 100), True)
        said = [
            [{"role": "assistant", "content": step.text}, {"role": "tool", "content": step.heard}]
            for step in trace.steps
        ]
        [score] = Evidence().score_group(trace.messages, [[message for step in said for message in step][:-1]], "")
        scores[trace.steps[-1].good].add(score)
    assert min(scores[True]) > max(scores[False])


def play(folder: Path, name: str, task: str, version: int, score: float, votes: list[int | None] | None = None) -> None:
    record = EpisodeRecord(folder, name)
    record.write("reset", task_id=task, seed=0, messages=[{"role": "user", "content": "Do it."}], tools=[])
    record.policy(
        [1, 2], [3, 4, 5], [-1.0] * 3, t=0, message={"role": "assistant"}, weight_spans=[[str(version), 0, 3]]
    )
    record.write("action", t=0, action={"tool": "bash", "arguments": {"command": f"run {name}"}})
    record.write("verdict", status="ok", score=score, detail="")
    if votes is not None:
        valid = [vote for vote in votes if vote is not None]
        record.write("judge", step=f"{name}:0", score=sum(valid) / len(valid) if valid else None, votes=votes)
    record.write("end", ending="done", outcome=1.0, turns=1)
    record.close()


def test_a_transcript_says_where_a_picture_was(tmp_path: Path) -> None:
    record = EpisodeRecord(tmp_path, "eval-0-0")
    asked = [{"type": "image", "number": 0}, {"type": "text", "text": "Task: click."}]
    record.write("reset", task_id="a", seed=0, messages=[{"role": "user", "content": asked}], tools=[])
    record.write("action", t=0, action={"tool": "computer_use", "arguments": {"action": "left_click"}})
    record.close()
    assert transcript(tmp_path, "eval-0-0") == "(picture)\nTask: click.\n  computer_use: left_click"


def test_figures_are_those_of_the_records(tmp_path: Path) -> None:
    tasks = TASK_SETS["terminal"]
    seen, unseen = (tasks.task(family, "heldout", 0) for family in (tasks.trained[0], tasks.unseen))
    play(tmp_path, "eval-0-0", seen, 1, 0.0)
    play(tmp_path, "eval-1-0", unseen, 1, 1.0)
    outcomes = Outcomes(tmp_path)
    outcomes.look()
    assert outcomes.evaluated(last=True) == [], "nothing is after training before there was any"
    for number, score in enumerate((0.0, 1.0, 1.0, 1.0)):
        play(tmp_path, f"train-{number}-0", seen, 1 + number // 2, score, [1, None, 1] if score else [-1, -1, 1])
    lost = EpisodeRecord(tmp_path, "train-9-0")
    lost.write("lost", reason="infra", message="gone")
    lost.close()
    EpisodeRecord(tmp_path, "train-10-0").close()  # has not ended
    play(tmp_path, "eval-2-0", seen, 3, 1.0)
    play(tmp_path, "eval-3-0", unseen, 3, 0.0)
    outcomes.look()
    outcomes.look()
    made = report.make(plan_of(tmp_path, tasks, process_reward=True), outcomes, 12.34)
    assert made.keys() >= KEYS
    assert (made["success_before"], made["success_after"], made["heldout_episodes"]) == (0.5, 0.5, 2)
    assert made["families"][tasks.trained[0]] == {"before": 0.0, "after": 1.0, "episodes": 1}
    assert made["families"][tasks.unseen] == {"before": 1.0, "after": 0.0, "episodes": 1}
    assert (made["episodes"], made["infrastructure_failures"], made["trained_tokens"]) == (4, 1, 12)
    assert made["curve"] == [0.5, 1.0]
    assert made["judge"]["votes"] == 12
    assert made["judge"]["valid_votes"] == 9
    assert made["judge"]["mean_score_solved"] == 1.0
    assert made["judge"]["mean_score_failed"] == pytest.approx(-1 / 3, abs=1e-4)
    assert made["example"]["task"] == seen
    assert "bash: run eval-0-0" in made["example"]["before"]
    assert "bash: run eval-2-0" in made["example"]["after"]
    json.dumps(made)
    report.save_plot(made, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_an_episode_that_a_continued_run_plays_again_counts_once(tmp_path: Path) -> None:
    tasks = TASK_SETS["terminal"]
    name = tasks.task(tasks.trained[0], "train", 0)
    for number, (sample, version, score) in enumerate(
        [
            ("train-0-0", 1, 1.0),
            ("train-0-1", 1, 1.0),
            ("train-1-2", 2, 0.0),
            ("train-1-2", 2, 1.0),
            ("train-1-3", 2, 0.0),
        ]
    ):
        play(tmp_path, f"{sample}-{number:08x}", name, version, score)
    for number, (sample, version) in enumerate([("eval-0-0", 1), ("eval-0-0", 1), ("eval-0-0", 3)]):
        play(tmp_path, f"{sample}-e{number:07x}", name, version, 1.0)
    outcomes = Outcomes(tmp_path)
    outcomes.look()
    assert [each.name for each in outcomes.trained] == [
        "train-0-0-00000000", "train-0-1-00000001", "train-1-2-00000003", "train-1-3-00000004"
    ]  # fmt: skip
    assert report.curve(outcomes.trained, 2) == [1.0, 0.5]
    assert [each.name for each in outcomes.evaluated(last=False)] == ["eval-0-0-e0000001"]
    assert [each.name for each in outcomes.evaluated(last=True)] == ["eval-0-0-e0000002"]


def test_the_panels_show_the_task_once() -> None:
    assert report.apart("Do it.\nNow.\n  bash: a", "Do it.\nNow.\n  bash: b\n  verdict: 1.0") == (
        "Do it.\nNow.",
        "  bash: a",
        "  bash: b\n  verdict: 1.0",
    )


def test_progress_says_what_is_done_in_one_format(tmp_path: Path) -> None:
    tasks = TASK_SETS["terminal"]
    plan = plan_of(tmp_path, tasks)
    name = tasks.task(tasks.trained[0], "train", 0)
    outcomes, said = Outcomes(tmp_path), io.StringIO()
    with agent_learning.Watch(plan, outcomes, Console(file=said, width=200)) as watch:
        watch.look()
        for number in range(plan.evaluated):
            play(tmp_path, f"eval-{number}-0", name, 1, float(number % 2))
        watch.look()
        for number, score in enumerate((1.0, 0.0, 1.0, 1.0)):
            play(tmp_path, f"train-{number}-0", name, 1 + number // 2, score)
        watch.look()
    lines = [line.split(" s  ")[1] for line in said.getvalue().splitlines()]
    assert lines == [
        f"plays {plan.evaluated} held-out episodes with the untrained agent",
        "before training 50% of the held-out episodes are solved",
        "update 1/2: 50% of its 2 episodes solved",
        "update 2/2: 100% of its 2 episodes solved; all alike, so there is nothing to learn from them",
        f"plays {plan.evaluated} held-out episodes with the trained agent",
    ]


def stopped(runs: Path, name: str, **options: Any) -> Path:
    """Write what a stopped run leaves."""
    folder = runs / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / LATEST).write_text("1")
    (folder / agent_learning.STATE).write_text(
        json.dumps(
            {
                each: getattr(agent_learning.parse(["--task", "terminal", "--run-dir", str(runs / "new")]), each)
                for each in agent_learning.OPTIONS
            }
            | options
        )
    )
    return folder


def test_a_stopped_run_goes_on_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_learning, "RUNS", tmp_path)
    stopped(tmp_path, "terminal-20260101-000000", seed=1)
    newest = stopped(tmp_path, "terminal-20260102-000000", seed=7, prompts=2)
    done = stopped(tmp_path, "terminal-20260103-000000")
    (done / "report.json").write_text("{}")
    options = agent_learning.parse(["--task", "terminal", "--resume", "--updates", "9"])
    assert (options.run_dir, options.seed, options.sizes.prompts, options.updates) == (newest, 7, 2, 9)
    plan = plan_of(tmp_path / "x", resumed=True)
    assert "--resume" in plan.words()
    assert "--resume" not in plan_of(tmp_path / "x").words()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no stopped run of terminal with a checkpoint in"),
        (["--run-dir", "."], "has no checkpoint of such a run; leave --resume out"),
        (["--run-dir", "OTHER"], "is a run of toolcall, not of terminal"),
    ],
)
def test_what_cannot_go_on_is_refused(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_learning, "RUNS", tmp_path)
    other = stopped(tmp_path, "toolcall-1", task="toolcall")
    with pytest.raises(SystemExit) as ended:
        agent_learning.parse(
            ["--task", "terminal", "--resume", *(str(other) if word == "OTHER" else word for word in words)]
        )
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_warm_start_is_measured_as_the_run_samples() -> None:
    assert TEMPERATURE == sampling.TEMPERATURE


@pytest.mark.parametrize("task", TASK_SETS)
def test_a_run_has_its_tasks_number_of_updates(task: str, tmp_path: Path) -> None:
    words = ["--task", task, "--run-dir", str(tmp_path)]
    assert agent_learning.parse(words).updates == UPDATES[task]
    assert agent_learning.parse([*words, "--updates", "3"]).updates == 3


@pytest.mark.parametrize("words", [["--task", "terminal"], []])
def test_help_tells_of_the_task_unless_a_script_named_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agent_learning.parse([*words, "--help"])
    assert ("--task" in capsys.readouterr().out) == (not words)


def test_no_episode_has_no_share() -> None:
    assert share([]) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--samples", "1"], "at least 2 episodes"),
        (["--updates", "0"], "not a number from 1 up"),
        (["--heldout", "21"], "a family has 20 held-out tasks"),
        (["--run-dir", "."], "is not empty"),
        (["--pictures"], "the task terminal has none; use it with gui"),
        (["--process-rewards"], "did you mean --process-reward?"),
        (["--group-judge"], "is for toolcall with at most 8 samples"),
    ],
)
def test_bad_options_are_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        agent_learning.parse(["--task", "terminal", *words])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_pictures_are_tasks_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "gui", "--pictures", "--run-dir", str(tmp_path)]
    assert agent_learning.parse(words).task == "gui_pictures"
    with pytest.raises(SystemExit):
        agent_learning.parse([*words, "--process-reward"])
    assert "has not learned to judge" in capsys.readouterr().err


def test_variables_of_launch_scripts_are_named_and_reach_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guide has them exported when a launch script names this one as the one for a machine without GPUs."""
    path = os.environ["PATH"]
    of_guide = {"MAX_STEPS": "50", "TOOLS_CONFIG": "./none.json", "LORA_ARGS": "--use-lora", "MODEL_PATH": "/m"}
    monkeypatch.setattr(os, "environ", {"PATH": path, **of_guide})
    assert agent_learning.main(["--task", "toolcall", "--dry-run"]) == 0
    names = "MAX_STEPS, TOOLS_CONFIG, LORA_ARGS, MODEL_PATH"
    assert capsys.readouterr().err == (
        f"warning: {names} are ignored: the tiny agent has its own model, tasks and sizes (run_tiny_cpu.sh --help)\n"
    )
    assert os.environ == {"PATH": path}
    assert agent_learning.main(["--task", "toolcall", "--dry-run"]) == 0
    assert capsys.readouterr().err == ""
