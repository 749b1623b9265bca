#!/usr/bin/env bash
# Installs the package verifiers for `--env verifiers:NAME`, in a virtual environment of its own: its pins conflict with ours.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$root/scripts/python.sh"
folder="$root/.cache/verifiers"
lock="$root/requirements/verifiers.txt"

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_verifiers.sh [--check]

  (nothing)  install verifiers into .cache/verifiers, 0.6 GB, a minute; a second run ends at once
  --check    exit 0 if it is installed as locked, for this Python, 1 if not; install nothing
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_verifiers: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

python="$root/.venv/bin/python"
[ -x "$python" ] || python="$(find_python setup_verifiers)"
fingerprint="$({ cat "$lock" "${BASH_SOURCE[0]}"; "$python" -I -c 'import sys; print(sys.version)'; } | sha256sum | cut -d' ' -f1)"
installed() { [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$fingerprint" ]; }

if installed; then exit 0; fi
if [ "${1:-}" = --check ]; then exit 1; fi

mkdir -p "$root/.cache"
exec 9>"$root/.cache/verifiers.lock"
flock 9
if installed; then exit 0; fi
# A half environment would be taken for a whole one.
trap 'rm -rf "$folder"' EXIT
"$python" -m venv --clear "$folder"
if ! "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: -r "$lock"; then
    echo "setup_verifiers: pip could not install $lock: no package registry in reach, or a file with another hash; pip's words are above" >&2
    exit 1
fi
mkdir -p "$folder/home"
echo "$fingerprint" >"$folder/.installed"
trap - EXIT
