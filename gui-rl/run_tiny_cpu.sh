#!/usr/bin/env bash
# A tiny agent at a screen learns on a CPU: warm start, GRPO on a real engine and browser, held-out tasks before and after. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent_learning --task gui "$@"
