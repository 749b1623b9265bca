#!/usr/bin/env bash
# Installs what a desktop of gui-rl needs: Xvfb and Tk where a package manager of Debian can, and pyautogui for the system's Python,
# which is the one that sandboxes have. A second run ends at once.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/.cache/desktop"
lock="$root/requirements/desktop.txt"
build_lock="$root/requirements/desktop_build.txt"
system=/usr/bin/python3

case "${1:-}" in
    -h | --help)
        cat <<'TEXT'
usage: scripts/setup_desktop.sh [--check]

  (nothing)  install Xvfb, Tk and a font with apt-get, which needs root, and pyautogui into .cache/desktop, 40 MB; do nothing for
             what is there
  --check    exit 0 if all of it is there, pyautogui as locked and for this /usr/bin/python3; else name what is missing and exit 1
TEXT
        exit 0
        ;;
    --check | "") ;;
    *)
        echo "setup_desktop: unknown argument '$1'; see --help" >&2
        exit 2
        ;;
esac

has_display() { command -v Xvfb >/dev/null 2>&1; }
has_tk() { "$system" -I -S -c 'import sys, tkinter; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }
fingerprint() { { cat "$lock" "$build_lock" "${BASH_SOURCE[0]}"; "$system" -I -c 'import sys; print(sys.version)'; } | sha256sum | cut -d' ' -f1; }
has_packages() { [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$(fingerprint)" ]; }

if [ "${1:-}" = --check ]; then
    if ! has_display; then echo "Xvfb" >&2; exit 1; fi
    if ! has_tk; then echo "Tk for a $system of 3.10 or newer" >&2; exit 1; fi
    if ! has_packages; then echo "pyautogui for $system" >&2; exit 1; fi
    exit 0
fi
if ! has_display || ! has_tk; then
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
        echo "setup_desktop: install Xvfb and Tk for $system yourself (as root: apt-get install xvfb python3-tk fonts-dejavu-core) and run again" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq xvfb python3-tk fonts-dejavu-core
fi
if ! has_tk; then
    echo "setup_desktop: $system still has no Tk, or is older than 3.10; the desktop needs both" >&2
    exit 1
fi
if has_packages; then exit 0; fi

mkdir -p "$root/.cache"
exec 9>"$root/.cache/desktop.lock"
flock 9
if has_packages; then exit 0; fi
rm -rf "$folder"
"$system" -I -m venv --without-pip "$folder"
pip="$root/.venv/bin/python"
[ -x "$pip" ] || pip=python3
install() {
    if ! "$pip" -m pip --python "$folder/bin/python3" install --quiet --disable-pip-version-check --no-deps --require-hashes --no-compile "$@"; then
        echo "setup_desktop: pip could not install $lock: no package registry in reach, or a file with another hash; pip's words are above" >&2
        exit 1
    fi
}
# pyautogui and pyscreeze have no wheels; they are built with the locked setuptools, and with nothing that pip chooses.
install --only-binary :all: -r "$build_lock"
install --no-build-isolation -r "$lock"
# Sandboxes cannot write here, so the bytecode has to be there; without it each start takes seconds more.
"$folder/bin/python3" -I -m compileall -q -j 0 "$folder/lib"
fingerprint >"$folder/.installed"
