#!/usr/bin/env bash
# Issues, Qwen3-8B with a judge of each step: 5 machines with 8 GPUs, 16 train, 16 serve, 8 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
launch --task swe --model qwen3-8B --profile nodes4_judge "$@"
