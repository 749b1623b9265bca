#!/usr/bin/env bash
# Installs vLLM's CPU build beside the environment, for `--backend vllm` on a machine without a GPU and for its tests.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_vllm.sh [--check]

  (nothing)  install vLLM into .cache/vllm, 0.8 GB, half a minute; a second run ends at once
  --check    exit 0 if it is installed as locked, 1 if not; install nothing
TEXT

install_beside "$@"
