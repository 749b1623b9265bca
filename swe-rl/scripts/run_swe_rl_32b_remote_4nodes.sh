#!/usr/bin/env bash
# Issues, Qwen3-32B, GRPO: 4 machines with 8 GPUs, 16 train, 16 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
name_run run_swe_rl_32b_remote_4nodes
nodes="${NUM_NODES:-4}"
mapfile -t flags < <(
    model_flags qwen3-32B Qwen3-32B slime_swe
    usual_flags 8192 0.55
    rl_flags generate_with_swe_remote 250 4 4 32768
    machine_flags "$nodes" "$nodes" 4
)
train "${flags[@]}" --advantage-estimator grpo --save-interval 5 -- "$@"
