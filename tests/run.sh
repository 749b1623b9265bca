#!/usr/bin/env bash
# Runs the tests; sets up the environment first if it is missing or old.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: tests/run.sh [--fast | --lint | --long] [pytest arguments]

  (nothing)  lint, unit, contract and integration tests (real SGLang, Ray and training on the CPU)
  --fast     unit and contract tests only, without the slow files among them
  --lint     ruff, pyright, import-linter and shellcheck only
  --long     what the others leave out, for hours: kills at every moment, every tampering agent, thousands of sessions,
             updates tried on one engine, runs over two machines, every promised line, benchmarks
TEXT
        exit 0
        ;;
esac

# Programs beside the environment that some integration tests need; without one its tests are skipped. pip of the environment
# installs the last ten, so that the first setup must have ended; a second one waits for it.
programs() {
    scripts/setup_node.sh || echo "run.sh: the tests of clients that npm did not install are skipped" >&2
    scripts/setup_chromium.sh || echo "run.sh: the tests of gui-rl in a browser and the attacks by one are skipped" >&2
    scripts/setup_bubblewrap.sh || echo "run.sh: the tests of the sandbox are skipped" >&2
    scripts/setup.sh >/dev/null
    scripts/setup_desktop.sh || echo "run.sh: the tests of gui-rl on a desktop are skipped" >&2
    scripts/setup_mini_swe_agent.sh || echo "run.sh: the tests of mini-swe-agent are skipped" >&2
    scripts/setup_hermes.sh || echo "run.sh: the tests of Hermes are skipped" >&2
    scripts/setup_swebench.sh || echo "run.sh: the comparison with swebench's grader is skipped" >&2
    scripts/setup_llama_cpp.sh || echo "run.sh: the test of exported GGUF files in llama.cpp is skipped" >&2
    scripts/setup_vllm.sh || echo "run.sh: the tests of vLLM as the engine are skipped" >&2
    scripts/setup_tinker_cookbook.sh || echo "run.sh: the tests of Tinker's cookbook are skipped" >&2
    scripts/setup_trackio.sh || echo "run.sh: the test of Trackio is skipped" >&2
    scripts/setup_tinker_sdks.sh || echo "run.sh: the tests of older versions of the package tinker are skipped" >&2
    scripts/setup_triton.sh || echo "run.sh: the tests of the trainer's Triton kernels will fail" >&2
}

# Downloads of the programs go beside setup and linters, which use one core.
if [ "$#" = 0 ]; then
    trap wait EXIT
    programs &
fi
scripts/setup.sh
# Hundreds of tests start a Python process; with cached bytecode each starts in half the time.
unset PYTHONDONTWRITEBYTECODE
export PATH="$root/.venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

lint() {
    ruff format --check .
    ruff check .
    pyright
    lint-imports --no-cache
    git ls-files -z -- '*.sh' .ci/run | xargs -0 shellcheck -x
}

# What the files of the fast tests need, several times over: a container may have 64 MB of shared memory.
FAST_KIB=1000000
# A file's tests stay in one process. Two keep two cores busy, and three where tests often wait. A test that hangs where its own
# time-out does not end it (in a collective of torch, in its clean-up) ends its process after the seconds given last, and shows
# where every thread was; so does one whose own time-out is longer: with it a run on a slow machine would have no time left to say so.
PYTEST=(python -m pytest --dist loadfile --max-worker-restart 1 -o faulthandler_exit_on_timeout=true -o)

# Files of unit tests that take long: they run with the integration tests.
slow_files() { grep -rl --include='*.py' '^pytestmark = pytest.mark.slow$' tests/unit tests/contract; }

# The files that these tests write live in memory where that can be.
fast() {
    local place="${TMPDIR:-/tmp}" status=0
    if [ -w /dev/shm ] && [ "$(df -kP /dev/shm | awk 'NR == 2 { print $4 }')" -gt "$FAST_KIB" ]; then place=/dev/shm; fi
    files="$(mktemp -d -p "$place" slime-tests-XXXXXX)"
    mapfile -t slow < <(slow_files)  # the marker alone would leave them out, but every process would import them
    trap 'rm -rf "$files"' EXIT
    TMPDIR="$files" "${PYTEST[@]}" faulthandler_timeout=330 --numprocesses 3 tests/unit tests/contract -m "not slow" \
        "${slow[@]/#/--ignore=}" "$@" ||
        status=$?
    rm -rf "$files"
    return "$status"
}

# In a clean clone every process of the tests would compile them; the linters leave a core free for one that does. If the tests
# cannot be collected, the fast part says so.
compiled() { python -m pytest --collect-only -q tests/unit tests/contract tests/integration tests/security >/dev/null 2>&1 || true; }

# Those with real programs that the marker chooses. The tiny model comes first, by itself: it is there unless its sources changed,
# and then no test's time-out pays for it. Then the longest; conftest.py says what stays in one process.
real() {
    local marker="$1"
    shift
    PYTHONPATH=openclaw-test python -m lab.tiny_models.build
    mapfile -t slow < <(slow_files)
    "${PYTEST[@]}" faulthandler_timeout=1500 --numprocesses 2 tests/integration tests/gpu tests/security "${slow[@]}" \
        --no-loadscope-reorder --durations 25 -m "$marker" "$@"
}

case "${1:-}" in
    --lint) lint ;;
    --fast) shift; fast "$@" ;;
    --long) shift; programs; real long "$@" ;;
    "") compiled & lint; wait; fast; real "not long" ;;
    *) programs; exec python -m pytest tests "$@" ;;
esac
