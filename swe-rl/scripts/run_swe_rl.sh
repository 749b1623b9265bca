#!/usr/bin/env bash
# Issues, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve. Generated instances, or those of SWE_BENCH_PATH.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
name_run run_swe_rl
mapfile -t flags < <(
    model_flags qwen3-4B Qwen3-4B slime_swe
    usual_flags 16384 0.6
    rl_flags generate_with_swe 500 8 4 32768
)
train "${flags[@]}" \
    --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-4}" \
    --rollout-num-gpus "${ROLLOUT_GPUS:-4}" --rollout-num-gpus-per-engine 2 \
    --advantage-estimator grpo --save-interval 20 -- "$@"
