#!/usr/bin/env bash
# Issues, Qwen3-8B with a judge of each step: 5 machines with 8 GPUs, 16 train, 16 serve, 8 judge.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
name_run run_swe_rl_8b_prm_5nodes_remote
nodes="${TRAIN_NUM_NODES:-4}" judge_model=Qwen3-4B
mapfile -t flags < <(
    model_flags qwen3-8B Qwen3-8B slime_swe
    usual_flags 16384 0.6
    rl_flags generate_with_swe_remote 500 8 4 32768
    machine_flags "$nodes" "$((nodes + 1))" 2
    PRM_MODEL_PATH="${PRM_MODEL_PATH:-$openclaw_root/models/$judge_model}" judge_flags "${PRM_GPUS:-8}" 8 3 1.0 4096
)
train "${flags[@]}" --save-interval 5 -- "$@"
