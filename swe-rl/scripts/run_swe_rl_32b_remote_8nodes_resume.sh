#!/usr/bin/env bash
# As run_swe_rl_32b_remote_8nodes.sh, from the checkpoint folder RESUME_LOAD; by default from that of that script.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh"
launch --task swe --model qwen3-32B --profile nodes8_32b_resume --name run_swe_rl_32b_remote_8nodes "$@"
