#!/usr/bin/env bash
# Qwen3-8B on terminal tasks with a judge of steps, 2 machines with 8 GPUs: 4 train, 4 serve, 8 judge. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
# A judge of PRM_SGLANG_URL needs no GPU here, so one machine is enough.
if [ -n "${PRM_SGLANG_URL:-}" ]; then machines=1; else machines=2; fi
export NNODES="${NNODES:-${NUM_NODES:-$machines}}"
program "$openclaw_root/terminal-rl/terminal_launch.py" --model qwen3-8B --name terminal-qwen3-8b-prm --step-judge "$@"
