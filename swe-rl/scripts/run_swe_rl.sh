#!/usr/bin/env bash
# Issues, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve. Generated instances, or those of SWE_BENCH_PATH. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
launch --task swe --model qwen3-4B "$@"
