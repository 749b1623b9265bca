#!/usr/bin/env bash
# Installs what a desktop of gui-rl needs: Xvfb and Tk where a package manager of Debian can, and pyautogui for the system's Python,
# which is the one that sandboxes have. A second run ends at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/installing.sh"
build_lock="$root/requirements/desktop_build.txt"

read_words "$@" <<'TEXT'
usage: scripts/setup_desktop.sh [--check]

  (nothing)  install Xvfb, Tk and a font with apt-get, which needs root, and pyautogui into .cache/desktop, 40 MB; do nothing for
             what is there
  --check    exit 0 if all of it is there, pyautogui as locked and for this /usr/bin/python3; else name what is missing and exit 1
TEXT

has_display() { command -v Xvfb >/dev/null 2>&1; }
has_tk() { "$system" -I -S -c 'import sys, tkinter; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

if [ "${1:-}" = --check ]; then
    if ! has_display; then echo "Xvfb" >&2; exit 1; fi
    if ! has_tk; then echo "Tk for a $system of 3.10 or newer" >&2; exit 1; fi
    if ! is_marked "$(digest_of "$system" "$lock" "$build_lock")"; then echo "pyautogui for $system" >&2; exit 1; fi
    exit 0
fi
if ! has_display || ! has_tk; then
    apt_install "xvfb python3-tk fonts-dejavu-core" "install Xvfb and Tk for $system"
fi
if ! has_tk; then fail "$system still has no Tk, or is older than 3.10; the desktop needs both"; fi

digest="$(digest_of "$system" "$lock" "$build_lock")"
begin_install "$digest"
system_environment
# pyautogui and pyscreeze have no wheels; they are built with the locked setuptools, and with nothing that pip chooses.
locked_pip install --no-compile --only-binary :all: -r "$build_lock"
locked_pip install --no-compile --no-build-isolation -r "$lock"
compile_environment
echo "$digest" >"$folder/.installed"
