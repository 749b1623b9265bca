#!/usr/bin/env bash
# Installs Chromium and chromedriver where a package manager of Debian can: gui-rl's browser, and the web page's side of
# tests/security. A second run ends at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_chromium.sh [--check]

  (nothing)  install Chromium and chromedriver with apt-get, which needs root; do nothing if they are there
  --check    exit 0 if they are there, 1 if not; install nothing
TEXT

if command -v chromedriver >/dev/null 2>&1; then
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$name" >/dev/null 2>&1; then exit 0; fi
    done
fi
if [ "${1:-}" = --check ]; then exit 1; fi
apt_install "chromium chromium-driver" "install Chromium"
