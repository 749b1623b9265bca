#!/usr/bin/env bash
# The name of older guides; as there is no Qwen3-7B, it runs MODEL_PATH or Qwen3-8B, Binary RL, LoRA, 4 GPUs: 2 train, 1 serves, 1 judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method rl --model qwen3-7B --lora "$@"
