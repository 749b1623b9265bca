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
train_qwen3_4b "$@"
