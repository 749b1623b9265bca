#!/usr/bin/env bash
# Installs the log parsers of swebench, in a folder of their own.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"

read_words "$@" <<'TEXT'
usage: scripts/setup_swebench.sh [--check]

  (nothing)  install swebench's log parsers into .cache/swebench, a few seconds; a second run ends at once
  --check    exit 0 if they are installed as locked, 1 if not; install nothing
TEXT

digest="$(digest_of "" "$lock")"
begin_install "$digest" "$@"
mkdir -p "$folder/source"
sed -n '/^swebench==/,/[^\\]$/p' "$lock" >"$folder/source.txt"
locked_pip install --only-binary :all: --target "$folder/lib" -r "$lock"
locked_pip download --no-binary :all: --dest "$folder/source" -r "$folder/source.txt"
tar -xzf "$folder"/source/*.tar.gz -C "$folder" --strip-components 1 --wildcards '*/tests'
rm -rf "$folder/source" "$folder/source.txt"
echo "$digest" >"$folder/.installed"
