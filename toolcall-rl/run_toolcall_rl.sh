#!/usr/bin/env bash
# Tool tasks, Qwen3-4B, GRPO: 8 GPUs. Generated tasks, or those of PROMPT_DATA, with the tools of TOOLS_CONFIG. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --task toolcall --model qwen3-4B "$@"
