"""Which back end trains where nobody names one: launch scripts written for Megatron run unchanged, and the run says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.algorithm import critic_gpus
from slime.arguments.backend import backend_line
from tests.contract.test_script_flags import model_args
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

PARALLEL = """--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
    --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform
    --recompute-num-layers 1 --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32 --attention-backend flash"""
ADAM = """--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
    --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"""
PLACES = "--actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus-per-engine 2"
PACKED = "--use-dynamic-batch-size --max-tokens-per-gpu 16384 --log-probs-chunk-size 1024"
WANDB = "--use-wandb --wandb-project slime --wandb-group g --wandb-key k"
TASKS = f"""{PLACES} --rollout-num-gpus 4 --num-rollout 2000 --rollout-batch-size 16 --n-samples-per-prompt 8
    --num-steps-per-rollout 2 --rollout-max-response-len 8192 --rollout-max-context-len 16384 --rollout-temperature 1
    --rollout-shuffle --prompt-data prompts.jsonl --balance-data --reward-key score --n-samples-per-eval-prompt 16
    --eval-max-response-len 16384 --eval-top-p 1 --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.01
    --kl-loss-type k3 --sglang-mem-fraction-static 0.6 {PARALLEL} {ADAM} {PACKED} {WANDB}"""
# The flags of one-node launch scripts of the contract, by what they train.
SCRIPTS = {
    "openclaw": f"""{PLACES} --rollout-num-gpus 2 --num-gpus-per-node 8 --megatron-to-hf-mode bridge
        --rollout-function-path openclaw_rollout.generate_rollout_openclaw
        --custom-generate-function-path openclaw_api_server.generate --custom-rm-path openclaw_api_server.reward_func
        --num-rollout 100000000 --rollout-batch-size 16 --n-samples-per-prompt 1 --num-steps-per-rollout 1
        --rollout-max-response-len 8192 --rollout-max-context-len 32768 --rollout-temperature 0.6
        --disable-rollout-global-dataset --reward-key score --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.0
        --kl-loss-type low_var_kl --entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28
        --disable-rewards-normalization --prm-enable --prm-num-gpus 2 --prm-num-gpus-per-engine 2 --prm-m 3
        --prm-temperature 0.6 --prm-max-new-tokens 4096 --sglang-mem-fraction-static 0.85 --sglang-context-length 32768
        --sglang-reasoning-parser qwen3 --sglang-tool-call-parser qwen25 {PARALLEL} {ADAM} {PACKED} {WANDB}""",
    "terminal": f"""{TASKS} --custom-generate-function-path generate.generate --input-key task --dynamic_history
        --custom-rollout-log-function-path rollout_log.rollout_log""",
    "tool calls": f"""{TASKS} --custom-generate-function-path generate_with_retool.generate --input-key prompt
        --custom-rm-path generate_with_retool.reward_func --label-key label --apply-chat-template --eval-reward-key acc
        --eval-prompt-data aime aime.jsonl --eval-interval 20 --eval-max-context-len 32768""",
    "fine-tuning": f"""--tensor-model-parallel-size 1 {PARALLEL.removeprefix("--tensor-model-parallel-size 4")}
        --optimizer adam --lr 1e-5 --lr-decay-style cosine --min-lr 1e-6 --lr-warmup-fraction 0.1 --adam-beta2 0.95
        --global-batch-size 128 --calculate-per-token-loss --actor-num-nodes 1 --actor-num-gpus-per-node 8
        --rollout-function-path slime.rollout.sft_rollout.generate_rollout --num-epoch 3 --rollout-batch-size 128
        --rollout-shuffle --prompt-data p.parquet --input-key messages --use-dynamic-batch-size --max-tokens-per-gpu 9216
        --loss-type sft_loss --disable-compute-advantages-and-returns --debug-train-only {WANDB}""",
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checkpoint flags of a launch script, whose --load is the folder that it saves to."""
    monkeypatch.setenv("MODEL_ARGS_ROTARY_BASE", "5000000")
    folder, save = config_only(tmp_path / "model"), tmp_path / "save"
    words = f"--hf-checkpoint {folder} --ref-load {folder} --load {save} --save {save} --save-interval 3"
    return [*words.split(), "--device", "cuda"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_launch_script_for_megatron_runs_unchanged(
    script: str, installed: bool, model: list[str], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: installed)
    args = parse_args([*model_args(repository, "qwen3-4B"), *model, *SCRIPTS[script].split()])
    assert args.train_backend == "megatron"
    assert args.transformer_impl == ("transformer_engine" if installed else "local")
    line = backend_line(args)
    layers = "" if installed else " with layers of plain torch (Transformer Engine is not installed"
    assert line.startswith(f"trainer  megatron{layers}")
    assert ("--attention-backend flash unused" in line) == (not installed and "--attention-backend" in SCRIPTS[script])
    assert ", because --train-backend is not given and --swiglu, --num-layers" in line
    assert "more are Megatron flags; add --train-backend fsdp" in line


SHORT = "--rollout-batch-size 4 --num-rollout 1 --rollout-max-response-len 8"


@pytest.mark.parametrize(
    ("words", "backend"),
    [
        ("", "fsdp"),
        ("--use-lora --gradient-checkpointing", "fsdp"),
        ("--tensor-model-parallel-size 1", "megatron"),  # said, though it is the default
        ("--pipeline-model-parallel-size=2", "megatron"),
        ("--num-layers 36 --train-backend fsdp --swiglu --group-query-attention --use-rotary-position-embeddings"
         " --qk-layernorm", "fsdp"),
        ("--train-backend megatron", "megatron"),
    ],
)  # fmt: skip
def test_a_flag_of_megatron_decides_unless_the_back_end_is_named(model: list[str], words: str, backend: str) -> None:
    args = parse_args([*model, *SHORT.split(), *words.split()])
    assert args.train_backend == backend
    assert ("because" in backend_line(args)) == (backend == "megatron" and "--train-backend" not in words)


def test_files_of_flags_decide_too(model: list[str], tmp_path: Path) -> None:
    for flag in ("--config", "--custom-config-path"):
        file = tmp_path / f"{flag.strip('-')}.yaml"
        file.write_text("tensor_model_parallel_size: 2\n")
        assert parse_args([*model, *SHORT.split(), flag, str(file)]).train_backend == "megatron"


def test_what_only_fsdp_trains_says_so(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = refusal(capsys, [*model, *SHORT.split(), "--ref-update-interval", "2", "--tensor-model-parallel-size", "2"])
    assert "--ref-update-interval: Megatron does not support it; use --train-backend fsdp" in text


def test_the_critic_is_split_like_the_policy(model: list[str]) -> None:
    words = "--advantage-estimator ppo --tensor-model-parallel-size 2 --actor-num-gpus-per-node 4 --critic-num-gpus-per-node 2"
    args = parse_args([*model, *SHORT.split(), *words.split()])
    assert (args.train_backend, critic_gpus(args)) == ("megatron", 2)


def test_lora_has_layers_of_plain_torch_by_default(model: list[str]) -> None:
    args = parse_args([*model, *SHORT.split(), "--use-lora", "--tensor-model-parallel-size", "2"])
    assert (args.train_backend, args.transformer_impl) == ("megatron", "local")
