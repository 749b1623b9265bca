#!/usr/bin/env bash
# Installs the package verifiers for `--env verifiers:NAME`, in a virtual environment of its own: its pins conflict with ours.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"
source "$root/scripts/python.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_verifiers.sh [--check]

  (nothing)  install verifiers into .cache/verifiers, 0.6 GB, a minute; a second run ends at once
  --check    exit 0 if it is installed as locked, for this Python, 1 if not; install nothing
TEXT

[ -x "$root/.venv/bin/python" ] || python="$(find_python "$caller")"
digest="$(digest_of "$python" "$lock")"
begin_install "$digest" "$@"
# A half environment would be taken for a whole one.
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder"
python="$folder/bin/python"
locked_pip install --only-binary :all: -r "$lock"
mkdir -p "$folder/home"
echo "$digest" >"$folder/.installed"
trap - EXIT
