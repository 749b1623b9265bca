#!/usr/bin/env bash
# Qwen3-VL-8B on screen tasks, GRPO, 8 GPUs: 4 train, 4 serve. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task gui --model qwen3-vl-8B --name gui-qwen3vl-8b "$@"
