#!/usr/bin/env bash
# Qwen3-8B on terminal tasks with a judge of steps, 2 machines with 8 GPUs: 4 train, 4 serve, 8 judge. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task terminal --model qwen3-8B --profile gpu8_judge --name terminal-qwen3-8b-prm "$@"
