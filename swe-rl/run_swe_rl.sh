#!/usr/bin/env bash
# Issues, Qwen3-4B, under the name of older guides: ENV_TYPE=swe SWE_BENCH_PATH=FOLDER PARALLEL_ENVS=8. README.md lists the variables.
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/run_swe_rl.sh" "$@"
