#!/usr/bin/env bash
# Qwen3-VL-8B on screen tasks with a judge that sees each step, 8 GPUs: 4 train, 2 serve, 2 judge. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task gui --model qwen3-vl-8B --profile gpu8_judge --name gui-qwen3vl-8b-prm "$@"
