#!/usr/bin/env bash
# Qwen3-4B, SDPO on raw follow-ups, LoRA, 4 GPUs: 2 train, 2 serve; no judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method sdpo --model qwen3-4B --lora "$@"
