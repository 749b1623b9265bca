#!/usr/bin/env bash
# Installs the package verifiers for `--env verifiers:NAME`, in a virtual environment of its own: its pins conflict with ours.
set -euo pipefail

version=0.4.0
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/.cache/verifiers"

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_verifiers.sh [--check]

  (nothing)  install verifiers into .cache/verifiers, 0.6 GB, a minute; a second run ends at once
  --check    exit 0 if it is installed in the pinned version, 1 if not; install nothing
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_verifiers: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

installed() { [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$version" ]; }

if installed; then exit 0; fi
if [ "${1:-}" = --check ]; then exit 1; fi

mkdir -p "$root/.cache"
exec 9>"$root/.cache/verifiers.lock"
flock 9
if installed; then exit 0; fi
python="$root/.venv/bin/python"
[ -x "$python" ] || python=python3
"$python" -m venv --clear "$folder"
if ! "$folder/bin/pip" install --quiet --disable-pip-version-check "verifiers==$version"; then
    echo "setup_verifiers: pip could not install verifiers==$version; is a package registry in reach?" >&2
    exit 1
fi
mkdir -p "$folder/home"
echo "$version" >"$folder/.installed"
