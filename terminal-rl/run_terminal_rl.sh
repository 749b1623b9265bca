#!/usr/bin/env bash
# Qwen3-8B on terminal tasks under the name of older guides: ENV_TYPE=terminal MAX_STEPS=20 PARALLEL_ENVS=32. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task terminal --model qwen3-8B --name terminal-rl "$@"
