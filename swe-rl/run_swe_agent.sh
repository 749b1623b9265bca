#!/usr/bin/env bash
# Issues, Qwen3-4B, GRPO, 8 GPUs: --benchmark NAME. --served plays with the model of a server instead.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent swe-rl/eval/eval_swe.py --task swe --model qwen3-4B -- "$@"
