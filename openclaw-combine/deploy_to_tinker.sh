#!/usr/bin/env bash
# Learns from conversations with a model that a service of the Tinker interface trains and samples; --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program "$openclaw_root/openclaw-tinker/run.py" "$@"
