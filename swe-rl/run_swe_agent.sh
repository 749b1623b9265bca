#!/usr/bin/env bash
# Lets a model behind any OpenAI-compatible server mend repositories: --benchmark swe-bench-lite --api-base URL. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
PYTHONPATH="$openclaw_root/swe-rl${PYTHONPATH:+:$PYTHONPATH}" program "$openclaw_root/swe-rl/eval/eval_swe.py" "$@"
