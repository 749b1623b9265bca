# shellcheck shell=bash
# Sourced by scripts/setup_NAME.sh, most of which install requirements/NAME.txt into .cache/NAME. A folder counts as installed if its
# mark has the digest of the lock, of the scripts and of the interpreter.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
caller="${BASH_SOURCE[1]##*/}"
caller="${caller%.sh}"
folder="$root/.cache/${caller#setup_}"
lock="$root/requirements/${caller#setup_}.txt"
system=/usr/bin/python3
python="$root/.venv/bin/python"
[ -x "$python" ] || python=python3
to=() # where pip installs to, if it is not where it runs

# Read the words of a script that has only --help and --check; standard input is the help.
read_words() {
    case "${1:-}" in
        -h | --help)
            cat
            exit 0
            ;;
        --check | "") ;;
        *)
            echo "$caller: unknown argument '$1'; see --help" >&2
            exit 2
            ;;
    esac
}

# Say what keeps the script from its work, and end it.
fail() {
    echo "$caller: $1" >&2
    exit 1
}

# Install packages of Debian (first argument); without apt-get or root, end the script with what to do (second argument).
apt_install() {
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
        fail "$2 yourself (as root: apt-get install $1) and run again"
    fi
    apt-get update -qq
    # shellcheck disable=SC2086 # several names
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq $1
}

# Print the digest of files and of the version of an interpreter; without one the first argument is empty.
digest_of() {
    local interpreter="$1"
    shift
    {
        cat "$@" "${BASH_SOURCE[0]}" "$root/scripts/$caller.sh"
        if [ -n "$interpreter" ]; then "$interpreter" -I -c 'import sys; print(sys.version)'; fi
    } | sha256sum | cut -d' ' -f1
}

# Whether the folder has the mark of this digest.
is_marked() { [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$1" ]; }

# End the script if the folder is marked, or if it was asked (second argument) only to --check. Else wait until no other one
# installs, look again, and remove what is there.
begin_install() {
    if is_marked "$1"; then exit 0; fi
    if [ "${2:-}" = --check ]; then exit 1; fi
    mkdir -p "$root/.cache"
    exec 9>"$folder.lock"
    flock 9
    if is_marked "$1"; then exit 0; fi
    rm -rf "$folder"
}

# Run pip with the words behind its own, or end the script. Only what the lock has a hash for is installed.
locked_pip() {
    local verb="$1"
    shift
    if ! "$python" -m pip "${to[@]}" --quiet --disable-pip-version-check "$verb" --no-deps --require-hashes "$@"; then
        fail "pip could not install $lock: no package registry in reach, or a file with another hash; pip's words are above"
    fi
}

# Make an environment of the system's Python, which is the one that sandboxes have, and point pip at it.
system_environment() {
    "$system" -I -m venv --without-pip "$folder"
    to=(--python "$folder/bin/python3")
}

# Compile the environment. Sandboxes cannot write there, so the bytecode has to be there; without it each start takes seconds more.
compile_environment() { "$folder/bin/python3" -I -m compileall -q -j 0 "$folder/lib"; }

# Install the lock's packages for the system's Python, compiled, and mark the folder; the words are those of the script.
install_for_sandboxes() {
    local digest
    digest="$(digest_of "$system" "$lock")"
    begin_install "$digest" "$@"
    system_environment
    locked_pip install --no-compile --only-binary :all: -r "$lock"
    compile_environment
    echo "$digest" >"$folder/.installed"
}

# Install the lock's packages into a folder of their own, beside the environment, and mark it; the words are those of the script.
install_beside() {
    local digest
    digest="$(digest_of "$python" "$lock")"
    begin_install "$digest" "$@"
    locked_pip install --only-binary :all: --target "$folder/lib" -r "$lock"
    echo "$digest" >"$folder/.installed"
}
