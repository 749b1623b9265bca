#!/usr/bin/env bash
# One episode of an agent that asks any OpenAI endpoint and has the tools of TOOLS_CONFIG; --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/toolcall-rl/toolcall_agent.py" "$@"
