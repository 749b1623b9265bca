#!/usr/bin/env bash
# Installs mini-swe-agent for `--harness mini-swe-agent`: for the system's Python, which is the one that sandboxes have.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_mini_swe_agent.sh [--check]

  (nothing)  install mini-swe-agent into .cache/mini_swe_agent, 0.3 GB, a minute; a second run ends at once
  --check    exit 0 if it is installed as locked, for this /usr/bin/python3, 1 if not; install nothing
TEXT

if ! "$system" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
    fail "sandboxes need Python 3.10 or newer at $system; install it with scripts/setup_bubblewrap.sh"
fi
install_for_sandboxes "$@"
