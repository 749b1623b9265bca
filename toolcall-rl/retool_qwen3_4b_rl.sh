#!/usr/bin/env bash
# ReTool, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run_name="${RUN_NAME:-retool_qwen3_4b_rl}"
mapfile -t flags < <(
    MODEL_ARGS_ROTARY_BASE="${MODEL_ARGS_ROTARY_BASE:-5000000}" model_flags qwen3-4B Qwen3-4B-Instruct-2507
    usual_flags 16384 0.6
    rl_flags
)
train "${flags[@]}" \
    --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-4}" \
    --rollout-num-gpus "${ROLLOUT_GPUS:-4}" --rollout-num-gpus-per-engine 2 \
    --advantage-estimator grpo --kl-loss-coef 0.01 --kl-loss-type k3 --num-steps-per-rollout 2 --save-interval 20 "$@"
