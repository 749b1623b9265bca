#!/usr/bin/env bash
# Issues, Qwen3-32B, GRPO: 4 machines with 8 GPUs, 16 train, 16 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
launch --task swe --model qwen3-32B --profile nodes4_32b "$@"
