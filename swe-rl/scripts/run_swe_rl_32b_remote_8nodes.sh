#!/usr/bin/env bash
# Issues, Qwen3-32B, GRPO: 8 machines with 8 GPUs, 32 train, 32 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
name_run run_swe_rl_32b_remote_8nodes
nodes="${NUM_NODES:-8}"
mapfile -t flags < <(
    model_flags qwen3-32B Qwen3-32B slime_swe
    usual_flags 8192 0.55
    rl_flags generate_with_swe_remote 2000 8 8 16384
    machine_flags "$nodes" "$nodes" 4
)
train "${flags[@]}" --advantage-estimator grpo --save-interval 2 -- "$@"
