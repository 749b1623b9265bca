#!/usr/bin/env bash
# As run_swe_rl_32b_remote_8nodes.sh, from the checkpoint folder RESUME_LOAD; by default from that of that script.
RUN_NAME="${RUN_NAME:-run_swe_rl_32b_remote_8nodes}"
export RUN_NAME
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export RESUME_LOAD="${RESUME_LOAD:-${SAVE_CKPT:-$(dirname "$(dirname "$here")")/runs/$RUN_NAME/checkpoints}}"
exec bash "$here/run_swe_rl_32b_remote_8nodes.sh" "$@"
