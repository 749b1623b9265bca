"""Arguments of the rollout side: what goes together."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from tests.helpers.checkpoints import config_only

BASE = "--rollout-batch-size 4 --num-rollout 1"

ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


def parse(tmp_path: Path, words: str):
    return parse_args([*BASE.split(), "--hf-checkpoint", str(config_only(tmp_path / "model")), *words.split()])


def test_hooks_add_up(tmp_path: Path) -> None:
    args = parse(tmp_path, "--rollout-sample-hook-path a.b --rollout-sample-hook-path c.d --partial-rollout")
    assert args.rollout_sample_hook_path == ["a.b", "c.d"]
    assert args.partial_rollout
    assert parse(tmp_path, "").rollout_sample_hook_path is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--mask-offpolicy-in-partial-rollout", "no effect without --partial-rollout"),
        ("--rollout-external", "needs --rollout-external-engine-addrs"),
        (
            "--rollout-external-engine-addrs h:1 --sglang-router-ip h --sglang-router-port 1",
            "--sglang-router-ip; remove one",
        ),
        ("--sglang-router-ip h", "--sglang-router-ip needs --sglang-router-port"),
        (
            "--sglang-router-port 30000 --rollout-external-engine-addrs h:1",
            "remove it, or add --router sglang",
        ),
        ("--load-forge-rollout-data x", "replay with --load-debug-rollout-data"),
        ("--num-nodes 2 --rollout-num-gpus-per-engine 0", "--rollout-num-gpus-per-engine 0: give 1 or more"),
        ("--num-nodes 2 --prm-num-gpus-per-engine 0", "--prm-num-gpus-per-engine 0: give 1 or more"),
        ("--sglang-server-concurrency 0", "--sglang-server-concurrency 0: give 1 or more"),
        ("--update-weight-buffer-size 0", "--update-weight-buffer-size 0: give 1 or more"),
        ("--use-lora --lora-rank 0", "--lora-rank 0: give 1 or more"),
        ("--rollout-num-gpus -1", "--rollout-num-gpus -1: give 0 or more"),
        ("--device cpu --logprob-kernel triton", "--logprob-kernel triton needs a GPU; use torch"),
        ("--log-probs-chunk-size 0", "--log-probs-chunk-size 0: give 1 or more, or -1 for all at once"),
        ("--n-samples-per-prompt 0", "--n-samples-per-prompt 0: give 1 or more"),
        ("--rollout-batch-size -4", "--rollout-batch-size -4: give 1 or more"),
        ("--num-steps-per-rollout 0 --save-interval 0", "--save-interval 0: give 1 or more"),
        ("--num-rollout -1", "--num-rollout -1: give 0 or more"),
        ("--rollout-max-context-len 64 --rollout-max-prompt-len 64", "leaves no room for a response in --rollout"),
        ("--eval-max-context-len 64 --eval-max-prompt-len 65", "leaves no room for a response in --eval"),
        ("--prompt-data p.jsonl", "no maximum response length: add --rollout-max-response-len N"),
        (f"--prompt-data p.jsonl --rollout-function-path {ASYNC}", "no maximum response length"),
    ],
)
def test_what_has_no_effect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, words)
    assert says in capsys.readouterr().err


def test_external_engines_count_as_engines(tmp_path: Path) -> None:
    args = parse(tmp_path, "--rollout-external-engine-addrs h:1 i:2 --rollout-num-gpus-per-engine 2")
    assert args.rollout_num_gpus == 4
    assert args.use_fault_tolerance
    assert not parse(tmp_path, "--no-use-fault-tolerance").use_fault_tolerance


def test_a_router_port_alone_is_accepted(tmp_path: Path) -> None:
    args = parse(tmp_path, "--sglang-router-port 30000")
    assert (args.sglang_router_ip, args.sglang_router_port) == (None, 30000)


@pytest.mark.parametrize(
    "words", ["--rollout-function-path a.b", "--custom-generate-function-path a.b", "--load-debug-rollout-data x"]
)
def test_who_generates_otherwise_needs_no_longest_response(tmp_path: Path, words: str) -> None:
    assert parse(tmp_path, f"--prompt-data p.jsonl {words}").rollout_max_response_len is None
