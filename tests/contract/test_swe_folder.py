"""Every name of the folder ``swe-rl/``, called as it is documented, and its scripts: the same from three folders, with a valid plan."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import eval_swe
import generate_with_swe
import generate_with_swe_remote as swe
import pytest
from generate_with_swe_remote import SweConfig
from swe_task import Task as SweTask

from agentrl.environment import Task
from agentrl.rollout import generate as loop
from agentrl.tasks.swe.generate import generate as instance
from agentrl.tasks.swe.source import InstanceSource
from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer
from lab.testkit.agent_rollouts import talk
from openclaw.ledger.records import Vote
from slime.args import Arguments
from slime.arguments.plugins import missing_plugins
from slime.rollout.sglang_rollout import GenerateState
from slime.utils import http_utils
from slime.utils.http_utils import post
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, PARAMETERS, staged
from tests.helpers.launch_plans import ROOT, Scripts, ended

pytestmark = pytest.mark.slow

FOLDER = ROOT / "swe-rl"
NAMES = (
    *("run_swe_rl", "run_swe_rl_8b_remote_2nodes", "run_swe_rl_8b_prm_5nodes_remote", "run_swe_rl_32b_remote_4nodes"),
    *("run_swe_rl_32b_remote_8nodes", "run_swe_rl_32b_remote_8nodes_resume"),
)
TRAINING = ("run_swe_rl.sh", *(f"scripts/{name}.sh" for name in NAMES))
SCRIPTS = Scripts(FOLDER)
words, planned = SCRIPTS.words, SCRIPTS.planned


@pytest.mark.parametrize("script", TRAINING)
def test_every_script_has_a_valid_plan_from_three_folders(script: str) -> None:
    assert words(script) == words(script, "slime") == words(script, "swe-rl")
    plan = SCRIPTS.plan(script)
    args = plan.args
    assert plan.environment["PYTHONPATH"].split(":")[0] == str(FOLDER)
    assert missing_plugins(args) == []
    module = "generate_with_swe_remote"
    assert (args.custom_generate_function_path, args.custom_rm_path) == (f"{module}.generate", f"{module}.reward_func")
    assert (args.input_key, args.metadata_key, args.reward_key) == ("text", "metadata", "score")
    assert (args.num_steps_per_rollout, args.rollout_max_response_len, args.kl_loss_type) == (1, 4096, "low_var_kl")
    assert (args.eps_clip, args.eps_clip_high, args.kl_loss_coef, args.rollout_shuffle) == (0.2, 0.28, 0.0, True)
    assert args.advantage_estimator == ("step_wise" if "prm" in script else "grpo")
    assert os.access(FOLDER / script, os.X_OK)


def test_placements_and_sizes() -> None:
    def of(name: str, *given: str) -> tuple[int, ...]:
        args = planned(f"scripts/{name}.sh", *given)
        placement = (args.actor_num_nodes, args.actor_num_gpus_per_node, args.rollout_num_gpus, args.prm_num_gpus)
        assert args.num_rollout is not None
        return (
            *placement,
            args.num_rollout,
            args.rollout_batch_size,
            args.n_samples_per_prompt,
            args.rollout_max_context_len or 0,
        )

    assert of("run_swe_rl") == (1, 4, 4, 0, 500, 8, 4, 32768)
    assert of("run_swe_rl_8b_remote_2nodes") == (2, 4, 8, 0, 500, 8, 4, 32768)
    assert of("run_swe_rl_8b_prm_5nodes_remote") == (4, 4, 16, 8, 500, 8, 4, 32768)
    assert of("run_swe_rl_32b_remote_4nodes") == (4, 4, 16, 0, 250, 4, 4, 32768)
    assert of("run_swe_rl_32b_remote_8nodes") == (8, 4, 32, 0, 2000, 8, 8, 16384)
    assert of("run_swe_rl", "DEBUG_MODE=1")[4:7] == (2, 8, 2)
    assert of("run_swe_rl", "NUM_ROLLOUT=7", "BATCH_SIZE=3", "N_SAMPLES=5")[4:7] == (7, 3, 5)


def test_variables_of_older_guides() -> None:
    given = ("HF_CKPT=/m/a", "REF_LOAD=/m/b", "SAVE_CKPT=/m/c", "PROMPT_DATA=/m/d.jsonl", "EVAL_INTERVAL=4")
    args = planned("run_swe_rl.sh", *given)
    assert (args.hf_checkpoint, args.ref_load, args.save, args.prompt_data) == ("/m/a", "/m/b", "/m/c", "/m/d.jsonl")
    assert (args.eval_interval, args.eval_reward_key, (args.eval_prompt_data or [""])[0]) == (4, "acc", "swe")
    judged = planned(
        "scripts/run_swe_rl_8b_prm_5nodes_remote.sh", "PRM_MODEL_PATH=/m/j", "PRM_M=5", "PRM_STEP_COEF=0.5"
    )
    assert (judged.prm_model_path, judged.prm_m, judged.prm_step_coef) == ("/m/j", 5, 0.5)
    assert planned("scripts/run_swe_rl_32b_remote_8nodes_resume.sh", "RESUME_LOAD=/m/r").load == "/m/r"
    resumed = planned("scripts/run_swe_rl_32b_remote_8nodes_resume.sh")
    assert resumed.load == resumed.save == str(ROOT / "runs/run_swe_rl_32b_remote_8nodes/checkpoints")
    variables = SweTask.from_env(
        {"SWE_MAX_CONCURRENT": "3", "ENV_SERVER_URL": "http://h:1", "SWE_ROLLOUT_TIMEOUT": "60"}
    )
    assert (variables.slots, variables.server_url, variables.seconds) == (3, "http://h:1", 60.0)
    assert (
        InstanceSource.from_env({"MAX_STEPS": "9"}).step_limit
        == InstanceSource.from_env({"STEP_LIMIT": "9"}).step_limit
        == 9
    )


def test_another_kind_of_environment_is_refused() -> None:
    code, printed = ended(FOLDER / "run_swe_rl.sh", "--dry-run", ENV_TYPE="gui")
    assert (code, "ENV_TYPE=gui: this script has swe" in printed) == (2, True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"SWE_BENCHMARK": "nonsense"}, "SWE_BENCHMARK='nonsense' is not a choice"),
        ({"SWE_BENCHMARK": "swe-bench-verified"}, "SWE_BENCHMARK=swe-bench-verified is for evaluation only"),
        (
            {"SWE_BENCHMARK": "swe-bench-lite"},
            "has the data set princeton-nlp/SWE-bench_Lite; or play generated instances",
        ),
        ({"SANDBOX": "nonsense"}, "SANDBOX='nonsense' is not a choice"),
    ],
)
def test_a_plan_with_wrong_variables_is_refused(given: dict[str, str], says: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, printed = ended(FOLDER / "run_swe_rl.sh", "--dry-run", **given, RUN_DIR=str(run))
    assert (code, "the plan is valid" in printed) == (2, False)
    assert says in printed
    assert not run.exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"NODE_RANK": "1"}, "set NNODES"),
        ({"NNODES": "2", "NODE_RANK": "1"}, "needs MASTER_ADDR"),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "10.0.0.1"}, "machines 0 to 1"),
    ],
)
def test_a_machine_that_cannot_join_is_refused(given: dict[str, str], says: str) -> None:
    code, printed = ended(FOLDER / "run_swe_rl.sh", "--dry-run", **given)
    assert code == 2
    assert says in printed


def test_rows_that_are_not_there_are_named_before_a_start(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    code, printed = ended(FOLDER / "run_swe_rl.sh", "--dry-run", PROMPT_DATA=str(rows))
    assert code == 0
    assert f"not found on this machine: --prompt-data {rows}: no such file" in printed
    code, printed = ended(FOLDER / "run_swe_rl.sh", "--dry-run")  # the run writes them
    assert (code, "--prompt-data" in printed) == (0, False)


def test_which_variables_are_possible(tmp_path: Path) -> None:
    def check(**given: str) -> None:
        SweTask.from_env(given).check(given, trains=True)

    pool = {"SWE_ENV_SERVER_URL": "http://h:1"}
    check(EVAL_INTERVAL="5")
    check(**pool, SANDBOX="docker")
    for given, says in (
        ({"SANDBOX": "docker"}, "SANDBOX=docker, SANDBOX_IMAGE: docker sandboxes need an image"),
        ({"SANDBOX_IMAGE": "x"}, "bubblewrap sandboxes have no image"),
        ({"SWE_BENCHMARK": "local", "SWE_BENCH_PATH": str(tmp_path)}, "would not be read"),
        ({"SWE_BENCH_PATH": str(tmp_path)}, "is missing; write it with"),
        ({"SWE_BENCHMARK": "r2e-gym"}, "r2e-gym cannot be imported"),
        ({**pool, "PROMPT_DATA": "rows.jsonl", "SWE_BENCHMARK": "swe-bench-verified"}, "is for evaluation only"),
    ):
        with pytest.raises(ConfigError, match=says):
            check(**given)


@pytest.mark.parametrize("words", ["run_swe_agent.sh --served", "eval/run_eval_swe.sh"])
def test_the_agent_shows_its_plan_from_three_folders(words: str) -> None:
    script, *served = words.split()
    for folder in ("", "slime", "swe-rl"):
        given = [*served, "--benchmark", "local", "--max-instances", "3", "--dry-run"]
        code, printed = ended(FOLDER / script, *given, folder=ROOT / folder)
        assert code == 0
        assert printed.startswith("3 instances of local, 20 commands each, bubblewrap")


def test_a_benchmark_for_evaluation_is_trained_on_where_it_is_named(tmp_path: Path) -> None:
    """Then it is not evaluated on as well, and the plan says what its scores are worth."""
    rows = {**instance("swe/pages/train/1").row(), "instance_id": "lite", "benchmark": "swe-bench-lite"}
    (tmp_path / "swe-bench-lite.jsonl").write_text(json.dumps(rows) + "\n")
    there = {"SWE_BENCH_PATH": str(tmp_path)}
    with pytest.raises(ConfigError, match="has no instance for train"):
        SweTask.from_env(there).check(there, trains=True)
    named = {**there, "SWE_BENCHMARK": "swe-bench-lite"}
    SweTask.from_env(named).check(named, trains=True)
    SweTask.from_env(named).check(named, trains=False)
    assert InstanceSource.from_env(named).ids("train") == InstanceSource.from_env(named).ids("heldout") == ["lite"]
    plan = SweTask.from_env(named).summary(named, trains=True)
    assert (
        plan["caution"] == "after training on swe-bench-lite its scores measure nothing; evaluate on another benchmark"
    )
    assert "caution" not in SweTask.from_env(named).summary(named, trains=False)
    with pytest.raises(ConfigError, match="EVAL_INTERVAL=5: SWE_BENCHMARK=swe-bench-lite is trained on"):
        SweTask.from_env({**named, "EVAL_INTERVAL": "5"}).check(named, trains=True)


def test_the_script_of_an_agent_takes_the_benchmark_as_a_flag() -> None:
    for words, status, says in (
        (["--benchmark", "easy"], 0, "tasks    easy; environments from this run"),
        (
            ["--benchmark", "swe-bench-lite"],
            2,
            "import swe-bench-lite ROWS FOLDER, where ROWS has the data set princeton-nlp/",
        ),
        (["--benchmark=nonsense"], 2, "SWE_BENCHMARK='nonsense' is not a choice"),
    ):
        code, printed = ended(FOLDER / "run_swe_agent.sh", *words, "--dry-run", SWE_BENCHMARK="local")  # a flag wins
        assert (code, says in printed) == (status, True), printed


def test_a_benchmark_that_is_not_here_says_how_to_import_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert eval_swe.main(["--benchmark", "swe-bench-lite", "--data", str(tmp_path), "--dry-run"]) == 2
    assert "python -m agentrl.tasks.swe import swe-bench-lite" in capsys.readouterr().err


def test_a_folder_of_instances_is_read_without_a_benchmark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWE_BENCHMARK", "SWE_BENCH_PATH", "SWE_STEP_LIMIT", "STEP_LIMIT", "MAX_STEPS"):
        monkeypatch.delenv(name, raising=False)
    rows = {**instance("swe/pages/train/1").row(), "instance_id": "mine"}
    assert eval_swe.main(["--data", str(tmp_path), "--dry-run"]) == 2
    assert "*.jsonl is missing" in capsys.readouterr().err
    (tmp_path / "swe-gym.jsonl").write_text(json.dumps(rows) + "\n")
    assert eval_swe.main(["--data", str(tmp_path), "--step-limit", "7", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"1 instances of {tmp_path}, 7 commands each")
    monkeypatch.setenv("SWE_BENCH_PATH", str(tmp_path))
    assert eval_swe.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"1 instances of {tmp_path}, 20 commands each")
    for benchmark, says in (
        ("local", "would not be read"),
        ("easy", "would not be read"),
        ("r2e-gym", "r2e-gym cannot be imported"),
        ("nonsense", "is not a choice"),
    ):
        assert eval_swe.main(["--benchmark", benchmark, "--dry-run"]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--max-instances", "--max-concurrent", "--step-limit", "--max-tokens", "--context-length"]
)
def test_a_number_that_would_play_nothing_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        eval_swe.main([flag, "0", "--dry-run"])
    assert (ended.value.code, f"{flag}: '0' is not a whole number from 1" in capsys.readouterr().err) == (2, True)


async def test_what_the_folder_imports_is_called_as_it_is_documented(
    tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"ok": True})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(http_utils, "_http_client", client)
    told = {"image": "i", "instance_id": "x"}
    assert await post("http://pool/allocate", told, max_retries=1, headers={"X-SMG-Routing-Key": "7"}) == {"ok": True}
    assert [(json.loads(each.content), each.headers["X-SMG-Routing-Key"]) for each in asked] == [(told, "7")]
    assert load_tokenizer(str(tiny_random_model)).chat_template
    assert generate_with_swe.generate is swe.generate
    assert generate_with_swe.reward_func is swe.reward_func
    assert [*inspect.signature(swe.generate).parameters] == ["args", "sample", "sampling_params", "evaluation"]


class Judge:
    """One good vote for each step."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def votes(self, kind: Any, question: Any, count: int) -> list[Vote]:
        self.asked.append(question.prompt[-1]["content"])
        return [Vote(kind, "", 1, None, 0.1)] * count


