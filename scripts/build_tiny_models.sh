#!/usr/bin/env bash
# Builds the tiny policy and judge of the demo and the tests unless they are there; --help lists the options.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup.sh" cpu
PYTHONPATH="$root:$root/slime:$root/openclaw-test${PYTHONPATH:+:$PYTHONPATH}" \
    exec "$root/.venv/bin/python" -m lab.tiny_models.build "$@"
