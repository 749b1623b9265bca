#!/usr/bin/env bash
# Issues, Qwen3-8B, GRPO: 2 machines with 8 GPUs, 8 train, 8 serve.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
name_run run_swe_rl_8b_remote_2nodes
nodes="${NUM_NODES:-2}"
mapfile -t flags < <(
    model_flags qwen3-8B Qwen3-8B slime_swe
    usual_flags 16384 0.6
    rl_flags generate_with_swe_remote 500 8 4 32768
    machine_flags "$nodes" "$nodes" 2
)
train "${flags[@]}" --advantage-estimator grpo --save-interval 5 -- "$@"
