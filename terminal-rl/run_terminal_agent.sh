#!/usr/bin/env bash
# Qwen3-8B on terminal tasks, GRPO, 8 GPUs: TASK_TYPE=bash_commands MAX_STEPS=50. --served plays with the model of a server instead.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent terminal-rl/terminal_agent.py --task terminal --model qwen3-8B -- "$@"
