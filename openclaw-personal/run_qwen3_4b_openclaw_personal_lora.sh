#!/usr/bin/env bash
# Qwen3-4B, lessons at once and practice into adapters, LoRA, 4 GPUs: 2 train, 1 serves, 1 judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method personal --model qwen3-4B --lora "$@"
