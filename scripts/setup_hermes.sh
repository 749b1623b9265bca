#!/usr/bin/env bash
# Installs Hermes agent for tests and `--harness hermes`: for the system's Python, which is the one that sandboxes have.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_hermes.sh [--check]

  (nothing)  install Hermes agent into .cache/hermes, 0.21 GB, 40 s; a second run ends at once
  --check    exit 0 if it is installed as locked, for this /usr/bin/python3, 1 if not; install nothing
TEXT

if ! "$system" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    fail "Hermes needs Python 3.11 or newer at $system; install it with scripts/setup_bubblewrap.sh"
fi
install_for_sandboxes "$@"
