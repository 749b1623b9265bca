#!/usr/bin/env bash
# As ../run_swe_agent.sh; it starts no engine: serve the model first, and name its address with --api-base.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../run_swe_agent.sh" "$@"
