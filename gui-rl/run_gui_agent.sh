#!/usr/bin/env bash
# Lets a model behind any OpenAI-compatible server play held-out screen tasks: --model M --base-url URL. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/gui-rl/gui_agent.py" "$@"
