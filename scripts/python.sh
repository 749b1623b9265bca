# shellcheck shell=bash
# Sourced by the set-up scripts.

# Print the interpreter for the locks: $PYTHON if it is set, else the first of python3.11, python3.12, python3 that fits. The
# argument names the caller.
find_python() {
    local candidate
    local -a candidates=(python3.11 python3.12 python3)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        echo "$1: PYTHON=$PYTHON is not Python 3.11 or 3.12; unset it, or set PYTHON=/usr/bin/python3.12" >&2
    else
        echo "$1: Python 3.11 or 3.12 is needed; install one or set PYTHON=/usr/bin/python3.11" >&2
    fi
    return 1
}
