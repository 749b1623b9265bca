#!/usr/bin/env bash
# Qwen3.5-4B, on-policy distillation of 50 tokens a position, LoRA, 4 GPUs: 2 train, 1 serves, 1 judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method opd_topk --model qwen3.5-4B --lora "$@"
