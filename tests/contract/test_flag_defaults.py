"""Defaults that method folders written for the fork depend on: the contract's, or another one whose reason is in the help."""

from __future__ import annotations

import argparse
import functools

import pytest

from slime.arguments import build_parser

# Values of sections 1.2 to 1.7 that are not None and not off.
CONTRACT = {
    **{"--lr": 1e-6, "--min-lr": 0.0, "--weight-decay": 0.01, "--adam-beta1": 0.9, "--adam-eps": 1e-8},
    **{"--clip-grad": 1.0, "--seed": 1234, "--micro-batch-size": 1, "--distributed-timeout-minutes": 10},
    **{"--lr-warmup-iters": 0, "--lr-warmup-init": 0.0, "--optimizer": "adam", "--attention-backend": "auto"},
    **{"--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 1, "--context-parallel-size": 1},
    **{"--expert-model-parallel-size": 1, "--actor-num-nodes": 1, "--actor-num-gpus-per-node": 8},
    **{"--rollout-num-gpus-per-engine": 1, "--num-gpus-per-node": 8, "--n-samples-per-prompt": 1},
    **{"--rollout-temperature": 1.0, "--rollout-top-p": 1.0, "--rollout-top-k": -1, "--rollout-seed": 42},
    **{"--input-key": "input", "--metadata-key": "metadata", "--tool-key": "tools", "--loss-mask-type": "qwen"},
    **{"--n-samples-per-eval-prompt": 1, "--advantage-estimator": "grpo", "--loss-type": "policy_loss"},
    **{"--distill-topk": 0, "--kl-loss-coef": 0.0, "--kl-loss-type": "k1", "--entropy-coef": 0.0, "--eps-clip": 0.2},
    **{"--kl-coef": 0.0, "--gamma": 1.0, "--lambd": 1.0, "--value-clip": 0.2, "--num-critic-only-steps": 0},
    **{"--critic-lr-warmup-iters": 0, "--tis-clip": 2.0, "--tis-clip-low": 0.0, "--opsm-delta": 1e-4},
    **{"--opd-kl-coef": 1.0, "--prm-num-gpus": 0, "--prm-num-gpus-per-engine": 1, "--prm-m": 4},
    **{"--prm-temperature": 1.0, "--prm-max-new-tokens": 2048, "--prm-step-coef": 1.0, "--lora-rank": 8},
    **{"--lora-alpha": 16, "--lora-dropout": 0.0, "--profile-step-start": 10, "--profile-step-end": 12},
    **{"--update-weight-buffer-size": 512 * 1024**2, "--update-weights-interval": 1},
    **{"--rollout-health-check-timeout": 30.0, "--rollout-health-check-first-wait": 0.0},
    **{"--sglang-router-request-timeout-secs": 14400, "--sglang-server-concurrency": 512},
}
# The contract's value, ours, and the words of the help that say why.
DIFFERENT = {
    "--lr-decay-style": ("linear", "constant", "constant (FSDP)"),
    "--adam-beta2": (0.999, 0.98, "as in launch scripts"),
    "--log-probs-chunk-size": (-1, 1024, "same result, less memory"),
    "--rollout-health-check-interval": (30.0, 5.0, "so that a dead engine is replaced soon"),
    "--wandb-project": ("slime-fsdp", "openclaw_rl", "as in launch scripts"),
    "--attn-implementation": ("flash_attention_2", "sdpa", "comes with every torch"),
    "--train-backend": ("megatron", None, "megatron if a flag of Megatron or of the model's shape is given"),
}


@functools.cache
def flags() -> dict[str, argparse.Action]:
    return dict(build_parser()._option_string_actions)


@pytest.mark.parametrize("flag", CONTRACT)
def test_a_default_is_the_contracts(flag: str) -> None:
    assert flags()[flag].default == CONTRACT[flag]


@pytest.mark.parametrize("flag", DIFFERENT)
def test_another_default_has_its_reason_in_the_help(flag: str) -> None:
    theirs, ours, reason = DIFFERENT[flag]
    action = flags()[flag]
    assert action.default == ours
    assert ours != theirs
    assert reason in (action.help or "")
