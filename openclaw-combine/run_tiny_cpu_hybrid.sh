#!/usr/bin/env bash
# Hybrid: the whole loop on a CPU with a tiny model: talk, judge, train, measure. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
demo --method hybrid "$@"
