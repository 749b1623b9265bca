#!/usr/bin/env bash
# Qwen3-8B on terminal tasks, GRPO, 8 GPUs: 4 train, 4 serve. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task terminal --model qwen3-8B --name terminal-qwen3-8b "$@"
