"""Settings of other guides: each works, changes nothing and says so, or one line says what to do instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Config

from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.__main__ import main
from openclaw.launch.guides import KEYS, OF_ENVIRONMENTS, GuideFile, take_in_guide, words_of_texts
from openclaw.launch.methods import find_method
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import GPU8
from openclaw.launch.resolve import make_plan
from openclaw.launch.variables import LAUNCH_VARIABLES
from slime.arguments import build_parser
from slime.arguments.dry_run import of_machine
from tests.helpers.checkpoints import config_only
from tests.helpers.launch_plans import task_plan

CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
TRAINING = """
model: {name: my-policy, checkpoint_path: MODEL, tokenizer_path: MODEL}
training:
  method: combine
  batch_size: 8
  gradient_accumulation_steps: 1
  learning_rate: 3e-6
  warmup_steps: 5
  max_steps: 40
  ppo_clip_ratio: 0.1
  binary_weight: 0.5
  opd_weight: 2.0
rollout: {num_workers: 1, session_aware: true}
evaluation: {judge_model: MODEL, majority_voting: true, num_judges: 5, consensus_threshold: 0.5}
"""
JUDGE_API = {"OPENCLAW_JUDGE_BASE_URL": "https://judge.example/v1"}


def plan(*words: str, method: str = "combine", model: str | None = None, **environment: str) -> Plan:
    return make_plan(Recipe(method, model, GPU8), words, environment)


def with_file(file: Path, *words: str, method: str = "combine", **environment: str) -> Plan:
    return plan("--config", str(file), *words, method=method, **environment)


def written(folder: Path, text: str) -> Path:
    file = folder / "training_config.yaml"
    file.write_text(text)
    return file


def wrong(plan: Plan) -> list[str]:
    """What is wrong with a plan on every machine."""
    return [problem for problem in plan.problems if not of_machine(problem)]


def test_a_training_config_is_a_plan(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    file = written(tmp_path, TRAINING.replace("MODEL", str(model)))
    made = with_file(file)
    args = made.args
    assert made.problems == ()
    assert (args.hf_checkpoint, args.prm_model_path, args.rollout_batch_size) == (str(model), str(model), 8)
    assert (args.lr, args.lr_warmup_iters, args.num_rollout, args.eps_clip, args.prm_m) == (3e-6, 5, 40, 0.1, 5)
    assert made.own == Config(w_rl=0.5, w_opd=2.0)
    assert (made.runtime.served_model_name, made.runtime.tokenizer) == ("my-policy", str(model))
    assert made.runtime.majority_vote_threshold == 0.5
    assert with_file(file, "--lr", "1e-7", BATCH_SIZE="4").args.rollout_batch_size == 4
    assert with_file(file, "--lr", "1e-7").args.lr == 1e-7
    other = config_only(tmp_path / "other")
    assert with_file(file, CKPT_PATH=str(other), TOKENIZER_PATH=str(other)).args.hf_checkpoint == str(other)


def test_a_rollout_config_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "rollout.json"
    reward = {"type": "next_state_feedback", "aggregation": "majority", "num_samples": 3}
    sides = {"main_line": ["user", "assistant"], "side": ["system", "tool"]}
    config = {"collection_mode": "async", "max_concurrent_sessions": 7, "session_timeout": 60}
    config |= {"trajectory_format": "multi_turn", "message_classification": sides, "reward_computation": reward}
    file.write_text(json.dumps({"rollout_config": config}))
    made = with_file(file)
    runtime = made.runtime
    assert (runtime.prm_m, runtime.max_sessions, runtime.session_idle_seconds) == (3, 7, 60.0)
    assert [note.partition(" has no effect: ")[0] for note in made.notes] == ["rollout_config.message_classification"]


def everything(text: str) -> str:
    """A template with the keys in its comments, but those that name folders."""
    return re.sub(r"^( *)# (\w+: (?!models/))", r"\1\2", text, flags=re.MULTILINE)


def test_the_template_is_the_defaults_and_has_every_key(repository: Path, tmp_path: Path) -> None:
    template = repository / "config" / "training_config.yaml"
    made, usual = with_file(template), plan(model="qwen3-4B")
    assert (wrong(made), made.notes) == ([], ())
    changed = {name for name, value in vars(made.args).items() if value != getattr(usual.args, name)}
    assert changed <= {"num_rollout", "config"}
    assert made.runtime.served_model_name == "qwen3-4b"
    whole = with_file(written(tmp_path, everything(template.read_text())), "--prm-m", "3")
    assert wrong(whole) == []
    assert [note.split()[0] for note in whole.notes] == [
        *("training.gradient_accumulation_steps", "training.value_clip_ratio", "training.gae_lambda"),
        *("rollout.num_workers", "rollout.max_turns", "rollout.parallel_envs", "--eval-interval"),
    ]
    text = template.read_text()
    keys = {
        key.rpartition(".")[2] for key in (*KEYS, *Config.guide_keys, "training.method") if "rollout_config" not in key
    }
    assert [key for key in keys if f" {key}: " not in text] == []
    assert wrong(with_file(repository / "config" / "rollout_config.json")) == []


def test_both_files_of_a_guide_work_together(repository: Path) -> None:
    files = [repository / "config" / name for name in ("training_config.yaml", "rollout_config.json")]
    words = [word for file in files for word in ("--config", str(file))]
    assert plan(*words).runtime.served_model_name == "qwen3-4b", "of the first"
    assert plan(*words).runtime.max_sessions == with_file(files[1]).runtime.max_sessions == 10_000
    assert plan(*words).args.rollout_batch_size == with_file(files[0]).args.rollout_batch_size


def test_two_files_that_differ_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "rollout.json"
    other.write_text(json.dumps({"rollout_config": {"reward_computation": {"num_samples": 3}}}))
    file = written(tmp_path, "evaluation: {num_judges: 5}")
    with pytest.raises(ConfigError, match=r"rollout.json: .*num_samples: 3 contradicts another key for PRM_M"):
        plan("--config", str(file), "--config", str(other))


def test_the_models_of_variables_wins_over_the_name_in_a_file(repository: Path) -> None:
    file = repository / "config" / "training_config.yaml"
    tiny = str(repository / "lab" / "tiny_models" / "shipped")
    assert wrong(with_file(file, HF_CKPT=tiny, PRM_MODEL_PATH=tiny, CONTEXT_LENGTH="2048", MAX_RESPONSE_LENGTH="512",
                           PRM_MAX_NEW_TOKENS="512")) == []  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), [("qwen3.5-4b", "qwen3.5-4B"), ("Qwen/Qwen3-8B", "qwen3-8B")])
def test_a_known_models_name_chooses_its_shape(name: str, shape: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"model: {{name: {name}}}")
    made = make_plan(Recipe("combine", "qwen3-4B", GPU8), ["--config", str(file)], {})
    assert (made.recipe.model, made.runtime.served_model_name) == (shape, name)
    assert made.args.hf_checkpoint.endswith(f"models/{shape.replace('qwen', 'Qwen')}")
    assert wrong(made) == []


def test_a_judge_that_is_no_folder_is_one_behind_an_api(tmp_path: Path) -> None:
    file = written(tmp_path, "training: {hint_extraction_model: gpt-4}\nevaluation: {judge_model: gpt-4}")
    made = with_file(file, **JUDGE_API)
    assert (made.runtime.judge_model, made.args.prm_enable, wrong(made)) == ("gpt-4", False, [])
    assert with_file(file, OPENCLAW_JUDGE_MODEL="other", **JUDGE_API).runtime.judge_model == "other"
    with pytest.raises(ConfigError) as raised:
        with_file(file)
    line = str(raised.value)
    assert line.count("\n") == 0
    assert "training.hint_extraction_model, evaluation.judge_model: there is no folder gpt-4" in line
    assert "OPENCLAW_JUDGE_BASE_URL=https://HOST/v1 and OPENCLAW_JUDGE_API_KEY" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("training: {method: opd}", "run bash openclaw-opd/run_*.sh"),
        ("training: {teacher_temperature: 0.7}", "its own distribution"),
        ("rollout: {session_aware: false}", "is always so here"),
        ("evaluation: {majority_voting: false}", "for one vote write num_judges: 1"),
        ("rollout_config: {collection_mode: single}", "is always so here"),
        ("rollout_config: {reward_computation: {type: continuous}}", "the script's method decides"),
        ("rollout_config: {reward_computation: {aggregation: mean}}", "is always so here"),
        ("rollout_config: {trajectory_format: x}", "openclaw-rl inspect"),
        ("training: {learning_rat: 1}", "training.learning_rat: unknown key; did you mean training.learning_rate?"),
        (
            "model: {checkpoint_path: /a}\nevaluation: {judge_model: /a}\ntraining: {hint_extraction_model: /b}",
            "keep one of them",
        ),
    ],
)
def test_a_key_that_cannot_be_honoured_says_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        take_in_guide(GuideFile(), str(written(tmp_path, text)), find_method("combine"), {})
    assert says in str(raised.value)
    assert str(raised.value).count("\n") == 0


@pytest.mark.parametrize(
    ("text", "variables", "flags", "notes"),
    [
        ("training: {hint_extraction_model: /m}", {"PRM_MODEL_PATH": "/m"}, [], []),
        ("evaluation: {judge_model: /m}", {"PRM_MODEL_PATH": "/m"}, [], []),
        ("evaluation: {eval_frequency: 5}", {}, ["--eval-interval", "5"], []),
        ("training: {method: combine, warmup_steps: 5}", {}, ["--lr-warmup-iters", "5"], []),
        ("training: {teacher_temperature: 1.0}", {}, [], []),
        ("rollout_config: {reward_computation: {type: binary, num_samples: 3}}", {"PRM_M": "3"}, [], []),
        ("training: {gradient_accumulation_steps: 4}", {}, [], ["MAX_TOKENS_PER_GPU bounds"]),
        ("training: {gae_lambda: 0.95}", {}, [], ["no method here has a critic"]),
        ("training: {value_clip_ratio: 0.2}", {}, [], ["no method here has a critic"]),
        ("rollout: {num_workers: 4}", {}, [], ["one gateway serves all"]),
        ("rollout: {max_turns: 5}", {}, [], ["the client of a conversation decides"]),
        ("rollout: {parallel_envs: 5}", {}, [], ["the client of a conversation decides"]),
    ],
)
def test_what_a_key_sets(
    tmp_path: Path, text: str, variables: dict[str, str], flags: list[str], notes: list[str]
) -> None:
    found = GuideFile()
    assert take_in_guide(found, str(written(tmp_path, text)), find_method("combine"), {})
    assert (found.variables, found.flags, len(found.notes)) == (variables, flags, len(notes))
    assert all(says in note for says, note in zip(notes, found.notes, strict=True))


def test_a_key_of_another_method_has_no_effect(tmp_path: Path) -> None:
    made = with_file(written(tmp_path, "training: {method: binary, opd_weight: 0.5}"), method="rl")
    assert made.notes == ("training.opd_weight has no effect: it is for --method combine",)


def test_every_key_names_a_variable_or_a_flag_that_exists() -> None:
    variables = {name for variable in (*VARIABLES, *LAUNCH_VARIABLES, *Config.variables()) for name in variable.names}
    flags = set(build_parser()._option_string_actions)
    meanings: list[Any] = [
        meaning for meaning in (*KEYS.values(), *Config.guide_keys.values()) if isinstance(meaning, str)
    ]
    assert [meaning for meaning in meanings if meaning not in variables | flags] == []


def test_a_task_says_that_the_file_is_for_methods(tmp_path: Path) -> None:
    file = written(tmp_path, TRAINING)
    with pytest.raises(ConfigError, match="a file for methods on conversations; a task has variables instead"):
        task_plan(["--task", "terminal", "--config", str(file)])


# --- variables ---


def test_the_address_of_one_machine_changes_nothing() -> None:
    one = {"MASTER_ADDR": "localhost", "MASTER_PORT": "6000", "NNODES": "1", "NODE_RANK": "0", "GPUS_PER_NODE": "8"}
    made = plan(method="rl", **one)
    assert wrong(made) == []
    assert made.notes == ("MASTER_ADDR=localhost MASTER_PORT=6000 has no effect on one machine, which no other joins",)
    assert made.command == plan(method="rl").command
    assert plan(method="rl", MASTER_ADDR="10.0.0.1", NNODES="1").command == made.command
    assert task_plan(["--task", "terminal"], **one).notes == made.notes


@pytest.mark.parametrize(
    ("name", "value"), [("NODE_RANK", "7"), ("MASTER_ADDR", "10.0.0.1"), ("NODE_ADDR", "10.0.0.2")]
)
def test_a_variable_of_several_machines_without_their_number_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value} is for several machines; set NNODES"):
        plan(**{name: value})


def test_lists_of_two_roles_leave_the_judge_a_part_of_those_that_serve() -> None:
    lists = {"TRAIN_GPUS": "0,1,2,3", "ROLLOUT_GPUS": "4,5,6,7"}
    made = plan(**lists)
    assert (made.gpu_ids, wrong(made)) == (tuple(range(8)), [])
    assert [count for _, count in made.roles if count] == [4, 2, 2]
    assert made.notes == ("the judge gets GPU 6,7, the last of ROLLOUT_GPUS, because PRM_GPUS is unset",)
    alone = plan(TRAIN_GPUS="0,1", ROLLOUT_GPUS="2,3,4", TP="1", PRM_TP="1")
    assert [count for _, count in alone.roles if count] == [2, 2, 1]
    assert [count for _, count in plan(method="sdpo", **lists).roles if count] == [4, 4]
    assert [count for _, count in plan(**lists, OPENCLAW_JUDGE_MODEL="m", **JUDGE_API).roles if count] == [4, 4]
    with pytest.raises(ConfigError, match=r"ROLLOUT_GPUS=4,5 has no GPU to spare for the judge with TP=2 PRM_TP=2"):
        plan(TRAIN_GPUS="0,1,2,3", ROLLOUT_GPUS="4,5")
    with pytest.raises(ConfigError, match="all three"):
        plan(**lists, PRM_GPUS="2")


def test_a_checkpoint_and_its_tokenizer(tmp_path: Path) -> None:
    model, other = config_only(tmp_path / "model"), tmp_path / "tokenizer"
    other.mkdir()
    for folder in (model, other):
        (folder / "tokenizer.json").write_text("{}")
    same = plan(CKPT_PATH=str(model), TOKENIZER_PATH=str(other))
    assert (same.args.hf_checkpoint, same.problems) == (str(model), ())
    (other / "tokenizer.json").write_text('{"model": 1}')
    (problem,) = plan(CKPT_PATH=str(model), TOKENIZER_PATH=str(other)).problems
    assert f"TOKENIZER_PATH={other} is not the tokenizer of HF_CKPT={model}" in problem
    (problem,) = plan(CKPT_PATH=str(model), TOKENIZER_PATH=str(tmp_path / "none")).problems
    assert of_machine(problem)


def test_a_checkpoint_to_start_from(tmp_path: Path) -> None:
    assert plan(RESUME_CKPT=str(tmp_path)).args.load == str(tmp_path)
    assert task_plan(["--task", "swe"], RESUME_LOAD=str(tmp_path)).args.load == str(tmp_path)
    assert plan("--resume-from-checkpoint", "/a", RESUME_CKPT=str(tmp_path)).args.load == "/a"


def test_the_log_level_by_either_name() -> None:
    for environment in ({"OPENCLAW_DEBUG": "true"}, {"OPENCLAW_DEBUG": "1", "ROLLOUT_LOG_LEVEL": "DEBUG"}):
        assert RuntimeConfig.from_env(environment).log_level == "DEBUG"
    assert RuntimeConfig.from_env({"OPENCLAW_DEBUG": "0"}).log_level == "INFO"
    assert plan(OPENCLAW_DEBUG="1").runtime_sources["ROLLOUT_LOG_LEVEL"] == "OPENCLAW_DEBUG"
    with pytest.raises(ConfigError, match="contradicts ROLLOUT_LOG_LEVEL=WARNING"):
        RuntimeConfig.from_env({"OPENCLAW_DEBUG": "1", "ROLLOUT_LOG_LEVEL": "WARNING"})


def test_a_key_alone_sends_nothing() -> None:
    key = {"WANDB_API_KEY": "s3cret"}
    assert plan(**key).notes == ("WANDB_API_KEY alone sends nothing to Weights & Biases; add USE_WANDB=1",)
    for others in ({"USE_WANDB": "1"}, {"USE_WANDB": "0"}):
        assert plan(**key, **others).notes == ()
    assert plan("--use-wandb", **key).notes == ()


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, **environment: str) -> str:
    """The plan that a dry run prints."""
    monkeypatch.setattr(os, "environ", CLEAN | environment)
    main([*words, "--dry-run"])
    return capsys.readouterr().out


def test_a_variable_that_means_nothing_here_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [*OF_ENVIRONMENTS, "TINKER_API_KEY", "TINKER_PROJECT_ID", "TINKER_ENDPOINT", "FIREWORKS_API_KEY"]
    names += ["GRAD_ACCUM_STEPS", "VALUE_CLIP", "OPENCLAW_RECORD_FILE"]
    lines = said(monkeypatch, capsys, "--method", "rl", **dict.fromkeys(names, "7"))
    assert [lines.count(f"warning: {name} is set, but it is ignored; ") for name in names] == [1] * len(names)
    task = said(monkeypatch, capsys, "--task", "terminal", DATA_PATH="/x", PARALLEL_ENVS="7")
    assert "warning: DATA_PATH is set, but it is ignored; the rows of a task are those of PROMPT_DATA" in task
    assert "PARALLEL_ENVS is set, but" not in task
    of_gateway = {"OPENCLAW_DEBUG": "true", "MAJORITY_VOTE_THRESHOLD": "0.6", "OPENCLAW_PORT": "8000"}
    of_both = {"PRM_M": "5", "OPENCLAW_API_KEY": "k", "HOST": "me"}
    task = said(monkeypatch, capsys, "--task", "terminal", "--step-judge", **of_gateway, **of_both)
    for name in of_gateway:
        assert f"warning: {name} is set, but it is ignored; the gateway and the judge of conversations read it" in task
    assert not any(f"{name} is set, but" in task for name in of_both)


def test_the_ledger_cannot_be_switched_off() -> None:
    assert plan(OPENCLAW_RECORD_ENABLED="true").notes == ()
    with pytest.raises(ConfigError, match=r"OPENCLAW_RECORD_ENABLED=0: the ledger .* records every turn"):
        plan(OPENCLAW_RECORD_ENABLED="0")


def test_variables_of_environments_are_for_folders_that_have_some(tmp_path: Path) -> None:
    folder = tmp_path / "my-method"
    folder.mkdir()
    made = plan(method=str(folder), PARALLEL_ENVS="4", HF_CKPT=str(config_only(tmp_path / "model")))
    assert made.environment["PARALLEL_ENVS"] == "4"


def test_a_number_of_votes_by_any_name() -> None:
    for name in ("PRM_M", "MAJORITY_VOTE_N"):
        assert plan(method="rl", **{name: "7"}).args.prm_m == 7
    assert plan("--majority-vote-n", "7", method="rl").args.prm_m == 7


# --- flags ---


def test_texts_of_flags_are_split_as_a_shell_does() -> None:
    texts = {
        "CKPT_ARGS": "--save-interval 100 --save-dir '/a b'",
        "ROLLOUT_ARGS": "\n    --rollout-batch-size 32 \\\n    --max-turns 10\n",
        "REWARD_ARGS": "\\\n--reward-aggregation majority\\\n",
        "LORA_ARGS": "",
    }
    assert words_of_texts(texts) == [
        *("--save-interval", "100", "--save-dir", "/a b", "--rollout-batch-size", "32", "--max-turns", "10"),
        *("--reward-aggregation", "majority"),
    ]
    for text, says in (("--save '/a", "No closing quotation"), ("100", "begins with no flag")):
        with pytest.raises(ConfigError, match=f"CKPT_ARGS=.*{says}"):
            words_of_texts({"CKPT_ARGS": text})


def test_texts_of_flags_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "CKPT_ARGS": "--save-interval 100 --save-dir ./checkpoints",
        "ROLLOUT_ARGS": "--rollout-batch-size 64 --num-rollouts-per-prompt 4",
        "OPTIMIZER_ARGS": "--lr 5e-5 --num-epochs 1",
        "LORA_ARGS": "--lora-rank 64 --lora-alpha 128 --lora-dropout 0.05",
    }
    lines = said(monkeypatch, capsys, "--method", "rl", "--lr", "2e-4", "--verbose", **texts)
    assert "note: --num-rollouts-per-prompt 4 has no effect: a person gets one reply to a message" in lines
    assert "note: --epochs 1 has no effect: a live run trains each conversation once" in lines
    assert re.search(r"USE_LORA +True +profile", lines)
    custom = lines.partition("  CUSTOM_ARGS\n")[2].partition("command:")[0].split()
    assert custom[:4] == ["--save-interval", "100", "--save", "./checkpoints"]
    assert custom[-8:] == [*texts["LORA_ARGS"].split(), "--lr", "2e-4"]
    assert "dry run: the plan is valid" in lines


def test_a_script_may_set_flags_as_an_array_or_as_a_text(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "mine.sh"
    lines = [f'source "{repository}/scripts/launch.sh"', 'OPTIMIZER_ARGS="--lr 7e-6 \\', '  --seed 5"',
             "LORA_ARGS=(--lora-rank 4)", 'launch --method rl "$@"']  # fmt: skip
    script.write_text("\n".join(lines))
    command = ["bash", str(script), "--dry-run", "--verbose", "--seed", "6"]
    output = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=False).stdout
    custom = output.partition("  CUSTOM_ARGS\n")[2].partition("command:")[0].split()
    assert custom == ["--lr", "7e-6", "--seed", "5", "--lora-rank", "4", "--seed", "6"]


def test_a_mistyped_name_of_an_array_is_found(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "mine.sh"
    script.write_text(f'source "{repository}/scripts/launch.sh"\nOPTIMISER_ARGS=(--lr 7e-6)\nlaunch --method rl "$@"\n')
    done = subprocess.run(["bash", str(script), "--dry-run"], env=CLEAN, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean OPTIMIZER_ARGS?" in done.stderr


@pytest.mark.parametrize("words", ["--lora-rank 8", "--use-lora", "--lora-alpha=4"])
def test_a_flag_of_adapters_switches_them_on(words: str) -> None:
    args = plan(*words.split()).args
    assert (args.use_lora, args.lr) == (True, 1e-4)


def test_adapters_that_are_switched_off_stay_off() -> None:
    (problem,) = wrong(plan("--lora-rank", "9", USE_LORA="0"))
    assert problem.startswith("--lora-rank has no effect without --use-lora; add it")


def test_every_variable_is_a_flag_too() -> None:
    words = ["--majority-vote-threshold", "0.7", "--num-judge-workers=3", "--port", "4000", "--batch-size", "8"]
    made = plan(*words, "--prm-m", "3", OPENCLAW_PORT="5000", BATCH_SIZE="4", NUM_JUDGE_WORKERS="9")
    runtime = made.runtime
    assert (runtime.majority_vote_threshold, runtime.judge_concurrency, runtime.port) == (0.7, 3, 4000)
    assert (made.args.rollout_batch_size, made.args.prm_m, wrong(made)) == (8, 3, [])
    task = task_plan(["--task", "terminal", "--max-turns", "10", "--parallel-envs", "4"], MAX_STEPS="50")
    values = {variable.name: value for variable, value in task.own.values()}
    assert (values["MAX_STEPS"], values["PARALLEL_ENVS"]) == (10, 4)


def test_a_secret_is_no_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plan("--openclaw-api-key", "s3cret")
    assert "unknown argument --openclaw-api-key" in capsys.readouterr().err


def test_flags_without_an_effect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--num-rollout-workers 16 --max-turns 3 --parallel-envs 32 --async-collection --reward-aggregation majority"
    made = plan(*words.split())
    assert wrong(made) == []
    assert [line.split()[0] for line in made.warnings if " has no effect: " in line] == [
        *("--num-rollout-workers", "--max-turns", "--parallel-envs"),
    ]
    (problem,) = wrong(plan("--reward-aggregation", "mean"))
    assert "the majority of a judge's votes decides; use majority" in problem
    monkeypatch.setattr("slime.arguments.vllm.vllm_missing", lambda python: None)
    assert [wrong(plan("--backend", engine)) for engine in ("sglang", "vllm")] == [[], []]


def test_the_size_of_a_group_belongs_to_a_function_with_groups() -> None:
    assert plan("--num-rollouts-per-prompt", "4").args.n_samples_per_prompt == 1
    own = plan("--num-rollouts-per-prompt", "4", "--rollout-function-path", "mine.generate_rollout")
    assert (own.args.n_samples_per_prompt, own.notes) == (4, ())
