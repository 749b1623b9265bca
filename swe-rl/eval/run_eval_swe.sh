#!/usr/bin/env bash
# As ../run_swe_agent.sh --served: serve the model first, and name its address with --api-base. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
PYTHONPATH="$openclaw_root/swe-rl${PYTHONPATH:+:$PYTHONPATH}" program "$openclaw_root/swe-rl/eval/eval_swe.py" "$@"
