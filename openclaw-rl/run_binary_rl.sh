#!/usr/bin/env bash
# Qwen3-4B, Binary RL; --lora trains adapters on 4 GPUs instead of 8.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method rl --model qwen3-4B "$@"
