#!/usr/bin/env bash
# Lets the server at http://127.0.0.1:30000/v1 do small tasks, or with --model-path P a checkpoint. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/openclaw-test/run_eval.py" "$@"
