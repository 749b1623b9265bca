#!/usr/bin/env bash
# Installs what the tests of the OpenClaw side run, from the lock files in the repository: Node and OpenClaw, the OpenAI
# JS SDK, and the tools that check the extension. A second run with nothing changed ends at once, without network.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/setup_node.sh [--check] [openclaw | js_client | extension]...

  openclaw   OpenClaw and the Node it needs (tests/openclaw), 0.9 GB, a minute
  js_client  the OpenAI JS SDK (tests/integration/js_client), seconds
  extension  TypeScript, which checks extensions/rl-training-headers, seconds
  (none)     all of them
  --check    exit 0 if they are complete and current, 1 if not; install nothing

Everything goes to .cache/node/NAME; .cache/node/NAME/node_modules/.bin holds the programs.
TEXT
}

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="$root/.cache/node"
declare -A sources=(
    [openclaw]="$root/tests/openclaw"
    [js_client]="$root/tests/integration/js_client"
    [extension]="$root/extensions/rl-training-headers"
)
check=no
names=()
for argument in "$@"; do
    case "$argument" in
        openclaw | js_client | extension) names+=("$argument") ;;
        --check) check=yes ;;
        -h | --help) usage; exit 0 ;;
        *) echo "setup_node: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
    esac
done
[ "${#names[@]}" -gt 0 ] || names=(openclaw js_client extension)

fingerprint() { cat "${sources[$1]}/package.json" "${sources[$1]}/package-lock.json" | sha256sum | cut -d' ' -f1; }
is_current() { [ -f "$cache/$1/.installed" ] && [ "$(cat "$cache/$1/.installed")" = "$(fingerprint "$1")" ]; }

missing=()
for name in "${names[@]}"; do is_current "$name" || missing+=("$name"); done
if [ "${#missing[@]}" -eq 0 ]; then
    [ "$check" = yes ] || echo "setup_node: .cache/node is current (${names[*]})"
    exit 0
fi
if [ "$check" = yes ]; then exit 1; fi
if ! command -v npm >/dev/null 2>&1; then
    echo "setup_node: npm is needed to install Node packages; install it (apt-get install npm) and run again" >&2
    exit 1
fi

# Two runs at once take turns; the second finds everything installed.
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
started=$SECONDS
step() { echo "setup_node [$((SECONDS - started)) s] $*"; }

for name in "${missing[@]}"; do
    if is_current "$name"; then continue; fi
    packages="$(grep -c '"node_modules/' "${sources[$name]}/package-lock.json")"
    step "$name: $packages packages of the lock file"
    folder="$cache/$name"
    mkdir -p "$folder"
    rm -f "$folder/.installed"
    cp "${sources[$name]}/package.json" "${sources[$name]}/package-lock.json" "$folder/"
    if ! (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >install.log 2>&1); then
        cat "$folder/install.log" >&2
        echo "setup_node: npm could not install $name; is a package registry in reach?" >&2
        exit 1
    fi
    fingerprint "$name" >"$folder/.installed"
    step "$name: done"
done
