#!/usr/bin/env bash
# Resolves the locks in requirements/ with uv, which gets an environment of its own in .cache/lock.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$root/scripts/python.sh"
tool="$root/.cache/lock"
wanted="$root/requirements/lock_tool.txt"
if ! cmp -s "$wanted" "$tool/installed.txt"; then
    case " $* " in
        *" -h "* | *" --help "*) ;;
        *)
            "$(find_python lock)" -m venv --clear "$tool"
            "$tool/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
                --only-binary :all: -r "$wanted"
            cp "$wanted" "$tool/installed.txt"
            ;;
    esac
fi
exec "$(find_python lock)" "$root/scripts/locks.py" --uv "$tool/bin/uv" "$@"
