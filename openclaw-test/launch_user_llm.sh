#!/usr/bin/env bash
# Serves a model of its own for simulated users or API judges: --model-path P [--gpu-ids 0,1] on port 30001. The users here
# (student_chat.py, ta_chat.py, teacher_chat.py) are fixed rules and need none. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
program -m openclaw.server --port 30001 "$@"
