#!/usr/bin/env bash
# Qwen3-4B, Binary RL, LoRA over a 4-bit base, one GPU with 16 GB that trains and serves; OPENCLAW_JUDGE_BASE_URL judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method rl --model qwen3-4B --profile gpu1_16gb "$@"
