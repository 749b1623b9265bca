#!/usr/bin/env bash
# Serves a checkpoint and lets it do small tasks: --model-path P --eval-tasks "conversation,coding,tool-use". --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/openclaw-test/run_eval.py" "$@"
