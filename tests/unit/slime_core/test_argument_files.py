"""YAML files of arguments: the same flags, the same checks, and who wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from tests.helpers.checkpoints import config_only


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    model = config_only(tmp_path / "model")
    return f"--hf-checkpoint {model} --device cpu --run-dir {tmp_path / 'run'}".split()


def written(tmp_path: Path, text: str, name: str = "run.yaml") -> str:
    file = tmp_path / name
    file.write_text(text)
    return str(file)


FLAGS = """
rollout_batch_size: 16
--num-rollout: 2
lr: 1e-6
use-tis: true
get_mismatch_metrics: false
pack_sequences: false
disable-rewards-normalization: true
rollout-top-k: -1
rollout_stop: ["</a>", "</b>"]
use_lora: true
lora_target_modules: [q_proj, v_proj]
apply_chat_template_kwargs: {enable_thinking: false}
min_lr:
"""


def test_a_config_file_is_a_command_line(base: list[str], tmp_path: Path) -> None:
    args = parse_args([*base, "--config", written(tmp_path, FLAGS)])
    assert (args.rollout_batch_size, args.num_rollout, args.lr, args.rollout_top_k) == (16, 2, 1e-6, -1)
    assert (args.use_tis, args.get_mismatch_metrics, args.pack_sequences, args.rewards_normalization) == (
        True,
        False,
        False,
        False,
    )
    assert args.rollout_stop == ["</a>", "</b>"]
    assert args.lora_target_modules == ["q_proj", "v_proj"]
    assert args.apply_chat_template_kwargs == {"enable_thinking": False}
    assert args.min_lr == 0.0


def test_false_turns_a_switch_off_and_a_refused_flag_into_nothing(base: list[str], tmp_path: Path) -> None:
    sizes = "rollout_batch_size: 4\nnum_rollout: 1\n"
    text = sizes + "balance_data: true\nfp16: false\nlog_passrate: false\npack_sequences: false\n"
    args = parse_args([*base, "--config", written(tmp_path, text)])
    assert (args.balance_data, args.log_passrate, args.pack_sequences) == (True, False, False)
    args = parse_args(
        [*base, "--config", written(tmp_path, sizes), "--custom-config-path", written(tmp_path, text, "c")]
    )
    assert (args.balance_data, args.log_passrate, args.pack_sequences) == (True, False, False)
    assert "fp16" not in vars(args)


def test_the_command_line_wins_over_the_config_file(base: list[str], tmp_path: Path) -> None:
    words = [f"--config={written(tmp_path, FLAGS)}", "--lr", "2e-6", "--rollout-batch-size", "8", *base]
    args = parse_args(words)
    assert (args.lr, args.rollout_batch_size, args.num_rollout) == (2e-6, 8, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rollout_batchsize: 16", "there is no flag 'rollout_batchsize'; did you mean --rollout-batch-size?"),
        ("lr: fast", "--lr: 'fast' is not a number"),
        ("loss_type: sft", "--loss-type: 'sft' is not one of policy_loss"),
        ("use_tis: 1", "--use-tis is a switch; write true or false"),
        ("save: true", "--save needs a value"),
        ("lr: [1, 2]", "--lr takes one value"),
        ("optimizer: {lr: 1}", "not nested"),
        ("- lr", "holds no `name: value` line"),
        ("a: [", "is not YAML"),
        ("config: other.yaml", "cannot include another"),
        ("rollout_buffer_url: http://x", "--rollout-buffer-url belongs to"),
        ("balance_data: false", "--balance-data is always on here and cannot be false: samples are distributed"),
        ("attention_softmax_in_fp32: false", "--attention-softmax-in-fp32 is always on here"),
        ("fp16: true", "--fp16 is not supported"),
    ],
)
def test_a_config_file_that_cannot_be_used(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    with pytest.raises(SystemExit):
        parse_args([*base, "--rollout-batch-size", "4", "--num-rollout", "1", "--config", written(tmp_path, text)])
    assert says in capsys.readouterr().err


def test_a_missing_config_file(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args([*base, "--config", "nowhere.yaml"])
    assert "--config nowhere.yaml: no such file" in capsys.readouterr().err


def test_custom_config_sets_and_creates_attributes(base: list[str], tmp_path: Path) -> None:
    text = "max_iteration: 7\nnon_think_mode: true\nrollout_temperature: 1e-1\nuse_tis: false\nsave:\n"
    words = [*base, "--rollout-batch-size", "4", "--num-rollout", "1", "--use-tis", "--save", str(tmp_path / "save")]
    args = parse_args([*words, "--custom-config-path", written(tmp_path, text)])
    assert (args.max_iteration, args.non_think_mode) == (7, True)
    assert (args.rollout_temperature, args.use_tis, args.save) == (0.1, False, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rollout_temperature: 0", "--rollout-temperature must be above 0"),
        ("kl_loss_type: k9", "--kl-loss-type: 'k9' is not one of k1"),
        ("max-iteration: 7", "write max_iteration"),
        ("rollout_buffer_url: x", "--rollout-buffer-url belongs to"),
        ("balance-data: false", "--balance-data is always on here"),
        ("config: other.yaml", "--config is needed before this file is read; give it on the command line"),
        ("custom-arguments-path: a.b", "--custom-arguments-path is needed before this file is read"),
    ],
)
def test_custom_config_is_checked_like_flags(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    words = [*base, "--rollout-batch-size", "4", "--num-rollout", "1", "--custom-config-path", written(tmp_path, text)]
    with pytest.raises(SystemExit):
        parse_args(words)
    assert says in capsys.readouterr().err
