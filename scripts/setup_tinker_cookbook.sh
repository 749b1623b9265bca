#!/usr/bin/env bash
# Installs Tinker's cookbook for the test that its loops run unmodified on the server of openclaw.tinker.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_tinker_cookbook.sh [--check]

  (nothing)  install the cookbook into .cache/tinker_cookbook, 20 MB, some seconds; a second run ends at once
  --check    exit 0 if it is installed as locked, 1 if not; install nothing
TEXT

install_beside "$@"
