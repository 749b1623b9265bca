#!/usr/bin/env bash
# Qwen3.5-4B, on-policy distillation of 50 tokens a position, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method opd_topk --model qwen3.5-4B "$@"
