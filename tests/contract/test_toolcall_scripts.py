"""The scripts of ``toolcall-rl``: the same from three folders, a valid plan, and what the variables of older guides change."""

from __future__ import annotations

import os
import subprocess

import pytest

from slime.arguments.plugins import missing_plugins
from tests.helpers.launch_plans import CLEAN, ROOT, Scripts

FOLDER = ROOT / "toolcall-rl"
OTHERS = ("run_tiny_cpu.sh",)
TRAINING = sorted(path.name for path in FOLDER.glob("*.sh") if path.name not in OTHERS)
SCRIPTS = Scripts(FOLDER)
words, planned = SCRIPTS.words, SCRIPTS.planned


@pytest.mark.parametrize("script", TRAINING)
def test_every_script_has_a_valid_plan_from_three_folders(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert words(script) == words(script, "slime") == words(script, "toolcall-rl")
    args = planned(script)
    assert missing_plugins(args) == []
    if "sft" in script:
        assert (args.rollout_function_path, args.loss_type) == (
            "slime.rollout.sft_rollout.generate_rollout",
            "sft_loss",
        )
        assert (args.rollout_batch_size, args.global_batch_size, args.num_epoch) == (128, 128, 3)
    else:
        assert args.custom_generate_function_path == "generate_with_retool.generate"
        assert args.custom_rm_path == "generate_with_retool.reward_func"
        assert (args.rollout_batch_size, args.n_samples_per_prompt, args.num_rollout) == (32, 8, 3000)
        assert (args.rollout_max_response_len, args.rollout_max_context_len) == (8192, 16384)
        assert args.advantage_estimator == ("step_wise" if "prm" in script else "grpo")
        assert bool(args.prm_num_gpus) == ("prm" in script)


def test_the_names_that_guides_have() -> None:
    assert [
        *("retool_qwen25_32b_prm_rl_5nodes.sh", "retool_qwen25_32b_rl_4nodes.sh", "retool_qwen3_4b_prm_rl.sh"),
        *("retool_qwen3_4b_rl.sh", "retool_qwen3_4b_sft.sh", "run_toolcall_agent.sh"),
        "run_toolcall_rl.sh",
    ] == TRAINING
    for name in TRAINING:
        assert os.access(FOLDER / name, os.X_OK)


def test_placements() -> None:
    def of(script: str, *given: str) -> tuple[int, int, int, int]:
        args = planned(script, *given)
        return args.actor_num_nodes, args.actor_num_gpus_per_node, args.rollout_num_gpus, args.prm_num_gpus

    assert of("retool_qwen3_4b_sft.sh") == (1, 8, 0, 0)
    assert of("retool_qwen3_4b_rl.sh") == (1, 4, 4, 0)
    assert of("retool_qwen3_4b_prm_rl.sh") == (1, 2, 4, 2)
    assert of("retool_qwen25_32b_rl_4nodes.sh") == (4, 4, 16, 0)
    assert of("retool_qwen25_32b_prm_rl_5nodes.sh") == (4, 4, 16, 8)
    assert of("retool_qwen3_4b_rl.sh", "ACTOR_GPUS=2", "ROLLOUT_GPUS=6") == (1, 2, 6, 0)


def test_variables_of_older_guides() -> None:
    given = (
        "HF_CKPT=/m/a",
        "REF_LOAD=/m/b",
        "SAVE_CKPT=/m/c",
        "PROMPT_DATA=/m/d.jsonl",
        "EVAL_DATA=/m/e.jsonl",
        "RESUME_LOAD=/m/f",
    )
    args = planned("retool_qwen3_4b_rl.sh", *given)
    assert (args.hf_checkpoint, args.ref_load, args.save, args.prompt_data, args.load) == (
        *("/m/a", "/m/b", "/m/c", "/m/d.jsonl", "/m/f"),
    )
    assert (args.eval_interval, args.n_samples_per_eval_prompt, args.eval_max_context_len) == (20, 16, 32768)
    judged = planned(
        "retool_qwen3_4b_prm_rl.sh", "PRM_MODEL_PATH=/m/j", "PRM_M=5", "PRM_STEP_COEF=0.5", "PRM_TEMPERATURE=0.2"
    )
    assert (judged.prm_model_path, judged.prm_m, judged.prm_step_coef, judged.prm_temperature) == ("/m/j", 5, 0.5, 0.2)


@pytest.mark.parametrize(
    ("given", "says"),
    [("ENV_TYPE=terminal", "this script has toolcall"), ("TOOLS_CONFIG=/none.json", "/none.json: no such file")],
)
def test_a_wrong_variable_is_named(given: str, says: str) -> None:
    command = ["bash", str(FOLDER / "run_toolcall_rl.sh"), "--dry-run"]
    name, value = given.split("=")
    done = subprocess.run(command, env=CLEAN | {name: value}, capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stderr) == (2, True)
