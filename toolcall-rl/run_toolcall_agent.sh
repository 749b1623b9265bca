#!/usr/bin/env bash
# Tool tasks, Qwen3-4B, GRPO, 8 GPUs: TOOLS_CONFIG=FILE. --served plays with the model of a server instead.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent toolcall-rl/toolcall_agent.py --task toolcall --model qwen3-4B -- "$@"
