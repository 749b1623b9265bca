#!/usr/bin/env bash
# Qwen3-VL-8B on screen tasks, GRPO, 8 GPUs: SCREENSHOT_BACKEND=playwright. --served plays with the model of a server instead.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent gui-rl/gui_agent.py --task gui --model qwen3-vl-8B -- "$@"
