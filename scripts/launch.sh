# shellcheck shell=bash
# Sourced by every launch script; --help of any of them lists the options, --dry-run shows the plan with every variable and flag.
set -euo pipefail

openclaw_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# SGLang and FlashInfer compile kernels with the first `ninja` on the PATH; the environment brings it, activated or not.
openclaw_tools="$openclaw_root/.venv/bin"
# A script, or your copy of one, may set these before it calls `launch`: flags of slime/train_async.py to add, as an array or as
# one text. You may export a text, too. They win over what other variables set; flags after the script's name win over them.
openclaw_flags=(
    CKPT_ARGS ROLLOUT_ARGS EVAL_ARGS REWARD_ARGS GRPO_ARGS OPTIMIZER_ARGS PERF_ARGS LORA_ARGS
    SGLANG_ARGS PRM_ARGS CUSTOM_ARGS WANDB_ARGS MISC_ARGS
)

# Prints the command line of this shell, quoted, so that the run can print the line that continues it; nothing without /proc.
started_as() {
    local -a words=()
    if [ -r "/proc/$$/cmdline" ]; then
        mapfile -d '' words <"/proc/$$/cmdline"
    fi
    echo "${words[*]@Q}"
}

# Exits unless the environment can import what the programs need first: it may be half made.
need_environment() {
    local stamp
    for stamp in "$openclaw_root"/.venv/.setup-*; do
        if [ -f "$stamp" ]; then return; fi
    done
    if [ -x "$openclaw_root/.venv/bin/python" ] && ! "$openclaw_root/.venv/bin/python" -c 'import httpx, rich, yaml' 2>/dev/null; then
        echo "the environment in .venv is not complete; run: bash $openclaw_root/scripts/setup.sh, or wait for the set-up that runs" >&2
        exit 2
    fi
}

# Becomes the launcher. Arguments: its own options and flags of slime/train_async.py; of two equal flags the later one wins.
# Without --method and --task the method is that of the script's folder.
launch() {
    local python="$openclaw_root/.venv/bin/python" name array
    local -a added=()
    name="$(basename "$0" .sh)"
    need_environment
    if [ ! -x "$python" ]; then
        case " $* " in
            *" --dry-run "* | *" --help "* | *" -h "*) python=python3 ;;
            *) python=false ;;
        esac
        if ! "$python" -c 'import sys, httpx, yaml; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "launch: no environment yet; run: bash $openclaw_root/scripts/setup.sh" >&2
            exit 2
        fi
    fi
    case " $* " in
        *" --method "* | *" --method="* | *" --task "* | *" --task="*) ;;
        *) set -- --method "$(cd "$(dirname "$0")" && pwd)" "$@" ;;
    esac
    for array in "${openclaw_flags[@]}"; do
        if [[ "$(declare -p "$array" 2>/dev/null)" == "declare -a"* ]]; then
            array+='[@]'
            added+=("${!array}")
        elif [ -n "${!array:-}" ]; then
            export "${array?}" # the launcher splits a text as a shell does
        fi
    done
    LAUNCHED_AS="$(started_as)" PATH="$openclaw_tools:$PATH" \
        PYTHONPATH="$openclaw_root:$openclaw_root/slime${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m openclaw.launch --name "$name" "${added[@]}" "$@"
}

# Becomes a program of this repository: a file, or -m and a module, with its arguments.
program() {
    need_environment
    if [ ! -x "$openclaw_root/.venv/bin/python" ]; then
        echo "no environment yet; run: bash $openclaw_root/scripts/setup.sh" >&2
        exit 2
    fi
    PATH="$openclaw_tools:$PATH" SLIME_MODEL_COMMAND=".venv/bin/python -m openclaw.models" \
        PYTHONPATH="$openclaw_root:$openclaw_root/slime:$openclaw_root/openclaw-test${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$openclaw_root/.venv/bin/python" "$@"
}

# Becomes the launcher, which trains an agent; or with --served, or with the address of a server, the program in which the model of
# that server plays the agent's tasks. Words: the program, those of the launcher, --, and those of the user. The launcher explains
# --served where PLAYED_BY names the program.
agent() {
    local program="$1" served="" word
    local -a trains=() plays=()
    shift
    while [ "$1" != -- ]; do trains+=("$1"); shift; done
    shift
    for word in "$@"; do
        case "$word" in
            --served) served=yes ;;
            --evaluate) ;;
            --base-url | --base-url=* | --api-base | --api-base=*) served=yes; plays+=("$word") ;;
            *) plays+=("$word") ;;
        esac
    done
    if [ "$served" = yes ]; then
        PYTHONPATH="$openclaw_root/${program%%/*}${PYTHONPATH:+:$PYTHONPATH}" program "$openclaw_root/$program" "${plays[@]}"
    else
        PLAYED_BY="$program" launch "${trains[@]}" "$@"
    fi
}

# Sets up the CPU environment if it is missing and becomes the demo of one method; --dry-run sets up nothing.
demo() {
    case " $* " in
        *" --dry-run "*) ;;
        *) bash "$openclaw_root/scripts/setup.sh" cpu ;;
    esac
    LAUNCHED_AS="$(started_as)" program "$openclaw_root/lab/demo.py" "$@"
}

# Whether the words ask for --dry-run or --help only.
starts_nothing() {
    case " $* " in
        *" --dry-run "* | *" --help "* | *" -h "*) return 0 ;;
    esac
    return 1
}

# Sets up the CPU environment and the sandboxes.
set_up_sandboxes() {
    bash "$openclaw_root/scripts/setup.sh" cpu
    bash "$openclaw_root/scripts/setup_bubblewrap.sh"
}

# Sets up what is missing for an agent program, and becomes the demo of that program; its first two words are --harness and the
# program. --dry-run sets up nothing.
agent_demo() {
    if ! starts_nothing "$@"; then
        set_up_sandboxes
        case "$2" in
            openclaw) bash "$openclaw_root/scripts/setup_node.sh" openclaw ;;
            mini-swe-agent) bash "$openclaw_root/scripts/setup_mini_swe_agent.sh" ;;
        esac
    fi
    program "$openclaw_root/lab/agent_demo.py" "$@"
}

# Sets up what is missing, and becomes the program in which a tiny agent learns; its first two words are --task and what it learns.
# --dry-run sets up nothing.
agent_learning() {
    if ! starts_nothing "$@"; then
        set_up_sandboxes
        if [ "$2" = gui ]; then bash "$openclaw_root/scripts/setup_chromium.sh"; fi
    fi
    LAUNCHED_AS="$(started_as)" program "$openclaw_root/lab/agent_learning.py" "$@"
}
