#!/usr/bin/env bash
# Tool tasks, Qwen3-4B, GRPO: 8 GPUs. Generated tasks, or those of PROMPT_DATA, with the tools of TOOLS_CONFIG.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${ENV_TYPE:-toolcall}" != toolcall ]; then
    echo "run_toolcall_rl: ENV_TYPE=$ENV_TYPE: this script has toolcall; take the script of that folder" >&2
    exit 2
fi
export TOOLS_CONFIG="${TOOLS_CONFIG:-$toolcall_folder/tools_config.json}"
if [ ! -f "$TOOLS_CONFIG" ]; then
    echo "run_toolcall_rl: TOOLS_CONFIG=$TOOLS_CONFIG: no such file; see $toolcall_folder/tools_config.json" >&2
    exit 2
fi
TOOLS_CONFIG="$(cd "$(dirname "$TOOLS_CONFIG")" && pwd)/$(basename "$TOOLS_CONFIG")"
export PARALLEL_ENVS="${PARALLEL_ENVS:-64}"
run_name="${RUN_NAME:-run_toolcall_rl}"
prompts="$openclaw_root/runs/$run_name.prompts.jsonl"
if [ -z "${PROMPT_DATA:-}" ]; then
    case " $* " in
        *" --dry-run "* | *" --help "* | *" -h "*) ;;
        *)
            mkdir -p "$openclaw_root/runs"
            rm -f "$prompts"
            (program -m agentrl.tasks.toolcall prompts "$prompts" --count 200)
            ;;
    esac
fi
PROMPT_DATA="${PROMPT_DATA:-$prompts}"
mapfile -t flags < <(
    MODEL_ARGS_ROTARY_BASE="${MODEL_ARGS_ROTARY_BASE:-5000000}" model_flags qwen3-4B Qwen3-4B-Instruct-2507
    usual_flags 16384 0.6
    rl_flags
)
train "${flags[@]}" \
    --num-gpus "${NUM_GPUS:-8}" --actor-num-gpus-per-node "${ACTOR_GPUS:-4}" \
    --rollout-num-gpus "${ROLLOUT_GPUS:-4}" --rollout-num-gpus-per-engine 2 \
    --advantage-estimator grpo --kl-loss-coef 0.01 --kl-loss-type k3 --num-steps-per-rollout 2 --save-interval 20 "$@"
