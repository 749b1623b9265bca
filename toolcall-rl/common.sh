# shellcheck shell=bash
# Sourced by the scripts of this folder. A script says what it trains; here is what all of them have in common.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"
toolcall_folder="$openclaw_root/toolcall-rl"

# Prints the flags of a model's shape and of its checkpoint, one word a line. Arguments: the shape, the checkpoint's folder under models/.
model_flags() {
    local -a MODEL_ARGS=()
    # shellcheck disable=SC1090
    source "$openclaw_root/slime/scripts/models/$1.sh"
    HF_CKPT="${HF_CKPT:-$openclaw_root/models/$2}"
    printf '%s\n' "${MODEL_ARGS[@]}" --hf-checkpoint "$HF_CKPT" --ref-load "${REF_LOAD:-$HF_CKPT}" \
        ${RESUME_LOAD:+--load "$RESUME_LOAD"} --save "${SAVE_CKPT:-$openclaw_root/runs/$run_name/checkpoints}" \
        --run-dir "${RUN_DIR:-$openclaw_root/runs/$run_name}"
    if [ "${RESUME:-0}" = 1 ]; then echo --resume; fi
    if [ "${USE_WANDB:-0}" = 1 ]; then
        printf '%s\n' --use-wandb --wandb-project "${WANDB_PROJECT:-slime_retool}" --wandb-group "$run_name"
    fi
}

# Prints the flags of reinforcement learning on questions, one word a line.
rl_flags() {
    printf '%s\n' --custom-generate-function-path generate_with_retool.generate \
        --custom-rm-path generate_with_retool.reward_func --dynamic-history --reward-key score \
        --prompt-data "${PROMPT_DATA:-$openclaw_root/data/dapo-math-17k.jsonl}" --input-key prompt --label-key label \
        --rollout-shuffle --balance-data --num-rollout "${NUM_ROLLOUT:-3000}" \
        --rollout-batch-size "${BATCH_SIZE:-32}" --n-samples-per-prompt 8 \
        --rollout-max-response-len 8192 --rollout-max-context-len 16384 --rollout-temperature 1 \
        --eps-clip 0.2 --eps-clip-high 0.28 --entropy-coef 0 --use-kl-loss
    if [ -n "${EVAL_DATA:-}" ]; then
        printf '%s\n' --eval-interval 20 --eval-reward-key acc --eval-prompt-data aime "$EVAL_DATA" --n-samples-per-eval-prompt 16 \
            --eval-max-response-len 16384 --eval-max-context-len 32768 --eval-top-p 1
    fi
}

# Prints the flags of optimizer and memory, one word a line. Arguments: most tokens of a micro-batch, the engines' memory share.
usual_flags() {
    printf '%s\n' --train-backend fsdp --optimizer adam --lr "${LEARNING_RATE:-1e-6}" --lr-decay-style constant \
        --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98 --gradient-checkpointing \
        --use-dynamic-batch-size --max-tokens-per-gpu "${MAX_TOKENS_PER_GPU:-$1}" --log-probs-chunk-size 1024 \
        --sglang-mem-fraction-static "$2" --sglang-context-length 32768
}

# Prints the flags of the judge, one word a line. Arguments: its GPUs, GPUs of an engine, votes, temperature, most tokens of an answer.
judge_flags() {
    printf '%s\n' --prm-enable --prm-num-gpus "$1" --prm-num-gpus-per-engine "$2" --prm-m "${PRM_M:-$3}" \
        --prm-model-path "${PRM_MODEL_PATH:-${HF_CKPT:-$openclaw_root/models/$judge_model}}" \
        --prm-step-coef "${PRM_STEP_COEF:-1.0}" --prm-temperature "${PRM_TEMPERATURE:-$4}" \
        --prm-max-new-tokens "${PRM_MAX_NEW_TOKENS:-$5}" --advantage-estimator step_wise
}

# The variables that other machines need.
# shellcheck disable=SC2034
forwarded=(--forward-env TOOLS_CONFIG TOOLCALL_DATA TOOLCALL_ACTIONS TOOLCALL_MAX_CALLS TOOLCALL_ALLOWED_URLS
    TOOLCALL_WRONG_SHAPING PARALLEL_ENVS AGENTRL_POOL_URL)

# Becomes the trainer. Arguments: flags of slime/train_async.py; of two equal flags the later one wins.
train() {
    LAUNCHED_AS="$(started_as)" PYTHONPATH="$toolcall_folder${PYTHONPATH:+:$PYTHONPATH}" \
        program "$openclaw_root/slime/train_async.py" "$@"
}

# Becomes the trainer of Qwen3-4B with GRPO on 8 GPUs, 4 of them for engines. Arguments: more flags.
train_qwen3_4b() {
    local -a flags=()
    mapfile -t flags < <(
        MODEL_ARGS_ROTARY_BASE="${MODEL_ARGS_ROTARY_BASE:-5000000}" model_flags qwen3-4B Qwen3-4B-Instruct-2507
        usual_flags 16384 0.6
        rl_flags
    )
    train "${flags[@]}" \
        --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-4}" \
        --rollout-num-gpus "${ROLLOUT_GPUS:-4}" --rollout-num-gpus-per-engine 2 \
        --advantage-estimator grpo --kl-loss-coef 0.01 --kl-loss-type k3 --num-steps-per-rollout 2 --save-interval 20 "$@"
}
