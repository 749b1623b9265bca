#!/usr/bin/env bash
# Installs Triton for the tests of the trainer's kernels on a machine without a GPU. It stays out of the project's environment, where
# SGLang must not find it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_triton.sh [--check]

  (nothing)  install Triton into .cache/triton, 0.9 GB, some seconds; a second run ends at once
  --check    exit 0 if it is installed as locked, 1 if not; install nothing
TEXT

install_beside "$@"
