#!/usr/bin/env bash
# Makes the environment of the project in .venv. A second run with nothing changed ends in a second.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/setup.sh [cpu|gpu] [--check]

  cpu      a complete pinned environment without any CUDA package (default: what .venv is, else by nvidia-smi)
  gpu      SGLang with its CUDA kernels, resolved under requirements/gpu-constraints.txt
  --check  exit 0 if .venv is complete and current, 1 if not; install nothing

variables:
  PYTHON       interpreter to build .venv from (default: the first of python3.11, python3.12, python3 that fits)
  TORCH_INDEX  package index with CPU builds of torch, used when the configured index has none
TEXT
}

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
kind=""
check=no
for argument in "$@"; do
    case "$argument" in
        cpu | gpu) kind="$argument" ;;
        --check) check=yes ;;
        -h | --help) usage; exit 0 ;;
        *) echo "setup: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
    esac
done
venv="$root/.venv"
if [ -z "$kind" ]; then
    if [ -f "$venv/.setup-gpu" ]; then
        kind=gpu
    elif [ ! -f "$venv/.setup-cpu" ] && command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
        kind=gpu
    else
        kind=cpu
    fi
fi

stamp="$venv/.setup-$kind"
fingerprint="$(cd "$root" && cat "requirements/$kind"*.txt scripts/setup.sh | sha256sum | cut -d' ' -f1) $root"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; then
    [ "$check" = yes ] || echo "setup: .venv is current ($kind)"
    exit 0
fi
if [ "$check" = yes ]; then exit 1; fi
for other in cpu gpu; do
    if [ "$other" != "$kind" ] && [ -f "$venv/.setup-$other" ]; then
        echo "setup: .venv is a $other environment; delete it, or make the $kind one in another clone" >&2
        exit 1
    fi
done

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: Python 3.11 or 3.12 is needed; install one or set PYTHON=/usr/bin/python3.11" >&2
    exit 1
}

# Two runs at once (tests in one shell, the demo in another) take turns.
exec 9>"$root/.setup.lock"
flock 9
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; then
    echo "setup: .venv is current ($kind)"
    exit 0
fi

started=$SECONDS
step() { echo "setup [$((SECONDS - started)) s] $*"; }

python="$(find_python)"
step "1/4 virtual environment in .venv with $("$python" --version)"
if [ ! -x "$venv/bin/python" ]; then "$python" -m venv "$venv"; fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

if [ "$kind" = cpu ]; then
    torch="$(grep -E '^torch==' "$root/requirements/cpu.txt")"
    step "2/4 torch, CPU build ($torch)"
    if ! "${pip[@]}" install --quiet --no-deps "$torch" 2>"$venv/torch.err"; then
        index="${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
        step "    not on the configured index; trying $index"
        "${pip[@]}" install --quiet --no-deps --index-url "$index" "$torch" || { cat "$venv/torch.err" >&2; exit 1; }
    fi
    rm -f "$venv/torch.err"
    total="$(grep -c == "$root/requirements/cpu.txt")"
    step "3/4 $total pinned packages (a few minutes on the first run)"
    PYTHONUNBUFFERED=1 "${pip[@]}" install --no-deps --progress-bar off -r "$root/requirements/cpu.txt" 2>"$venv/packages.err" |
        awk -v total="$total" '
            /^(Collecting|Processing) / { if (++n % 20 == 0) { printf "setup     %d of %d packages fetched\n", n, total; fflush() } }
            /^Installing collected/ { print "setup     unpacking them"; fflush() }' ||
        { cat "$venv/packages.err" >&2; exit 1; }
    rm -f "$venv/packages.err"
else
    step "2/4 packages for CUDA, resolved under constraints (ten minutes on the first run)"
    "${pip[@]}" install --progress-bar on -r "$root/requirements/gpu.txt" -c "$root/requirements/gpu-constraints.txt"
    step "3/4 checking that torch sees CUDA"
    "$venv/bin/python" -c 'import torch, sys; sys.exit(0 if torch.version.cuda else "setup: torch has no CUDA; run scripts/setup.sh cpu instead")'
fi

step "4/4 the project itself (import path)"
site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
printf '%s\n%s\n' "$root/slime" "$root" >"$site/openclaw_rl.pth"
"$venv/bin/python" -c 'import torch, ray, transformers, fastapi' || { echo "setup: the environment does not import; delete .venv and run again" >&2; exit 1; }
if [ "$kind" = cpu ] && "${pip[@]}" list --format=freeze | grep -qiE '^nvidia-'; then
    echo "setup: a CUDA package is in the CPU environment; delete .venv and run again" >&2
    exit 1
fi
echo "$fingerprint" >"$stamp"
step "done: source .venv/bin/activate"
