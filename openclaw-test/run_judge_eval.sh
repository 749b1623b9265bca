#!/usr/bin/env bash
# Measures a judge on labelled next states: accuracy, abstention, wrong signs, agreement, latency. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/openclaw-test/run_judge_eval.py" "$@"
