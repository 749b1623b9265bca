# shellcheck shell=bash
# Sourced by the scripts of this folder. A script says what it trains; here is what all of them have in common.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/agents.sh"
toolcall_folder="$openclaw_root/toolcall-rl"

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

# The variables that other machines need.
# shellcheck disable=SC2034
forwarded=(--forward-env TOOLS_CONFIG TOOLCALL_DATA TOOLCALL_ACTIONS TOOLCALL_MAX_CALLS TOOLCALL_ALLOWED_URLS
    TOOLCALL_WRONG_SHAPING PARALLEL_ENVS AGENTRL_POOL_URL)

# Becomes the trainer. Arguments: flags of slime/train_async.py; of two equal flags the later one wins.
train() { train_with "$toolcall_folder" "$@"; }

# Becomes the trainer of Qwen3-4B with GRPO on 8 GPUs, 4 of them for engines. Arguments: more flags.
train_qwen3_4b() {
    local -a flags=()
    mapfile -t flags < <(
        MODEL_ARGS_ROTARY_BASE="${MODEL_ARGS_ROTARY_BASE:-5000000}" model_flags qwen3-4B Qwen3-4B-Instruct-2507 slime_retool
        usual_flags 16384 0.6
        rl_flags
    )
    train "${flags[@]}" \
        --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-4}" \
        --rollout-num-gpus "${ROLLOUT_GPUS:-4}" --rollout-num-gpus-per-engine 2 \
        --advantage-estimator grpo --kl-loss-coef 0.01 --kl-loss-type k3 --num-steps-per-rollout 2 --save-interval 20 "$@"
}
