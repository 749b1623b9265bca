#!/usr/bin/env bash
# ReTool, Qwen2.5-32B, GRPO: 4 machines with 8 GPUs: 16 train, 16 serve.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run_name="${RUN_NAME:-retool_qwen25_32b_rl_4nodes}"
nodes="${NUM_NODES:-4}" trains="${ACTOR_GPUS_PER_NODE:-4}" serves="${ROLLOUT_GPUS_PER_NODE:-4}"
mapfile -t flags < <(
    model_flags qwen2.5-32B ReTool-DeepSeek-R1-Distill-Qwen-32B-SFT slime_retool
    usual_flags 8192 0.8
    rl_flags
)
train "${flags[@]}" --norm-epsilon 1e-6 "${forwarded[@]}" \
    --num-nodes "$nodes" --num-gpus 8 --num-gpus-per-node 8 --head-address "${MASTER_ADDR:-127.0.0.1}:${MASTER_PORT:-6379}" \
    --actor-num-nodes "$nodes" --actor-num-gpus-per-node "$trains" \
    --rollout-num-gpus "$((nodes * serves))" --rollout-num-gpus-per-engine "${SGLANG_GPUS_PER_ENGINE:-4}" \
    --advantage-estimator grpo --kl-loss-coef 0 --kl-loss-type low_var_kl --global-batch-size 256 --save-interval 40 "$@"
