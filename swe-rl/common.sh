# shellcheck shell=bash
# Sourced by the scripts of this folder. A script says what it trains; here is what all of them have in common.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/agents.sh"
swe_folder="$openclaw_root/swe-rl"

if [ "${ENV_TYPE:-swe}" != swe ]; then
    echo "$(basename "$0" .sh): ENV_TYPE=$ENV_TYPE: this script has swe; take the script of that folder" >&2
    exit 2
fi

# Writes the rows of a split to a file, unless only a plan or help is asked for. Arguments: the split, the file, then the script's own.
write_prompts() {
    local split="$1" file="$2"
    shift 2
    case " $* " in
        *" --dry-run "* | *" --help "* | *" -h "*) ;;
        *) (program -m agentrl.tasks.swe prompts "$file" --split "$split") ;;
    esac
}

# Prints the flags of reinforcement learning on issues, one word a line. Arguments: the module of the plugin, rollouts, their groups, members of a
# group, most tokens of a conversation.
rl_flags() {
    local rollouts="${NUM_ROLLOUT:-$2}" members="${N_SAMPLES:-$4}"
    if [ "${DEBUG_MODE:-0}" = 1 ]; then rollouts=2 members=2; fi
    printf '%s\n' --custom-generate-function-path "$1.generate" --custom-rm-path "$1.reward_func" --dynamic-history \
        --prompt-data "${PROMPT_DATA:-$prompts}" --input-key text --metadata-key metadata --reward-key score \
        --rollout-shuffle --balance-data --num-rollout "$rollouts" --rollout-batch-size "${BATCH_SIZE:-$3}" \
        --n-samples-per-prompt "$members" --num-steps-per-rollout 1 --rollout-temperature 1 \
        --rollout-max-response-len 4096 --rollout-max-context-len "$5" \
        --eps-clip 0.2 --eps-clip-high 0.28 --entropy-coef 0 --use-kl-loss --kl-loss-coef 0 --kl-loss-type low_var_kl
    if [ -n "${EVAL_INTERVAL:-}" ]; then
        printf '%s\n' --eval-interval "$EVAL_INTERVAL" --eval-prompt-data swe "${EVAL_DATA:-$held_out}" \
            --eval-reward-key acc --eval-max-response-len 4096 --eval-max-context-len "$5"
    fi
}

# Prints the flags of several machines with 8 GPUs, one word a line. Arguments: machines that train and serve, all machines, GPUs of an engine.
machine_flags() {
    printf '%s\n' --num-nodes "$2" --num-gpus 8 --num-gpus-per-node 8 \
        --head-address "${MASTER_ADDR:-127.0.0.1}:${MASTER_PORT:-6379}" \
        --actor-num-nodes "$1" --actor-num-gpus-per-node "${ACTOR_GPUS_PER_NODE:-4}" \
        --rollout-num-gpus "$(($1 * ${ROLLOUT_GPUS_PER_NODE:-4}))" \
        --rollout-num-gpus-per-engine "${ROLLOUT_NUM_GPUS_PER_ENGINE:-$3}" \
        --forward-env SWE_BENCHMARK SWE_BENCH_PATH SWE_STEP_LIMIT SWE_COMMAND_SECONDS SWE_TEST_SECONDS SWE_ACTIONS \
        SWE_ENV_SERVER_URL SWE_ROLLOUT_TIMEOUT SANDBOX SANDBOX_IMAGE PARALLEL_ENVS MAX_STEPS
}

# Exits unless the variables are possible; only help needs none. Instances are looked up unless a pool has them and all rows are given.
# Arguments: the script's own.
check_variables() {
    local -a splits=()
    case " $* " in
        *" --help "* | *" -h "*) return ;;
    esac
    if [ -z "${SWE_ENV_SERVER_URL:-${ENV_SERVER_URL:-${AGENTRL_POOL_URL:-}}}" ] || [ -z "${PROMPT_DATA:-}" ]; then splits+=(train); fi
    if [ -n "${EVAL_INTERVAL:-}" ] && [ -z "${EVAL_DATA:-}" ]; then splits+=(heldout); fi
    (program "$swe_folder/check_variables.py" "${splits[@]}") >/dev/null
}

# Becomes the trainer, once the rows that no variable names are written. Arguments: flags of slime/train_async.py, `--`, the script's own arguments;
# of two equal flags the later one wins.
train() {
    local -a flags=()
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
    shift
    check_variables "$@"
    if [ -z "${PROMPT_DATA:-}" ]; then write_prompts train "$prompts" "$@"; fi
    if [ -n "${EVAL_INTERVAL:-}" ] && [ -z "${EVAL_DATA:-}" ]; then write_prompts heldout "$held_out" "$@"; fi
    train_with "$swe_folder" "${flags[@]}" "$@"
}

# Names the run and its files. Argument: the name, where RUN_NAME has none.
name_run() {
    run_name="${RUN_NAME:-$1}"
    prompts="$openclaw_root/runs/$run_name.prompts.jsonl"
    held_out="$openclaw_root/runs/$run_name.heldout.jsonl"
}
