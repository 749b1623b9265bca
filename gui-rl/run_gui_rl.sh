#!/usr/bin/env bash
# Qwen3-VL-8B on screen tasks under the name of older guides: ENV_TYPE=gui SCREENSHOT_BACKEND=playwright PARALLEL_ENVS=16. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task gui --model qwen3-vl-8B --name gui-rl "$@"
