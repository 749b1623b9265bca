#!/usr/bin/env bash
# Installs what sandboxes need, bubblewrap and the system's Python, where a package manager of Debian can. A second run ends at once.
set -euo pipefail

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_bubblewrap.sh [--check]

  (nothing)  install bubblewrap and python3 with apt-get, which needs root; do nothing if both are there
  --check    exit 0 if both are there, 1 if not; install nothing
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_bubblewrap: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

# --disable-userns came with bubblewrap 0.8.
if command -v bwrap >/dev/null 2>&1 && [[ "$(bwrap --help 2>&1)" == *--disable-userns* ]] &&
    /usr/bin/python3 -I -c 'import ctypes' >/dev/null 2>&1; then
    exit 0
fi
if [ "${1:-}" = --check ]; then exit 1; fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "setup_bubblewrap: install bubblewrap 0.8 or newer and python3 yourself" \
        "(as root: apt-get install bubblewrap python3) and run again" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq bubblewrap python3
exec "${BASH_SOURCE[0]}" --check
