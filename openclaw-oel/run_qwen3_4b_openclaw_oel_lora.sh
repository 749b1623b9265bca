#!/usr/bin/env bash
# Qwen3-4B, online experiential learning, LoRA, 4 GPUs: 2 train, 1 serves, 1 judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method oel --model qwen3-4B --lora "$@"
