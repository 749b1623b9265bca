#!/usr/bin/env bash
# A tiny agent learns on a CPU to mend repositories: warm start, GRPO with sandboxed episodes, held-out tasks before and after. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent_learning --task swe "$@"
