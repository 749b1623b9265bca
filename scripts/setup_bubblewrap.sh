#!/usr/bin/env bash
# Installs what sandboxes need, bubblewrap and the system's Python, where a package manager of Debian can. A second run ends at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_bubblewrap.sh [--check]

  (nothing)  install bubblewrap and python3 with apt-get, which needs root; do nothing if both are there
  --check    exit 0 if both are there, 1 if not; install nothing
TEXT

# --disable-userns came with bubblewrap 0.8.
if command -v bwrap >/dev/null 2>&1 && [[ "$(bwrap --help 2>&1)" == *--disable-userns* ]] &&
    "$system" -I -c 'import ctypes' >/dev/null 2>&1; then
    exit 0
fi
if [ "${1:-}" = --check ]; then exit 1; fi
apt_install "bubblewrap python3" "install bubblewrap 0.8 or newer and python3"
exec "${BASH_SOURCE[0]}" --check
