#!/usr/bin/env bash
# Installs llama.cpp for the test that it answers from an exported file as Transformers does from the folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_llama_cpp.sh [--check]

  (nothing)  install llama.cpp into .cache/llama_cpp, 0.1 GB, some seconds; a second run ends at once
  --check    exit 0 if it is installed as locked, 1 if not; install nothing
TEXT

install_beside "$@"
