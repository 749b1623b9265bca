#!/usr/bin/env bash
# Lends out terminals of this machine to trainers of others: WORKER_MAX_TASKS, ENV_SERVER_PORT, AGENTRL_KEY. --help lists variables.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
PYTHONPATH="$openclaw_root/terminal-rl${PYTHONPATH:+:$PYTHONPATH}" program "$openclaw_root/terminal-rl/remote/pool_server.py" "$@"
