"""The command line: what parses, what is refused, and what the message says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from importlib.metadata import version
from pathlib import Path

import eval_only
import pytest

from slime.arguments import build_parser, parse_args
from slime.arguments.refused import FIXED, REFUSED, UNUSED
from slime.arguments.sglang_flags import RECORD
from slime.tracking.redact import redacted
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import published


def test_defaults_that_follow_from_others(base: list[str], tmp_path: Path) -> None:
    args = parse_args(base)
    assert args.ref_load == args.prm_model_path == args.hf_checkpoint == str(tmp_path / "model")
    assert (args.global_batch_size, args.num_steps_per_rollout) == (16, 1)
    assert args.eps_clip_high == args.eps_clip == 0.2
    assert args.train_dtype == "float32"
    assert args.eval_function_path == args.rollout_function_path
    assert args.prm_num_gpus == 0
    assert (args.pack_sequences, args.rewards_normalization, args.rollout_global_dataset) == (True, True, True)


def test_switches_say_what_they_do(base: list[str]) -> None:
    off = [
        "--loss-type",
        "sft_loss",
        "--no-pack-sequences",
        "--disable-rewards-normalization",
        "--disable-rollout-global-dataset",
        "--disable-compute-advantages-and-returns",
        "--disable-grpo-std-normalization",
    ]
    args = parse_args([*base, *off])
    names = (
        "pack_sequences",
        "rewards_normalization",
        "rollout_global_dataset",
        "compute_advantages_and_returns",
        "grpo_std_normalization",
    )
    assert not any(getattr(args, name) for name in names)


def test_steps_and_global_batch_size_agree(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_args([*base, "--num-steps-per-rollout", "4"]).global_batch_size == 4
    assert parse_args([*base, "--global-batch-size", "8"]).num_steps_per_rollout == 2
    text = refusal(capsys, [*base, "--global-batch-size", "8", "--num-steps-per-rollout", "4"])
    assert "--global-batch-size 8" in text
    assert "16 samples" in text
    for flag in ("--num-steps-per-rollout", "--global-batch-size"):
        text = refusal(capsys, [*base, flag, "5"])
        assert f"{flag} 5 does not divide" in text
        assert "divisor of 16" in text
        # What nobody typed is not in the message.
        assert ({"--num-steps-per-rollout", "--global-batch-size"} - {flag}).pop() not in text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--rollout-batchsize", "--rollout-batch-size"),
        ("--kl-los-coef=0.1", "--kl-loss-coef"),
        ("--sglang-mem-fraction-statc", "--sglang-mem-fraction-static"),
    ],
)
def test_a_typo_names_the_nearest_flag(
    base: list[str], capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    text = refusal(capsys, [*base, typed])
    assert f"unknown argument {typed}" in text
    assert f"did you mean {meant}?" in text


def test_no_flag_can_be_abbreviated(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--rollout-temperature" in refusal(capsys, [*base, "--rollout-temperatur", "0.5"])


def test_all_problems_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *("--hf-checkpoint", str(tmp_path / "nowhere"), "--rollout-batch-size", "16", "--num-rollout", "1"),
        *("--save-interval", "4", "--use-dynamic-batch-size", "--kl-loss-coef", "0.1", "--offload"),
        *("--rollout-num-gpus", "3", "--rollout-num-gpus-per-engine", "2", "--loss-type", "custom_loss"),
    ]
    text = refusal(capsys, words)
    for line in (
        f"--hf-checkpoint {tmp_path / 'nowhere'}: no such folder",
        "--save-interval needs --save",
        "--use-dynamic-batch-size needs --max-tokens-per-gpu",
        "--kl-loss-coef has no effect without --use-kl-loss",
        "--offload has no effect without --colocate",
        "--rollout-num-gpus 3 is not a multiple of --rollout-num-gpus-per-engine 2",
        "--custom-loss-function-path",
    ):
        assert line in text


def test_what_is_not_there_is_refused_by_name(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for flag in REFUSED for word in (f"--{flag}", "1")]
    text = refusal(capsys, [*base, *words])
    for flag, reason in REFUSED.items():
        assert f"  - --{flag} {reason}" in text


MEGATRON_REFUSALS = {
    "--no-pack-sequences": "always packs",
    "--gradient-checkpointing": "--recompute-granularity full",
    "--fsdp-cpu-offload": "--optimizer-cpu-offload",
    "--attn-implementation eager": "--attention-backend",
    "--tensor-model-parallel-size 3": "are not a multiple of",
    "--tensor-model-parallel-size 0": "give 1 or more",
    "--recompute-granularity full": "--recompute-method uniform",
    "--recompute-method uniform": "--recompute-granularity full",
    "--device cpu --optimizer-cpu-offload": "needs a GPU",
    "--device cpu --transformer-impl transformer_engine": "--transformer-impl local",
    "--transformer-impl local --attention-backend flash": "no effect",
    "--device cuda --optimizer-cpu-offload": "--use-precision-aware-optimizer",
    "--spec one": "two words",
}


@pytest.mark.parametrize("flags", MEGATRON_REFUSALS)
def test_what_megatron_cannot_do_names_what_can(
    flags: str, base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*base, "--train-backend", "megatron", *flags.split()]
    assert MEGATRON_REFUSALS[flags] in refusal(capsys, words)


def test_megatron_chooses_its_layers_by_the_device(base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    megatron = [*base, "--train-backend", "megatron"]
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: True)
    assert parse_args([*megatron, "--device", "cpu"]).transformer_impl == "local"
    assert parse_args([*megatron, "--device", "cuda"]).transformer_impl == "transformer_engine"
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: False)
    assert parse_args([*megatron, "--device", "cuda"]).transformer_impl == "local"
    split = parse_args(
        [*megatron, "--device", "cpu", "--actor-num-gpus-per-node", "2", "--tensor-model-parallel-size", "2"]
    )
    assert split.tensor_model_parallel_size == 2


def test_more_gpus_than_there_are(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    roles = ["--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "2", "--prm-enable", "--prm-num-gpus", "2"]
    assert parse_args([*base, *roles, "--num-gpus", "8"]).prm_num_gpus == 2
    text = refusal(capsys, [*base, *roles, "--num-gpus", "6"])
    assert "4 actor + 2 rollout + 2 judge" in text
    assert "--num-gpus is 6" in text


def test_a_judge_budget_larger_than_its_context(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prm-enable", "--prm-num-gpus", "1", "--sglang-context-length", "4096", "--prm-max-new-tokens"]
    assert parse_args([*base, *words, "1024"]).prm_max_new_tokens == 1024
    assert "--prm-max-new-tokens 4096 leaves no room" in refusal(capsys, [*base, *words, "4096"])


def test_stale_samples_are_corrected_only_where_the_loss_can(
    base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_args(base).max_weight_staleness is None
    assert parse_args([*base, "--max-weight-staleness", "0"]).stale_samples == "drop"
    words = [*base, "--stale-samples", "correct"]
    assert "no effect without --max-weight-staleness" in refusal(capsys, [*words, "--use-tis"])
    assert "no effect without --max-weight-staleness" in refusal(capsys, [*base, "--stale-samples", "mask"])
    assert parse_args([*base, "--stale-samples", "mask", "--max-weight-staleness", "4"]).stale_samples == "mask"
    assert "add --use-tis" in refusal(capsys, [*words, "--max-weight-staleness", "4"])
    for loss in ("--use-tis", "--use-rollout-logprobs"):
        assert parse_args([*words, "--max-weight-staleness", "4", loss]).stale_samples == "correct"
    assert "give 0 or more" in refusal(capsys, [*base, "--max-weight-staleness", "-1"])


def test_the_model_shape_must_be_the_checkpoints(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shape = [
        "--num-layers",
        "36",
        "--hidden-size",
        "2560",
        "--rotary-base",
        "5000000",
        "--norm-epsilon",
        "1e-6",
        "--swiglu",
        "--group-query-attention",
        "--use-rotary-position-embeddings",
        "--qk-layernorm",
        "--normalization",
        "RMSNorm",
    ]
    assert parse_args([*base, *shape]).num_layers == 36
    text = refusal(capsys, [*base, *shape, "--hidden-size", "4096", "--untie-embeddings-and-output-weights"])
    assert "--hidden-size 4096 does not fit" in text
    assert "remove --untie-embeddings-and-output-weights" in text
    assert "add --qk-layernorm" in refusal(capsys, [*base, *(word for word in shape if word != "--qk-layernorm")])


def test_resume_needs_a_checkpoint_and_a_used_folder_needs_resume(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = tmp_path / "save"
    words = [*base, "--save", str(save)]
    assert "start without --resume" in refusal(capsys, [*words, "--resume"])
    assert parse_args(words).load is None
    published(save, 3)
    assert parse_args([*words, "--resume"]).load == str(save)
    assert "add --resume" in refusal(capsys, words)


def test_a_key_on_the_command_line_is_never_repeated(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*base, "--use-wandb", "--wandb-key"]
    args = parse_args([*words, "s3cret"])
    assert args.wandb_key == "s3cret"
    assert redacted(args)["wandb_key"] == "set"
    assert parse_args(words).wandb_key is None
    assert "s3cret" not in refusal(capsys, [*words, "s3cret", "--save-interval", "4"])


def test_meanings_that_always_hold(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for fixed in FIXED:
        words = [fixed.flag] if fixed.value is True else [fixed.flag, str(fixed.value)]
        assert getattr(parse_args([*base, *words]), fixed.attribute) == fixed.value
        if fixed.value is not True:
            other = "0.1" if isinstance(fixed.value, float) else "other"
            text = refusal(capsys, [*base, fixed.flag, other])
            assert f"{fixed.flag} {other}: {fixed.instead}; use {fixed.value}" in text


def test_flags_without_an_effect_are_named(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = parse_args([*base, *(word for flag in UNUSED for word in (f"--{flag}", "4"))])
    lines = [f"--{flag} has no effect: {why}" for flag, why in UNUSED.items()]
    assert args.unused_flags == tuple(lines)
    warnings = capsys.readouterr().err
    assert [line for line in lines if f"warning: {line}\n" not in warnings] == []
    assert parse_args(base).unused_flags == ()
    (tmp_path / "generate_turns.py").write_text(
        "def generate(): ...\ndef add_custom_arguments(parser):\n    parser.add_argument('--max-turns', type=int)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = parse_args([*base, "--custom-generate-function-path", "generate_turns.generate", "--max-turns", "7"])
    assert (vars(own)["max_turns"], own.unused_flags) == (7, ())


def test_a_warm_up_in_samples(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_args([*base, "--lr-warmup-samples", "100"]).lr_warmup_iters == 7  # 16 samples a step
    assert parse_args([*base, "--lr-warmup-samples", "0"]).lr_warmup_iters == 0
    both = [*base, "--lr-warmup-samples", "100", "--lr-warmup-iters", "2"]
    assert "--lr-warmup-samples and --lr-warmup-iters both set the warm-up; remove one" in refusal(capsys, both)
    fraction = [*base, "--lr-warmup-samples", "100", "--lr-warmup-fraction", "0.1"]
    assert "both set the warm-up" in refusal(capsys, fraction)
    assert "give 0 or more" in refusal(capsys, [*base, "--lr-warmup-samples", "-1"])


@pytest.mark.parametrize(
    ("words", "attribute", "value"),
    [
        ("--save-dir /a", "save", "/a"),
        ("--num-rollouts-per-prompt 4", "n_samples_per_prompt", 4),
        ("--ppo-clip-ratio 0.1", "eps_clip", 0.1),
        ("--num-epochs 3", "num_epoch", 3),
        ("--majority-vote-n 5", "prm_m", 5),
        ("--rm-checkpoint /a", "prm_model_path", "/a"),
        ("--model-path /a", "hf_checkpoint", "/a"),
    ],
)
def test_other_names_of_flags(words: str, attribute: str, value: object) -> None:
    assert getattr(build_parser().parse_args(words.split()), attribute) == value


def test_environment_flags_need_a_plugin_that_reads_them(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*base, "--prm-step-coef", "0.5"]
    assert "--prm-step-coef is read only by" in refusal(capsys, words)
    plugin = ["--custom-generate-function-path", "generate_with_gui.generate"]
    assert parse_args([*words, *plugin]).prm_step_coef == 0.5


def test_a_generate_function_may_bring_flags_of_its_own(
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flags_of_sums.py").write_text(
        "def add_custom_arguments(parser):\n    parser.add_argument('--sums-carry', type=int, default=1)\n"
    )
    (tmp_path / "generate_sums.py").write_text(
        "from flags_of_sums import add_custom_arguments\nraise RuntimeError('the parser only reads this module')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [*base, "--sums-carry", "3"]
    assert "--sums-carry" in refusal(capsys, words)
    args = parse_args([*words, "--custom-generate-function-path", "generate_sums.generate"])
    assert vars(args)["sums_carry"] == 3
    file = tmp_path / "run.yaml"
    file.write_text("custom_generate_function_path: generate_sums.generate\nsums_carry: 4\n")
    assert vars(parse_args([*base, "--config", str(file)]))["sums_carry"] == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--tensorboard-dir x", "--tensorboard-dir has no effect without --use-tensorboard"),
        ("--wandb-host x", "--wandb-host has no effect without --use-wandb"),
        ("--load-debug-rollout-data-subsample 0.5", "no effect without --load-debug-rollout-data"),
        ("--load-debug-rollout-data x --load-debug-rollout-data-subsample 2", "above 0 and up to 1"),
        ("--skip-eval-before-train", "no effect without --eval-interval"),
        ("--debug-rollout-only --debug-train-only --load-debug-rollout-data x", "remove one of them"),
        ("--train-env-vars x", "not JSON"),
    ],
)
def test_flags_that_would_have_no_effect(
    base: list[str], capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert says in refusal(capsys, [*base, *words.split()])


def test_dump_details_names_both_dumps(base: list[str]) -> None:
    args = parse_args([*base, "--dump-details", "/dumps"])
    assert args.save_debug_rollout_data == "/dumps/rollout_data/{rollout_id}.pt"
    assert args.save_debug_train_data == "/dumps/train_data/{rollout_id}_{rank}.pt"


def test_evaluation_follows_the_rollout_where_it_says_nothing(base: list[str]) -> None:
    words = ["--rollout-max-context-len", "4096", "--tool-key", "functions"]
    args = parse_args([*base, *words])
    assert (args.eval_max_context_len, args.eval_max_prompt_len, args.eval_tool_key) == (4096, 4095, "functions")
    own = ["--eval-max-context-len", "1024", "--eval-max-prompt-len", "100", "--eval-tool-key", "t"]
    evaluates = ["--eval-interval", "1", "--eval-function-path", "my.evaluate"]
    args = parse_args([*base, *words, *own, *evaluates, "--eval-min-new-tokens", "3"])
    assert (args.eval_max_context_len, args.eval_max_prompt_len, args.eval_tool_key) == (1024, 100, "t")
    assert args.eval_min_new_tokens == 3
    assert args.rollout_max_prompt_len == 4095


def test_plugin_arguments_and_custom_config(base: list[str], tmp_path: Path) -> None:
    def add(parser: ArgumentParser) -> ArgumentParser:
        parser.add_argument("--my-bonus", type=float, default=0.5)
        return parser

    config = tmp_path / "extra.yaml"
    config.write_text("max_iteration: 7\nrollout_temperature: 0.3\n")
    args = parse_args([*base, "--my-bonus", "2", "--custom-config-path", str(config)], add)
    assert (args.my_bonus, args.max_iteration, args.rollout_temperature) == (2.0, 7, 0.3)


def test_eval_data_as_pairs(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    args = parse_args(
        [
            *base,
            "--eval-interval",
            "2",
            "--eval-prompt-data",
            "math",
            "m.jsonl",
            "aime",
            "a.jsonl",
            "--eval-max-response-len",
            "9",
        ]
    )
    assert [(one.name, one.path) for one in args.eval_datasets] == [("math", "m.jsonl"), ("aime", "a.jsonl")]
    assert "--eval-interval needs" in refusal(capsys, [*base, "--eval-interval", "2"])


def test_engine_flags_are_typed(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    args = parse_args([*base, "--sglang-mem-fraction-static", "0.8", "--sglang-disable-radix-cache"])
    assert (args.sglang_mem_fraction_static, args.sglang_disable_radix_cache) == (0.8, True)
    assert "'long' is not a whole number" in refusal(capsys, [*base, "--sglang-context-length", "long"])
    assert "unknown argument --sglang-model-path" in refusal(capsys, [*base, "--sglang-model-path", "x"])


def test_the_record_of_engine_flags_is_of_the_pinned_version(repository: Path) -> None:
    recorded = json.loads(RECORD.read_text())["version"]
    assert f'"sglang=={recorded}"' in (repository / "pyproject.toml").read_text()
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    assert version("sglang") == recorded


def test_the_placement_can_be_imported_first() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", "import slime.ray.placement"], check=True, env=environment)


def test_help_is_grouped_and_imports_nothing_heavy() -> None:
    command = (
        "import sys\n"
        "from slime.arguments import parse_args\n"
        "try:\n    parse_args(['--help-all'])\n"
        "except SystemExit as stop:\n    print(stop.code, [m for m in ('torch', 'ray', 'sglang', 'transformers') if m in sys.modules])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert output.splitlines()[-1] == "0 []"
    for title in ("cluster and placement:", "rollout:", "judge:", "optimizer:", "LoRA:", "tracking:"):
        assert title in output


@pytest.mark.parametrize("program", ["train_async.py", "eval_only.py"])
def test_help_fits_two_screens_and_says_where_the_rest_is(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        monkeypatch.setattr(sys, "argv", [program, flag])
        with pytest.raises(SystemExit) as ended:
            eval_only.main([flag]) if program == "eval_only.py" else parse_args()
        assert ended.value.code == 0
        shown[flag] = capsys.readouterr().out
    assert len(shown["--help"].splitlines()) <= 100
    assert "--help-all lists every flag, by topic:" in shown["--help"]
    assert "--hf-checkpoint" in shown["--help"]
    assert "--sglang-mem-fraction-static" in shown["--help-all"]
    assert ("--clip-grad" in shown["--help-all"]) == (program == "train_async.py")
