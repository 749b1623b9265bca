# shellcheck shell=bash
# Sourced by every launch script; --help of any of them lists the options, --dry-run shows the plan with every variable and flag.
set -euo pipefail

openclaw_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# The time of the command, from which a run counts the seconds of its start; bash before 5 has no EPOCHREALTIME.
openclaw_command="${EPOCHREALTIME:-$(date +%s.%N)}"
openclaw_command="{\"command\": ${openclaw_command/,/.}}"
# A script, or your copy of one, may set variables such as OPTIMIZER_ARGS before it calls `launch`: flags of slime/train_async.py to
# add, as an array or as one text. You may export a text, too. They win over what other variables set; flags after the script's
# name win over them. instructions/reference/names.md lists all.

# Prints the command line of this shell, quoted, so that the run can print the line that continues it; nothing without /proc.
started_as() {
    local -a words=()
    if [ -r "/proc/$$/cmdline" ]; then
        mapfile -d '' words <"/proc/$$/cmdline"
    fi
    echo "${words[*]@Q}"
}

# Whether the words ask for --dry-run or --help only.
starts_nothing() {
    case " $* " in
        *" --dry-run "* | *" --help "* | *" -h "*) return 0 ;;
    esac
    return 1
}

# Prints why a Python cannot run the project, or nothing if it can. Further words: the packages that are enough, one with ==VERSION
# also in that version. It looks from /, because folders here have the names of packages.
cannot_run() {
    local python="$1" code='import sys
from importlib import metadata, util
wanted = dict(word.partition("==")[::2] for word in sys.argv[1:])
missing = [name for name in wanted if util.find_spec(name) is None]
if not (3, 11) <= sys.version_info[:2] <= (3, 12):
    print("is Python %d.%d, not 3.11 or 3.12" % sys.version_info[:2])
elif missing:
    print("lacks", ", ".join(missing))
else:
    for name in filter(wanted.get, wanted):
        if metadata.version(name) != wanted[name]:
            print("has %s %s, not %s" % (name, metadata.version(name), wanted[name]))'
    shift
    if [ $# = 0 ]; then
        set -- httpx rich yaml fastapi transformers torch ray "$(sed -n 's/^\(sglang==[^ ]*\).*/\1/p' "$openclaw_root/requirements/gpu.txt")"
    fi
    (cd / && "$python" -c "$code" "$@") || echo "does not start"
}

# Prints the Python of the project: that of .venv, or without one that of the active environment, where pip may have installed
# requirements.txt. Words: the packages that are enough. If there is none it says what to type, and fails.
find_environment() {
    local python="$openclaw_root/.venv/bin/python" setup="bash $openclaw_root/scripts/setup.sh" stamp why
    for stamp in "$openclaw_root"/.venv/.setup-*; do
        if [ -f "$stamp" ] && [ -x "$python" ]; then echo "$python"; return; fi
    done
    if [ -x "$python" ]; then
        why="$(cannot_run "$python" "$@")"
        if [ -n "$why" ]; then echo "the environment in .venv $why; run: $setup, or wait for the set-up that runs" >&2; fi
    else
        python="$(type -P python || type -P python3 || true)"
        why="$(if [ -n "$python" ]; then cannot_run "$python" "$@"; else echo "no Python"; fi)"
        if [ -n "$why" ] && [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
            echo "no .venv, and $python $why; run: $setup, or: pip install -r $openclaw_root/requirements.txt" >&2
        elif [ -n "$why" ]; then
            echo "no environment yet; run: $setup" >&2
        fi
    fi
    if [ -n "$why" ]; then return 1; fi
    echo "$python"
}

# Puts the programs of .venv on the PATH: SGLang and FlashInfer compile kernels with the first `ninja` there.
add_tools() {
    if [ "$1" = "$openclaw_root/.venv/bin/python" ]; then PATH="$openclaw_root/.venv/bin:$PATH"; fi
}

# Exports a variable of flags; an array becomes a text, which the launcher splits as a shell does.
export_flags() {
    local word text="" quote="'\\''"
    local -n array="$1"
    if [[ "$(declare -p "$1")" == "declare -a"* ]]; then
        # Not @Q: it writes bytes outside ASCII, and line ends, in a way that only bash reads.
        for word in ${array[@]+"${array[@]}"}; do text+=" '${word//\'/"$quote"}'"; done
        unset "$1"
        printf -v "$1" %s "$text"
    fi
    export "${1?}"
}

# Becomes the launcher. Arguments: its own options and flags of slime/train_async.py; of two equal flags the later one wins.
# Without --method and --task the method is that of the script's folder.
launch() {
    local python name flags
    local -a enough=()
    name="$(basename "$0" .sh)"
    if starts_nothing "$@"; then enough=(httpx yaml); fi
    python="$(find_environment "${enough[@]}")" || exit 2
    case " $* " in
        *" --method "* | *" --method="* | *" --task "* | *" --task="*) ;;
        *) set -- --method "$(cd "$(dirname "$0")" && pwd)" "$@" ;;
    esac
    for flags in $(compgen -A variable -X '!*_ARGS'); do
        export_flags "$flags"
    done
    add_tools "$python"
    LAUNCHED_AS="$(started_as)" SLIME_START="$openclaw_command" \
        PYTHONPATH="$openclaw_root:$openclaw_root/slime${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m openclaw.launch --name "$name" "$@"
}

# Becomes a program of this repository: a file, or -m and a module, with its arguments.
program() {
    local python shown="python"
    python="$(find_environment)" || exit 2
    add_tools "$python"
    if [ "$python" = "$openclaw_root/.venv/bin/python" ]; then shown=".venv/bin/python"; fi
    SLIME_MODEL_COMMAND="$shown -m openclaw.models" SLIME_START="$openclaw_command" \
        PYTHONPATH="$openclaw_root:$openclaw_root/slime:$openclaw_root/openclaw-test${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" "$@"
}

# Sets up the environment of a kind, cpu or gpu; leaves one alone that pip made and that has all packages.
set_up_packages() {
    local stamp
    for stamp in "$openclaw_root"/.venv/.setup-*; do
        if [ -f "$stamp" ]; then bash "$openclaw_root/scripts/setup.sh" "$1"; return; fi
    done
    if ! find_environment >/dev/null 2>&1; then bash "$openclaw_root/scripts/setup.sh" "$1"; fi
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

# Sets up the environment if it is missing and becomes the demo of one method; --dry-run sets up nothing. An environment for GPUs
# stays one, and --device cuda asks for it.
demo() {
    local kind=cpu
    case " $* " in
        *" --device cuda "* | *" --device=cuda "*) kind=gpu ;;
        *) if [ -f "$openclaw_root/.venv/.setup-gpu" ]; then kind=gpu; fi ;;
    esac
    case " $* " in
        *" --dry-run "*) ;;
        *) set_up_packages "$kind" ;;
    esac
    LAUNCHED_AS="$(started_as)" program "$openclaw_root/lab/demo.py" "$@"
}

# Sets up the packages and the sandboxes.
set_up_sandboxes() {
    set_up_packages cpu
    bash "$openclaw_root/scripts/setup_bubblewrap.sh"
}

# Sets up what is missing for an agent program, and becomes the demo of that program; its first two words are --harness and the
# program. --dry-run sets up nothing.
agent_demo() {
    if ! starts_nothing "$@"; then
        set_up_sandboxes
        case "$2" in
            openclaw | opencode) bash "$openclaw_root/scripts/setup_node.sh" "$2" ;;
            hermes) bash "$openclaw_root/scripts/setup_hermes.sh" ;;
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
