# shellcheck shell=bash
# Sourced by the folders whose scripts start slime/train_async.py themselves: what these scripts have in common.
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

# Prints the flags of a model's shape and of its checkpoint, one word a line. Arguments: the shape, the checkpoint's folder under models/, the
# project of W&B.
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
        printf '%s\n' --use-wandb --wandb-project "${WANDB_PROJECT:-$3}" --wandb-group "$run_name"
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

# Becomes the trainer with the plugins of a folder. Arguments: the folder; flags of slime/train_async.py; of two equal flags the later one wins.
train_with() {
    local folder="$1" launched
    local -a typed=()
    shift
    (program -m openclaw.launch.known_names) >/dev/null
    launched="$(started_as)"
    eval "typed=($launched)"
    # All words but the interpreter, the script and what was typed behind it are the script's own.
    LAUNCHED_AS="$launched" SLIME_SCRIPT_WORDS="$((${#typed[@]} > 1 ? $# - ${#typed[@]} + 2 : 0))" PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}" \
        program "$openclaw_root/slime/train_async.py" "$@"
}
