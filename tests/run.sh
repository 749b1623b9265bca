#!/usr/bin/env bash
# Runs the tests; sets up the environment first if it is missing or old.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: tests/run.sh [--fast | --lint] [pytest arguments]

  (nothing)  lint, unit, contract and integration tests (real SGLang, Ray and training on the CPU)
  --fast     unit and contract tests only, under two minutes
  --lint     ruff, pyright and shellcheck only
TEXT
        exit 0
        ;;
esac

scripts/setup.sh
export PATH="$root/.venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

lint() {
    ruff format --check .
    ruff check .
    pyright
    git ls-files -z -- '*.sh' .ci/run | xargs -0 shellcheck -x
}

# A file's tests stay in one process; two processes keep two cores busy. Their files live in memory where that can be.
# A test that hangs where Python cannot end it (in a collective of torch, say) ends its process and shows where it was.
fast() {
    local memory=/dev/shm status=0
    [ -w "$memory" ] || memory="${TMPDIR:-/tmp}"
    memory="$(mktemp -d -p "$memory" slime-tests-XXXXXX)"
    TMPDIR="$memory" python -m pytest tests/unit tests/contract --numprocesses 2 --dist loadfile \
        -o faulthandler_timeout=330 -o faulthandler_exit_on_timeout=true "$@" || status=$?
    rm -rf "$memory"
    return "$status"
}

# The longest first; conftest.py says what stays in one process.
integration() {
    python -m pytest tests/integration tests/gpu --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 25
}

case "${1:-}" in
    --lint) lint ;;
    --fast) shift; fast "$@" ;;
    *)
        if [ "$#" -eq 0 ]; then lint; fi
        scripts/setup_node.sh || echo "run.sh: the tests of OpenClaw and the JS SDK are skipped" >&2
        if [ "$#" -gt 0 ]; then exec python -m pytest tests "$@"; fi
        fast
        integration
        ;;
esac
