#!/usr/bin/env bash
# Installs mini-swe-agent for `--harness mini-swe-agent`: for the system's Python, which is the one that sandboxes have.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/.cache/mini_swe_agent"
lock="$root/requirements/mini_swe_agent.txt"
system=/usr/bin/python3

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_mini_swe_agent.sh [--check]

  (nothing)  install mini-swe-agent into .cache/mini_swe_agent, 0.3 GB, a minute; a second run ends at once
  --check    exit 0 if it is installed as locked, for this /usr/bin/python3, 1 if not; install nothing
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_mini_swe_agent: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

if ! "$system" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
    echo "setup_mini_swe_agent: sandboxes need Python 3.10 or newer at $system; install it with scripts/setup_bubblewrap.sh" >&2
    exit 1
fi
fingerprint="$({ cat "$lock" "${BASH_SOURCE[0]}"; "$system" -I -c 'import sys; print(sys.version)'; } | sha256sum | cut -d' ' -f1)"
installed() { [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$fingerprint" ]; }

if installed; then exit 0; fi
if [ "${1:-}" = --check ]; then exit 1; fi

mkdir -p "$root/.cache"
exec 9>"$root/.cache/mini_swe_agent.lock"
flock 9
if installed; then exit 0; fi
rm -rf "$folder"
"$system" -I -m venv --without-pip "$folder"
pip="$root/.venv/bin/python"
[ -x "$pip" ] || pip=python3
if ! "$pip" -m pip --python "$folder/bin/python3" install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --no-compile --only-binary :all: -r "$lock"; then
    echo "setup_mini_swe_agent: pip could not install $lock: no package registry in reach, or a file with another hash; pip's words are above" >&2
    exit 1
fi
# Sandboxes cannot write here, so the bytecode has to be there; without it each start takes seconds more.
"$folder/bin/python3" -I -m compileall -q -j 0 "$folder/lib"
echo "$fingerprint" >"$folder/.installed"
