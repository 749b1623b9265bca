#!/usr/bin/env bash
# The whole loop on a CPU with a tiny model: talk, judge, train, measure. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
demo --method personal "$@"
