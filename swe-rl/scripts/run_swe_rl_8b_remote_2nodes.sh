#!/usr/bin/env bash
# Issues, Qwen3-8B, GRPO: 2 machines with 8 GPUs, 8 train, 8 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
launch --task swe --model qwen3-8B --profile nodes2 "$@"