async def test_generate_returns_rewards_in_parts_and_drops_the_solution(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_POOL_URL", "http://staged")
    judge = Judge()
    monkeypatch.setattr(loop, "judge_of", lambda args: judge)
    task = Task("guess", {"steps": 2, "score": 1.0})
    replies = [f"one {'x' * 300}{END}", f"two{END}"]
    async with staged(talk(task), replies, tmp_path, tiny_random_model, monkeypatch) as on:
        args = on.args.changed(prm_step_coef=0.5)
        state = GenerateState(on.args)
        assert GenerateState(args) is state, "the first args win"
        assert (state.tokenizer.decode(state.tokenizer("on").input_ids), state.args) == ("on", on.args)
        assert state.sampling_params["max_new_tokens"] == args.rollout_max_response_len
        for name, value in {"swe_prm_max_problem_len": 100, "swe_prm_max_history_output_len": 100}.items():
            setattr(args, name, value)
        row = instance("swe/pages/train/1").row()
        sample = on.sample(prompt="?", metadata={"instance": {**row, "instance_id": "guess"}, "data_source": "x"})
        (found,) = await swe.generate(args, sample, dict(PARAMETERS))  # pyright: ignore[reportGeneralTypeIssues]
        assert found.reward == {"score": 1.5, "acc": 1.0, "outcome": 1.0, "step_score": 1.0}
        assert await swe.reward_func(args, found) == found.reward
        assert await swe.reward_func(args, [found, found]) == [found.reward] * 2
        told = json.dumps([event for event in on.record().events], default=str) + repr(found.metadata)
    assert row["patch"] not in told
    assert "patch" not in found.metadata
    assert len(judge.asked) == 1, "the step that submits is not judged"
    with pytest.raises(ConfigError, match="the sample has no reward"):
        await swe.reward_func(Arguments(), Sample())
    with pytest.raises(ConfigError, match="names no instance"):
        swe.task_id(Sample(metadata={}))


def test_the_custom_config_reaches_the_episode() -> None:
    variables = SweTask.from_env({})
    usual = SweConfig().settings(variables, 20, {})
    assert (usual.judge_steps, usual.judge_goal, usual.judge_output, usual.judge_past) == (8, 8000, 4000, 1000)
    assert (usual.judge_last, usual.context, usual.context_oldest) == (False, "drop_middle", 0.3)
    assert (usual.max_turns, usual.episode_seconds, usual.reward) == (30, 1800.0, "binary")
    args = Arguments()
    told = {
        "swe_prm_max_history_steps": 2,
        "swe_prm_max_problem_len": 500,
        "swe_prm_max_output_len": 600,
        "swe_prm_max_history_output_len": 700,
        "swe_prm_skip_submit": False,
        "swe_cm_head_ratio": 0.5,
    }
    for name, value in told.items():
        setattr(args, name, value)
    changed = SweConfig.of(args).settings(variables, 5, {"AGENTRL_JUDGE_STEPS": "7", "AGENTRL_CONTEXT": "none"})
    assert (changed.judge_steps, changed.judge_goal, changed.judge_output, changed.judge_past) == (2, 500, 600, 700)
    assert (changed.judge_last, changed.context, changed.context_oldest, changed.max_turns) == (True, "none", 0.5, 15)
    setattr(args, "prm_max_concurrency", 4)  # noqa: B010
    with pytest.raises(ConfigError, match="prm_max_concurrency has no effect"):
        SweConfig.of(args)
