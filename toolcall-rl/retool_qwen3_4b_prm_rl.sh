#!/usr/bin/env bash
# ReTool, Qwen3-4B, with a judge of each step: 8 GPUs, 2 train, 4 serve, 2 judge.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run_name="${RUN_NAME:-retool_qwen3_4b_prm_rl}"
judge_model=Qwen3-4B-Instruct-2507
mapfile -t flags < <(
    MODEL_ARGS_ROTARY_BASE="${MODEL_ARGS_ROTARY_BASE:-5000000}" model_flags qwen3-4B Qwen3-4B-Instruct-2507 slime_retool
    usual_flags 16384 0.6
    rl_flags
    judge_flags "${PRM_GPUS:-2}" 2 1 0.6 4096
)
train "${flags[@]}" \
    --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-2}" \
    --rollout-num-gpus "${ROLLOUT_GPUS:-4}" --rollout-num-gpus-per-engine 2 \
    --kl-loss-coef 0.01 --kl-loss-type k3 --num-steps-per-rollout 2 --save-interval 20 "$@"
