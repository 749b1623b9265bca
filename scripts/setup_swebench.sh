#!/usr/bin/env bash
# Installs the log parsers of swebench, in a folder of their own.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/.cache/swebench"
lock="$root/requirements/swebench.txt"

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_swebench.sh [--check]

  (nothing)  install swebench's log parsers into .cache/swebench, a few seconds; a second run ends at once
  --check    exit 0 if they are installed as locked, 1 if not; install nothing
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_swebench: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

fingerprint="$(cat "$lock" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)"
installed() { [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$fingerprint" ]; }

if installed; then exit 0; fi
if [ "${1:-}" = --check ]; then exit 1; fi

mkdir -p "$root/.cache"
exec 9>"$root/.cache/swebench.lock"
flock 9
if installed; then exit 0; fi
rm -rf "$folder"
mkdir -p "$folder/source"
python="$root/.venv/bin/python"
[ -x "$python" ] || python=python3
pip=("$python" -m pip --quiet --disable-pip-version-check)
sed -n '/^swebench==/,/[^\\]$/p' "$lock" >"$folder/source.txt"
if ! "${pip[@]}" install --no-deps --require-hashes --only-binary :all: --target "$folder/lib" -r "$lock" ||
    ! "${pip[@]}" download --no-deps --require-hashes --no-binary :all: --dest "$folder/source" -r "$folder/source.txt"; then
    echo "setup_swebench: pip could not install $lock: no package registry in reach, or a file with another hash; pip's words are above" >&2
    exit 1
fi
tar -xzf "$folder"/source/*.tar.gz -C "$folder" --strip-components 1 --wildcards '*/tests'
rm -rf "$folder/source" "$folder/source.txt"
echo "$fingerprint" >"$folder/.installed"
