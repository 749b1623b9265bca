#!/usr/bin/env bash
# Makes the environment of the project in .venv. A second run with nothing changed ends in a second.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/setup.sh [cpu|gpu] [--check | --skip-checks]
       scripts/setup.sh doctor

  cpu            the packages of requirements/cpu.txt, no CUDA (default: what .venv is, else by nvidia-smi)
  gpu            the packages of requirements/gpu.txt: SGLang, torch and their CUDA kernels
  doctor         say what this machine can run and what is missing; exit 1 if it can run nothing
  --check        exit 0 if .venv is complete and current, 1 if not; install nothing
  --skip-checks  gpu: do not look for driver, GPUs, toolkit and disk (to build an image elsewhere)

variables:
  PYTHON       interpreter to build .venv from (default: the first of python3.11, python3.12, python3 that fits)
  TORCH_INDEX  package index with CPU builds of torch, used when the configured index has none
TEXT
}

# Prints what to type in place of a mistyped word: the word that has half of its two-letter pieces or more, or --help.
nearest() {
    local word piece shared best=0 found="--help" index
    for word in cpu gpu doctor --check --skip-checks; do
        shared=0
        for ((index = 0; index < ${#1} - 1; index++)); do
            piece="${1:index:2}"
            if [[ "$word" == *"$piece"* ]]; then shared=$((shared + 1)); fi
        done
        if ((shared > best)); then best=$shared found=$word; fi
    done
    if ((2 * best >= ${#1} - 1 && best > 0)); then echo "; did you mean $found?"; else echo "; type: scripts/setup.sh --help"; fi
}

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$root/scripts/python.sh"
kind=""
check=no
checks=yes
doctor=no
for argument in "$@"; do
    case "$argument" in
        cpu | gpu) kind="$argument" ;;
        doctor) doctor=yes ;;
        --check) check=yes ;;
        --skip-checks) checks=no ;;
        -h | --help) usage; exit 0 ;;
        *) echo "setup: unknown argument '$argument'$(nearest "$argument")" >&2; exit 2 ;;
    esac
done
if [ "$doctor" = yes ] && [ "$#" -gt 1 ]; then
    echo "setup: doctor takes no other argument" >&2
    exit 2
fi
venv="$root/.venv"

# The state a finished environment of a kind records; the argument is the kind.
fingerprint_of() { echo "$(cd "$root" && cat "requirements/$1.txt" scripts/setup.sh | sha256sum | cut -d' ' -f1) $root"; }

is_current() { [ -f "$venv/.setup-$1" ] && [ "$(cat "$venv/.setup-$1")" = "$(fingerprint_of "$1")" ]; }

# Runs the machine check with the Python of the first argument. It needs no environment.
machine_check() { PYTHONPATH="$root/scripts:$root/slime:$root" PYTHONDONTWRITEBYTECODE=1 "$1" -m machine_check "${@:2}"; }

if [ "$doctor" = yes ]; then
    state=none
    for each in cpu gpu; do
        if [ -f "$venv/.setup-$each" ]; then
            if is_current "$each"; then state="$each current"; else state="$each stale"; fi
        elif [ -d "$venv" ] && [ "$state" = none ]; then
            state="none complete"
        fi
    done
    python="$(find_python setup 2>/dev/null || true)"
    machine_check "${python:-python3}" doctor --python "$python" --environment "$state"
    exit
fi

if [ -z "$kind" ]; then
    if [ -f "$venv/.setup-gpu" ]; then
        kind=gpu
    elif [ ! -f "$venv/.setup-cpu" ] && command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
        kind=gpu
    else
        kind=cpu
    fi
fi
if [ "$checks" = no ] && [ "$kind" = cpu ]; then
    echo "setup: --skip-checks is for gpu; the cpu environment has no such checks" >&2
    exit 2
fi

if is_current "$kind"; then
    [ "$check" = yes ] || echo "setup: .venv is current ($kind)"
    exit 0
fi
if [ "$check" = yes ]; then
    echo "setup: .venv is missing or out of date; type: scripts/setup.sh $kind" >&2
    exit 1
fi
# Everything that would make a CUDA environment useless is told at once, before anything is downloaded.
if [ "$kind" = gpu ] && [ "$checks" = yes ]; then
    python="$(find_python setup 2>/dev/null || true)"
    fresh=()
    if [ ! -f "$venv/.setup-gpu" ]; then fresh=(--fresh); fi
    if ! machine_check "${python:-python3}" check --python "$python" "${fresh[@]}"; then
        echo "setup: nothing was installed; to build an image for another machine, add --skip-checks" >&2
        exit 1
    fi
fi

for other in cpu gpu; do
    if [ "$other" != "$kind" ] && [ -f "$venv/.setup-$other" ]; then
        echo "setup: .venv is a $other environment; type: rm -r .venv && scripts/setup.sh $kind, or use another clone" >&2
        exit 1
    fi
