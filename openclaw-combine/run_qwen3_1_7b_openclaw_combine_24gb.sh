#!/usr/bin/env bash
# Qwen3-1.7B, Combine, LoRA, one GPU with 24 GB that trains, serves and judges.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method combine --model qwen3-1.7B --profile gpu1_24gb "$@"
