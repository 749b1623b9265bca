#!/usr/bin/env bash
# Qwen3-4B, Combine; --lora trains adapters on 4 GPUs instead of 8.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
launch --method combine --model qwen3-4B "$@"
