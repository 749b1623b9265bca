#!/usr/bin/env bash
# Installs older versions of the package tinker, for the test of the server of openclaw.tinker with each of them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_tinker_sdks.sh [--check]

  (nothing)  install the versions into .cache/tinker_sdks, 10 MB, some seconds; a second run ends at once
  --check    exit 0 if they are installed as locked, 1 if not; install nothing
TEXT

locks=("$root"/requirements/tinker_sdk_*.txt)
digest="$(digest_of "$python" "${locks[@]}")"
begin_install "$digest" "$@"
for lock in "${locks[@]}"; do
    name="$(basename "$lock" .txt)"
    locked_pip install --only-binary :all: --target "$folder/${name#tinker_sdk_}" -r "$lock"
done
echo "$digest" >"$folder/.installed"
