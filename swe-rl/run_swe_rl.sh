#!/usr/bin/env bash
# Issues, Qwen3-4B, under the name of older guides: ENV_TYPE=swe SWE_BENCH_PATH=FOLDER PARALLEL_ENVS=8. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task swe --model qwen3-4B "$@"
