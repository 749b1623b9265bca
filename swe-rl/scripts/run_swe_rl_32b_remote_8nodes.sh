#!/usr/bin/env bash
# Issues, Qwen3-32B, GRPO: 8 machines with 8 GPUs, 32 train, 32 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
launch --task swe --model qwen3-32B --profile nodes8_32b "$@"
