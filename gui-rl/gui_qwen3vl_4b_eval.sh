#!/usr/bin/env bash
# Qwen3-VL-4B on held-out screen tasks, without training: 8 GPUs serve, runs/gui-qwen3vl-4b-eval/scores.json has the result. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task gui --model qwen3-vl-4B --name gui-qwen3vl-4b-eval --evaluate "$@"
