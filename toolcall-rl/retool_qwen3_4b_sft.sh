#!/usr/bin/env bash
# ReTool, Qwen3-4B, supervised start: 8 GPUs train, none serve.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run_name="${RUN_NAME:-retool_qwen3_4b_sft}"
mapfile -t flags < <(
    MODEL_ARGS_ROTARY_BASE="${MODEL_ARGS_ROTARY_BASE:-5000000}" model_flags qwen3-4B Qwen3-4B-Instruct-2507 slime_retool
    usual_flags 9216 0.8
)
train "${flags[@]}" \
    --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-8}" --rollout-num-gpus 0 --debug-train-only \
    --rollout-function-path slime.rollout.sft_rollout.generate_rollout \
    --prompt-data "${PROMPT_DATA:-$openclaw_root/data/retool-sft.jsonl}" --input-key messages --tool-key tools \
    --rollout-shuffle --loss-mask-type qwen3 --num-epoch 3 --rollout-batch-size 128 --global-batch-size 128 \
    --loss-type sft_loss --calculate-per-token-loss --disable-compute-advantages-and-returns \
    --lr "${LEARNING_RATE:-1e-5}" --lr-decay-style cosine --min-lr 1e-6 --lr-warmup-fraction 0.1 --adam-beta2 0.95 \
    --save-interval 1000 "$@"
