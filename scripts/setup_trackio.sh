#!/usr/bin/env bash
# Installs Trackio for the test that its tracker keeps what it is told. It stays out of the environment of the locks.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_trackio.sh [--check]

  (nothing)  install Trackio into .cache/trackio, 10 MB, some seconds; a second run ends at once
  --check    exit 0 if it is installed as locked, 1 if not; install nothing
TEXT

install_beside "$@"