done

# Two runs at once (tests in one shell, the demo in another) queue here.
exec 9>"$root/.setup.lock"
flock 9
if is_current "$kind"; then
    echo "setup: .venv is current ($kind)"
    exit 0
fi

started=$SECONDS
step() { echo "setup [$((SECONDS - started)) s] $*"; }

python="$(find_python setup)"
step "1/4 virtual environment in .venv with $("$python" --version)"
if [ ! -x "$venv/bin/python" ]; then "$python" -m venv "$venv"; fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
# Wheels only: what a source archive would be built with has no hash.
install=("${pip[@]}" install --no-deps --require-hashes --only-binary :all:)
lock="$root/requirements/$kind.txt"

# Exits with one line if the file of pip's errors says that a download has a hash that is not in the lock.
refuse_changed_file() {
    local file hash
    if grep -q "DO NOT MATCH THE HASHES" "$1"; then
        file="$(sed -n 's/^ *\([^ ]*==[^ ]* from [^ ]*\).*/\1/p' "$1")"
        hash="$(sed -n 's/^ *Got *//p' "$1")"
        echo "setup: refused $file: its sha256 $hash is not in requirements/$kind.txt; to see your indexes, type: pip config list" >&2
        exit 1
    fi
}

if [ "$kind" = cpu ]; then
    sed -n '/^torch==/,/[^\\]$/p' "$lock" >"$venv/torch.txt"
    torch="$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$lock")"
    step "2/4 torch, CPU build ($torch)"
    if ! "${install[@]}" --quiet -r "$venv/torch.txt" 2>"$venv/torch.err"; then
        refuse_changed_file "$venv/torch.err"
        index="${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
        step "    not on the configured index; trying $index"
        if ! "${install[@]}" --quiet --index-url "$index" -r "$venv/torch.txt" 2>"$venv/index.err"; then
            refuse_changed_file "$venv/index.err"
            cat "$venv/torch.err" "$venv/index.err" >&2
            exit 1
        fi
    fi
    rm -f "$venv/torch.err" "$venv/index.err" "$venv/torch.txt"
    duration="a few minutes"
else
    step "2/4 the lock brings torch, its CUDA libraries and SGLang's kernels: 5 GB to download, 12 GB on disk"
    duration="ten minutes"
fi
total="$(grep -c == "$lock")"
step "3/4 $total pinned packages ($duration on the first run)"
fetched=0
PYTHONUNBUFFERED=1 "${install[@]}" --progress-bar off -r "$lock" 2>"$venv/packages.err" |
    while IFS= read -r line; do
        case "$line" in
            "Collecting "* | "Processing "*)
                fetched=$((fetched + 1))
                if [ $((fetched % 20)) -eq 0 ]; then echo "setup     $fetched of $total packages fetched"; fi
                ;;
            "Installing collected"*) echo "setup     unpacking them" ;;
        esac
    done ||
    {
        refuse_changed_file "$venv/packages.err"
        cat "$venv/packages.err" >&2
        exit 1
    }
rm -f "$venv/packages.err"

step "4/4 the project itself (import path, the command openclaw-rl)"
site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
printf '%s\n%s\n' "$root/slime" "$root" >"$site/openclaw_rl.pth"
printf '#!/bin/sh\nexec "%s" -m openclaw "$@"\n' "$venv/bin/python" >"$venv/bin/openclaw-rl"
chmod +x "$venv/bin/openclaw-rl"
if [ "$kind" = cpu ]; then
    "$venv/bin/python" -c 'import torch, ray, transformers, fastapi' || { echo "setup: the environment does not import; delete .venv and run again" >&2; exit 1; }
    if "${pip[@]}" list --format=freeze | grep -qiE '^nvidia-'; then
        echo "setup: a CUDA package is in the CPU environment; delete .venv and run again" >&2
        exit 1
    fi
else
    without=()
    if [ "$checks" = no ]; then without=(--without-gpu); fi
    machine_check "$venv/bin/python" verify "${without[@]}"
fi
fingerprint_of "$kind" >"$venv/.setup-$kind"
step "done: source .venv/bin/activate"
if [ "$kind" = gpu ]; then
    cat <<'TEXT'
setup: next
  1. fetch a model:                              .venv/bin/python -m openclaw.models Qwen3-4B
                                                 (or name its folder with HF_CKPT)
  2. see which launch scripts fit this machine:  scripts/setup.sh doctor
  3. see the plan, start nothing:                bash openclaw-combine/run_qwen3_4b_openclaw_combine.sh --dry-run
  4. run it:                                     bash openclaw-combine/run_qwen3_4b_openclaw_combine.sh
TEXT
fi
