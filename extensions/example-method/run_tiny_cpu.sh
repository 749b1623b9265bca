#!/usr/bin/env bash
# The example method on a CPU with the tiny model: rollouts on a real engine, a custom loss in the trainer.
# HF_CKPT names another model. Flags after the script's name go to slime/train_async.py; of two equal ones the later wins.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
python="$root/.venv/bin/python"
dry_run=no
case " $* " in *" --dry-run "*) dry_run=yes ;; esac
if [ ! -x "$python" ]; then
    if [ "$dry_run" = yes ]; then python=python3; else bash "$root/scripts/setup.sh" cpu; fi
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONPATH="$here:$root/slime:$root${PYTHONPATH:+:$PYTHONPATH}"

if [ -z "${HF_CKPT:-}" ]; then
    export PYTHONPATH="$PYTHONPATH:$root/openclaw-test"
    if [ "$dry_run" = yes ]; then
        HF_CKPT="$("$python" -c "from lab.tiny_models.cache import model_path; print(model_path())")"
    else
        HF_CKPT="$("$python" -m lab.tiny_models.build)"
    fi
fi

METHOD_ARGS=(
    --rollout-function-path example_rollout.generate_rollout
    --custom-generate-function-path example_generate.generate
    --custom-rm-path example_reward.reward_func --reward-key score
    --dynamic-sampling-filter-path example_filter.keep_group
    --data-source-path example_data_source.SumsDataSource
    --loss-type custom_loss --custom-loss-function-path "$here/example_loss.py"
    --custom-arguments-path "$here/example_arguments.py" --example-imitation 0.05
)
RUN_ARGS=(
    --device cpu --actor-num-gpus-per-node 1 --rollout-num-gpus 1
    --num-rollout 4 --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 48
    --use-dynamic-batch-size --max-tokens-per-gpu 1024 --lr 1e-4
)
cd "$root/slime"
exec "$python" train_async.py --hf-checkpoint "$HF_CKPT" "${METHOD_ARGS[@]}" "${RUN_ARGS[@]}" "$@"
