#!/usr/bin/env bash
# Installs the agent clients that tests and harnesses run, from the lock files in the repository, and the tools that check the
# extension. A second run with nothing changed ends at once, without network.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/setup_node.sh [--check] [NAME]...

  openclaw     OpenClaw and the Node it needs (tests/openclaw), 0.9 GB, a minute
  claude_code  Claude Code (requirements/clients), 0.36 GB, 12 s
  codex        Codex, 0.40 GB, 13 s
  opencode     opencode, 0.18 GB, 5 s; for x86-64
  qwen_code    Qwen Code and the Node it needs, 0.31 GB, 11 s
  js_client    the JS SDKs of OpenAI and Anthropic (tests/integration/js_client), 0.07 GB, 7 s
  extension    TypeScript, which checks extensions/rl-training-headers, seconds
  (none)       all of them
  --check      exit 0 if they are complete and current, 1 if not; install nothing

Everything goes to .cache/node/NAME; .cache/node/NAME/node_modules/.bin holds the programs.
TEXT
}

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cache="$root/.cache/node"
declare -A sources=(
    [openclaw]="$root/tests/openclaw"
    [claude_code]="$root/requirements/clients/claude_code"
    [codex]="$root/requirements/clients/codex"
    [opencode]="$root/requirements/clients/opencode"
    [qwen_code]="$root/requirements/clients/qwen_code"
    [js_client]="$root/tests/integration/js_client"
    [extension]="$root/extensions/rl-training-headers"
)
check=no
names=()
for argument in "$@"; do
    case "$argument" in
        --check) check=yes ;;
        -h | --help) usage; exit 0 ;;
        *)
            if [ -z "${sources[$argument]:-}" ]; then
                echo "setup_node: unknown argument '$argument'" >&2
                usage >&2
                exit 2
            fi
            names+=("$argument")
            ;;
    esac
done
[ "${#names[@]}" -gt 0 ] || names=(openclaw claude_code codex opencode qwen_code js_client extension)

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

failed=()
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
        failed+=("$name")
        continue
    fi
    # OpenClaw's first start completes its package, and a sandbox mounts it read-only.
    if [ "$name" = openclaw ] && ! (cd "$folder/node_modules" && .bin/node openclaw/openclaw.mjs --version >>../install.log 2>&1); then
        cat "$folder/install.log" >&2
        failed+=("$name")
        continue
    fi
    fingerprint "$name" >"$folder/.installed"
    step "$name: done"
done
if [ "${#failed[@]}" -gt 0 ]; then
    echo "setup_node: could not install ${failed[*]}; is a package registry in reach?" >&2
    exit 1
fi
