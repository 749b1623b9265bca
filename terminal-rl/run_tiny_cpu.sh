#!/usr/bin/env bash
# A tiny terminal agent learns on a CPU: warm start, GRPO with sandboxed episodes, held-out tasks before and after. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent_learning --task terminal "$@"
