"""Command lines that users have in their scripts, on our parser: what works works, what cannot says what to use instead."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from slime.arguments import build_parser, parse_args
from slime.arguments.parser import parser_for, read_arguments
from slime.arguments.refused import FIXED
from tests.helpers.checkpoints import config_only
from tests.helpers.syntax import parsed

ROLLOUT = """--num-rollout 100000000 --rollout-batch-size 16 --n-samples-per-prompt 1 --num-steps-per-rollout 1
    --rollout-max-response-len 8192 --rollout-max-context-len 32768 --rollout-temperature 0.6 --reward-key score
    --disable-rollout-global-dataset"""
OPTIMIZER = "--optimizer adam --lr 1e-5 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98"
SGLANG = """--sglang-mem-fraction-static 0.85 --sglang-context-length 32768 --sglang-reasoning-parser qwen3
    --sglang-tool-call-parser qwen25"""
PRM = "--prm-enable --prm-num-gpus 1 --prm-num-gpus-per-engine 1 --prm-m 3 --prm-temperature 0.6 --prm-max-new-tokens 4096"
LORA = """--use-lora --lora-rank 16 --lora-alpha 32 --gradient-checkpointing
    --lora-target-modules q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"""
PERF = "--use-dynamic-batch-size --max-tokens-per-gpu 8192 --log-probs-chunk-size 1024"
KL = "--use-kl-loss --kl-loss-coef 0.0 --kl-loss-type low_var_kl --entropy-coef 0.00"
CLIP = "--eps-clip 0.2 --eps-clip-high 0.28"
PLACEMENT = """--train-backend fsdp --actor-num-nodes 1 --actor-num-gpus-per-node 2 --rollout-num-gpus 1
    --rollout-num-gpus-per-engine 1 --num-gpus-per-node 4"""
WANDB = "--use-wandb --wandb-project openclaw_rl --wandb-group qwen3-4b"
METHODS = {
    "rl": f"""--rollout-function-path openclaw_rollout.generate_rollout_openclaw
        --custom-generate-function-path openclaw_api_server.generate --custom-rm-path openclaw_api_server.reward_func
        --advantage-estimator grpo --disable-rewards-normalization {KL} {CLIP}""",
    "opd": f"""--rollout-function-path openclaw_opd_rollout.generate_rollout_openclaw_opd
        --custom-generate-function-path openclaw_opd_api_server.generate
        --custom-rm-path openclaw_opd_api_server.reward_func --advantage-estimator on_policy_distillation {KL}""",
    "combine": f"""--rollout-function-path openclaw_combine_rollout.generate_rollout_openclaw_combine
        --custom-generate-function-path openclaw_combine_api_server.generate
        --custom-rm-path openclaw_combine_api_server.reward_func --advantage-estimator grpo
        --disable-rewards-normalization --loss-type custom_loss
        --custom-loss-function-path combine_loss.combine_loss_function {KL} {CLIP}""",
}
MEGATRON = """--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --optimizer-cpu-offload
    --attention-dropout 0.0 --attention-backend flash"""


def model_args(repository: Path, shape: str) -> list[str]:
    """MODEL_ARGS as a launch script gets them."""
    script = 'source "$1"; printf "%s\\n" "${MODEL_ARGS[@]}"'
    file = repository / "slime" / "scripts" / "models" / f"{shape}.sh"
    output = subprocess.run(["bash", "-euc", script, "bash", str(file)], capture_output=True, text=True, check=True)
    return output.stdout.split()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_lora_scripts_of_the_three_methods_parse(
    method: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_ARGS_ROTARY_BASE", "5000000")
    model = config_only(tmp_path / "model")
    checkpoints = f"--hf-checkpoint {model} --ref-load {model} --save {tmp_path / 'save'} --save-interval 1"
    words = f"{PLACEMENT} {checkpoints} {ROLLOUT} {OPTIMIZER} {SGLANG} {PRM} {LORA} {PERF} {WANDB} {METHODS[method]}"
    args = parse_args([*model_args(repository, "qwen3-4B"), *words.split(), "--megatron-to-hf-mode", "bridge"])
    assert (args.rollout_temperature, args.kl_loss_type, args.prm_m) == (0.6, "low_var_kl", 3)
    assert args.lora_target_modules[0] == "q_proj"
    assert len(args.lora_target_modules) == 7
    assert args.sglang_context_length == 32768
    assert (args.use_kl_loss, args.kl_loss_coef, args.save_interval) == (True, 0.0, 1)


SCRIPTS = json.loads((Path(__file__).parents[1] / "data" / "script_flags.json").read_text())
# Machines of 8 GPUs that the scripts of several nodes start Ray on.
NODES = {"T2": 2, "S2": 2, "S4": 4, "S8": 8, "S8R": 8, "S5P": 5, "C4": 4, "C5P": 5}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_flags_of_every_script_of_the_contract(
    name: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sets of the contract's tables 1.1 to 1.5, by its names of scripts; MODEL stands for every path."""
    monkeypatch.setenv("MODEL_ARGS_ROTARY_BASE", "5000000")
    flags = [str(tmp_path) if word == "MODEL" else word for word in shlex.split(SCRIPTS[name]["words"])]
    shape = SCRIPTS[name]["model"]
    words = [*(model_args(repository, shape) if shape else []), *flags, "--device", "cuda"]
    args, problems = read_arguments(parser_for(words), words)
    assert args.num_nodes == NODES.get(name, 1)
    assert not problems


def test_the_sets_are_those_of_all_scripts() -> None:
    assert len(SCRIPTS) == 23
    assert all(len(entry["words"].split()) > 60 for entry in SCRIPTS.values())


def test_the_last_occurrence_wins(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    words = f"--hf-checkpoint {model} {ROLLOUT} --lr 1e-5 --rotary-base 1000000 --rotary-base 5000000 --lr 2e-6"
    assert parse_args(words.split()).lr == 2e-6


def test_megatron_flags_say_what_to_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--hf-checkpoint {config_only(tmp_path / 'model')} {ROLLOUT} {MEGATRON} --train-backend fsdp".split()
    with pytest.raises(SystemExit):
        parse_args(words)
    text = capsys.readouterr().err
    # 1 is what there is without Megatron.
    holds = {fixed.flag for fixed in FIXED} | {"--pipeline-model-parallel-size", "--context-parallel-size"}
    for flag in (word for word in MEGATRON.split() if word.startswith("--") and word not in holds):
        assert f"{flag} " in text
    assert "use --gradient-checkpointing" in text
    assert "use --fsdp-cpu-offload" in text


ARGS = ("args", "self.args", "self._args")


def dotted(node: ast.expr) -> str:
    """Return a name, or an attribute of one, as it is written; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return (
        f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    )


def test_every_argument_that_is_read_is_declared(repository: Path) -> None:
    declared = set(dir(build_parser().parse_args([])))
    undeclared = {}
    for path in [
        *repository.glob("slime/**/*.py"),
        *repository.glob("openclaw/**/*.py"),
        *repository.glob("openclaw-*/*.py"),
    ]:
        if path.is_relative_to(repository / "openclaw-test") or path.is_relative_to(
            repository / "openclaw" / "inspect.py"
        ):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and dotted(node.value) in ARGS:
                name = node.attr
            elif (
                isinstance(node, ast.Call)
                and dotted(node.func) == "getattr"
                and dotted(node.args[0]) in ARGS
                and isinstance(node.args[1], ast.Constant)
            ):
                name = node.args[1].value
            else:
                continue
            if name not in declared:
                undeclared[name] = str(path.relative_to(repository))
    assert not undeclared
