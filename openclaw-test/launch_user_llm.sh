#!/usr/bin/env bash
# Serves a model of its own for simulated users or API judges: --model-path P [--gpu-ids 0,1] on port 30001. The users here
# (user_chat.py) have fixed rules; with --user-base-url this model writes their reactions. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program -m openclaw.server --port 30001 "$@"
