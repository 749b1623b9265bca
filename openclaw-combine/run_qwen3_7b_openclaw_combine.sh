#!/usr/bin/env bash
# The name of older guides; as there is no Qwen3-7B, it runs MODEL_PATH or Qwen3-8B, Combine, 8 GPUs: 4 train, 2 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method combine --model qwen3-7B "$@"
