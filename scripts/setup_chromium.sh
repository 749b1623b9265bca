#!/usr/bin/env bash
# Installs Chromium and chromedriver where a package manager of Debian can: gui-rl's browser, and the web page's side of
# tests/security. A second run ends at once.
set -euo pipefail

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_chromium.sh [--check]

  (nothing)  install Chromium and chromedriver with apt-get, which needs root; do nothing if they are there
  --check    exit 0 if they are there, 1 if not; install nothing
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_chromium: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

if command -v chromedriver >/dev/null 2>&1; then
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$name" >/dev/null 2>&1; then exit 0; fi
    done
fi
if [ "${1:-}" = --check ]; then exit 1; fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "setup_chromium: install Chromium yourself (as root: apt-get install chromium chromium-driver) and run again" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq chromium chromium-driver
