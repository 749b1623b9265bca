#!/usr/bin/env bash
# Lets a model behind any OpenAI-compatible server solve terminal tasks: TASK_TYPE, MAX_STEPS, --base-url URL. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/terminal-rl/terminal_agent.py" "$@"
