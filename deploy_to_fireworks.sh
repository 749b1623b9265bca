#!/usr/bin/env bash
# Learns from conversations with a model that Fireworks trains and samples, on what it rents there; --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/scripts/launch.sh"
program "$openclaw_root/openclaw-fireworks/run.py" "$@"
