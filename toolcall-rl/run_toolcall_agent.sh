#!/usr/bin/env bash
# One episode of an agent that asks any OpenAI endpoint and has the tools of TOOLS_CONFIG; --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
program "$toolcall_folder/toolcall_agent.py" "$@"
