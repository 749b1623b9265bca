#!/usr/bin/env bash
# The same at a service of the Tinker interface, which is a server of ours on this machine. --help lists the options.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
demo --method combine --device tinker "$@"
