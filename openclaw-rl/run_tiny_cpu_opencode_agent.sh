#!/usr/bin/env bash
# opencode is trained on a task on a CPU: a tiny policy, a pool of sandboxes, the driver and the trainer. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
agent_demo --harness opencode "$@"
