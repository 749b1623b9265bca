# shellcheck shell=bash
# Sourced by every launch script. `launch` becomes the launcher: variables, flags and --dry-run are explained by
# `bash openclaw-combine/run_qwen3_4b_openclaw_combine.sh --dry-run` and `python -m openclaw.launch --help`.

openclaw_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Arguments: the launcher's own options and flags of slime/train_async.py; of two equal flags the later one wins.
launch() {
    local python="$openclaw_root/.venv/bin/python" name
    local -a lora=()
    name="$(basename "$0" .sh)"
    if [ ! -x "$python" ]; then
        case " $* " in
            *" --dry-run "*) python=python3 ;;
            *) echo "launch: no environment yet; run: bash $openclaw_root/scripts/setup.sh" >&2; exit 2 ;;
        esac
    fi
    read -ra lora <<<"${LORA_ARGS:-}"
    PYTHONPATH="$openclaw_root:$openclaw_root/slime${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m openclaw.launch --name "$name" "${lora[@]}" "$@"
}

# Sets up the CPU environment if it is missing and becomes the demo of one method.
demo() {
    bash "$openclaw_root/scripts/setup.sh" cpu
    PYTHONPATH="$openclaw_root:$openclaw_root/slime:$openclaw_root/openclaw-test${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$openclaw_root/.venv/bin/python" "$openclaw_root/openclaw-test/demo.py" "$@"
}
