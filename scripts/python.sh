# shellcheck shell=bash
# Sourced by the set-up scripts.

# Print the first interpreter that fits the locks: $PYTHON, then python3.11, python3.12, python3. The argument names the caller.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "$1: Python 3.11 or 3.12 is needed; install one or set PYTHON=/usr/bin/python3.11" >&2
    return 1
}
