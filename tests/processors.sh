#!/usr/bin/env bash
# Runs the tests that compare numbers as other processors would compute them; prints a line for each.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: tests/processors.sh [--integration] [pytest arguments]

  (nothing)      unit tests, about a minute for each processor on two idle cores
  --integration  also those that start ranks, twenty minutes and more in all

A line shows a digest of a few products (another digest: the setting changes results), the largest error as a share of its
tolerance (tests/helpers/tolerance.py), the outcome, and the setting.
TEXT
        exit 0
        ;;
esac

scripts/setup.sh
export PATH="$root/.venv/bin:$PATH" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

# Upper limits, so that an older processor ignores those that are beyond it. The last is the strongest: every sum and function.
SETTINGS=(
    "OMP_NUM_THREADS=1"
    "OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41"
    "OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2"
    "OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE"
    "OMP_NUM_THREADS=2 MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX"
    "OMP_NUM_THREADS=1 TESTS_ROUNDING=other"
)
DIGEST='
import hashlib, torch, tests
a = torch.randn(37, 64, generator=torch.Generator().manual_seed(0))
found = [a @ a.T, (a @ a.T).log_softmax(-1), torch.nn.functional.silu(a), torch.nn.functional.conv2d(a[None], a[:4, :16].reshape(4, 1, 4, 4), stride=4)]
print(hashlib.sha256(b"".join(x.numpy().tobytes() for x in found)).hexdigest()[:8])'

folders=(tests/unit)
if [ "${1:-}" = --integration ]; then shift; folders+=(tests/integration); fi
# The helpers named here compare for their callers.
mapfile -t files < <(git grep -lE 'helpers.*\b(tolerance|gradient_cases|vision_samples|vocab_ranks)\b' -- "${folders[@]/%//*.py}")

margins="$(mktemp -d)"
trap 'rm -rf "$margins"' EXIT
failed=0
for setting in "${SETTINGS[@]}"; do
    read -ra words <<<"$setting"
    words+=("TESTS_MARGINS=$margins/margins")
    : >"$margins/margins"
    outcome=0
    env "${words[@]}" python -m pytest -q -p no:cacheprovider "${files[@]}" "$@" >"$margins/log" 2>&1 || outcome=$?
    worst="$(sort -rn "$margins/margins" | awk 'NR == 1 { print $1 }')"
    printf '%s  %-6s  %s  %s\n' "$(env "${words[@]}" python -c "$DIGEST")" "${worst:-none}" "$(tail -n 1 "$margins/log")" "$setting"
    if [ "$outcome" -ne 0 ]; then failed=1; grep -E '^(FAILED|ERROR|E  )' "$margins/log" >&2 || cat "$margins/log" >&2; fi
done
exit "$failed"
