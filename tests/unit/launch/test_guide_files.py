"""Configuration files and variables of other guides: each key works, or one line says what to do instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openclaw_combine_method import Config

from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.guide_files import known_keys, read_guide_file
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import GPU8
from openclaw.launch.resolve import make_plan
from openclaw.launch.variables import LAUNCH_VARIABLES, OF_ENVIRONMENTS
from slime.arguments import build_parser
from tests.helpers.checkpoints import config_only

OF_NODES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_ADDR")
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


def plan(file: Path, *extra: str, method: str = "combine", **environment: str) -> Plan:
    return make_plan(Recipe(method, None, GPU8), ["--config", str(file), *extra], environment)


def test_a_training_config_is_a_plan(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    file = tmp_path / "training_config.yaml"
    file.write_text(TRAINING.replace("MODEL", str(model)))
    made = plan(file)
    args = made.args
    assert made.problems == ()
    assert (args.hf_checkpoint, args.prm_model_path, args.rollout_batch_size) == (str(model), str(model), 8)
    assert (args.lr, args.lr_warmup_iters, args.num_rollout, args.eps_clip, args.prm_m) == (3e-6, 5, 40, 0.1, 5)
    assert made.own == Config(w_rl=0.5, w_opd=2.0)
    assert (made.runtime.served_model_name, made.runtime.tokenizer) == ("my-policy", str(model))
    assert made.runtime.majority_vote_threshold == 0.5
    assert plan(file, "--lr", "1e-7", BATCH_SIZE="4").args.rollout_batch_size == 4
    assert plan(file, "--lr", "1e-7").args.lr == 1e-7


def test_a_rollout_config_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "rollout.json"
    reward = {"type": "binary", "aggregation": "majority", "num_samples": 3}
    config = {"collection_mode": "session_aware", "max_concurrent_sessions": 7, "session_timeout": 60}
    file.write_text(json.dumps({"rollout_config": {**config, "reward_computation": reward}}))
    runtime = plan(file, HF_CKPT=str(config_only(tmp_path / "model"))).runtime
    assert (runtime.prm_m, runtime.max_sessions, runtime.session_idle_seconds) == (3, 7, 60.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("training: {method: opd}", "run bash openclaw-opd/run_*.sh"),
        ("training: {gae_lambda: 0.95}", "no method here has a critic"),
        ("training: {value_clip_ratio: 0.2}", "no method here has a critic"),
        ("training: {teacher_temperature: 0.7}", "its own distribution"),
        ("training: {gradient_accumulation_steps: 4}", "use MAX_TOKENS_PER_GPU"),
        ("rollout: {num_workers: 4}", "one gateway serves all"),
        ("rollout: {session_aware: false}", "is always so here"),
        ("rollout: {max_turns: 5}", "the client decides"),
        ("rollout: {parallel_envs: 5}", "the client decides"),
        ("evaluation: {majority_voting: false}", "is always so here"),
        ("rollout_config: {collection_mode: single}", "is always so here"),
        ("rollout_config: {reward_computation: {type: continuous}}", "the method's script decides"),
        ("rollout_config: {reward_computation: {aggregation: mean}}", "is always so here"),
        ("rollout_config: {trajectory_format: x}", "openclaw-rl inspect"),
        ("rollout_config: {message_classification: {side: [a]}}", "X-Turn-Type: main or side"),
        ("training: {learning_rat: 1}", "unknown key training.learning_rat"),
        (
            "model: {checkpoint_path: a}\nevaluation: {judge_model: a, num_judges: 3}\ntraining: {hint_extraction_model: b}",
            "keep one of them",
        ),
    ],
)
def test_a_key_that_cannot_be_honoured_says_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "training_config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="unsupported keys") as raised:
        read_guide_file(str(file), "combine")
    assert says in str(raised.value)


DOCUMENTED = {
    "model": "name checkpoint_path tokenizer_path",
    "training": "method batch_size gradient_accumulation_steps learning_rate warmup_steps max_steps ppo_clip_ratio "
    "value_clip_ratio gae_lambda teacher_temperature hint_extraction_model binary_weight opd_weight",
    "rollout": "num_workers max_turns session_aware parallel_envs",
    "evaluation": "judge_model majority_voting num_judges consensus_threshold eval_frequency",
    "rollout_config": "collection_mode max_concurrent_sessions session_timeout trajectory_format message_classification "
    "reward_computation.type reward_computation.aggregation reward_computation.num_samples",
}
"""The keys that guides teach; the other tests here set each of them, or are refused by it."""


@pytest.mark.parametrize("key", [f"{part}.{name}" for part, names in DOCUMENTED.items() for name in names.split()])
def test_every_documented_key_is_known(key: str) -> None:
    assert key == "training.method" or key in known_keys()


@pytest.mark.parametrize(
    ("text", "variables", "flags"),
    [
        ("training: {hint_extraction_model: m}", {"PRM_MODEL_PATH": "m"}, []),
        ("evaluation: {judge_model: m}", {"PRM_MODEL_PATH": "m"}, []),
        ("evaluation: {eval_frequency: 5}", {}, ["--eval-interval", "5"]),
        ("training: {method: combine, warmup_steps: 5}", {}, ["--lr-warmup-iters", "5"]),
        ("training: {teacher_temperature: 1.0, gradient_accumulation_steps: 1}", {}, []),
        ("rollout_config: {reward_computation: {type: binary, num_samples: 3}}", {"PRM_M": "3"}, []),
    ],
)
def test_what_a_key_sets(tmp_path: Path, text: str, variables: dict[str, str], flags: list[str]) -> None:
    file = tmp_path / "training_config.yaml"
    file.write_text(text)
    found = read_guide_file(str(file), "combine")
    assert found is not None
    assert (found.variables, found.flags) == (variables, flags)


def test_every_key_names_a_variable_or_a_flag_that_exists() -> None:
    variables = {name for variable in (*VARIABLES, *LAUNCH_VARIABLES, *Config.variables()) for name in variable.names}
    flags = set(build_parser()._option_string_actions)
    meanings: list[Any] = [meaning for meaning in known_keys().values() if isinstance(meaning, str)]
    assert [meaning for meaning in meanings if meaning not in variables | flags] == []


@pytest.mark.parametrize("name", [*OF_ENVIRONMENTS, *OF_NODES])
def test_a_variable_that_means_nothing_here_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*unset it"):
        make_plan(Recipe("rl", None, GPU8), [], {name: "7"})


def test_variables_of_environments_are_for_folders_that_have_some(tmp_path: Path) -> None:
    folder = tmp_path / "my-method"
    folder.mkdir()
    model = config_only(tmp_path / "model")
    made = make_plan(Recipe(str(folder), None, GPU8), [], {"PARALLEL_ENVS": "4", "HF_CKPT": str(model)})
    assert made.environment["PARALLEL_ENVS"] == "4"


def test_a_number_of_votes_by_either_name(tmp_path: Path) -> None:
    model = str(config_only(tmp_path / "model"))
    for name in ("PRM_M", "MAJORITY_VOTE_N"):
        assert make_plan(Recipe("rl", None, GPU8), [], {"HF_CKPT": model, name: "7"}).args.prm_m == 7
