#!/usr/bin/env bash
# A name of other guides: there is no training on Tinker yet. It says so, and what trains on GPUs of your own.
source "$(dirname "${BASH_SOURCE[0]}")/scripts/launch.sh"
not_here "no run can train on Tinker yet, and nothing was sent" openclaw-combine/run_qwen3_4b_openclaw_combine.sh "$@"
