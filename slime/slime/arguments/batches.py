"""Checks of batch sizes, run length, sequence lengths and sample staleness.

Guarantee: once :func:`check_counts` returns no problem, no derivation divides by zero.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.arguments.rollout import DEFAULT_DATA_SOURCE

# Attributes that must be 1 or more; None: not given.
_COUNTS = (
    "rollout_batch_size",
    "n_samples_per_prompt",
    "n_samples_per_eval_prompt",
    "over_sampling_batch_size",
    "global_batch_size",
    "num_steps_per_rollout",
    "micro_batch_size",
    "max_tokens_per_gpu",
    "num_epoch",
    "save_interval",
    "eval_interval",
    "rollout_max_response_len",
    "rollout_max_context_len",
    "rollout_max_prompt_len",
    "num_gpus_per_node",
    "rollout_num_gpus_per_engine",
    "prm_num_gpus_per_engine",
    "prm_m",
    "sglang_server_concurrency",
    "update_weight_buffer_size",
    "lora_rank",
    "memory_snapshot_num_steps",
    "expert_tensor_parallel_size",
    "recompute_num_layers",
)
# Attributes that must be 0 or more.
_COUNTS_FROM_NONE = ("num_rollout", "rollout_num_gpus", "prm_num_gpus")
# The core's rollout functions that use the run's sampling parameters.
_GENERATING = (
    "slime.rollout.sglang_rollout.generate_rollout",
    "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
)


def check_counts(args: Arguments) -> list[str]:
    """Return one line per count that is too small; pass ``args`` before derivation."""
    given = [(flag_of(name), getattr(args, name)) for name in _COUNTS]
    problems = [f"{flag} {value}: give 1 or more" for flag, value in given if value is not None and value < 1]
    counts = [(flag_of(name), getattr(args, name)) for name in _COUNTS_FROM_NONE]
    problems += [f"{flag} {value}: give 0 or more" for flag, value in counts if value is not None and value < 0]
    if args.log_probs_chunk_size < 1 and args.log_probs_chunk_size != -1:
        problems.append(f"--log-probs-chunk-size {args.log_probs_chunk_size}: give 1 or more, or -1 for all at once")
    return problems


def check_lengths(args: Arguments) -> list[str]:
    """Return one line per length bound that is missing or leaves no room; pass derived ``args``."""
    problems = []
    longest, context = args.rollout_max_response_len, args.rollout_max_context_len
    if longest and context and longest >= context:
        problems.append(
            f"--rollout-max-response-len {longest} leaves no room for a prompt in --rollout-max-context-len {context}"
        )
    for kind in ("rollout", "eval"):
        prompt, context = getattr(args, f"{kind}_max_prompt_len"), getattr(args, f"{kind}_max_context_len")
        if prompt and context and prompt >= context:
            problems.append(
                f"--{kind}-max-prompt-len {prompt} leaves no room for a response in --{kind}-max-context-len {context}"
            )
    if longest is None and _generates(args):
        problems.append("no maximum response length: add --rollout-max-response-len N")
    return problems


def _generates(args: Arguments) -> bool:
    """Whether the core's own generation function answers prompts in this run."""
    replayed = args.debug_train_only or args.load_debug_rollout_data
    own = args.rollout_function_path in _GENERATING and not args.custom_generate_function_path
    return bool(own and args.prompt_data and not replayed)


def check_steps(args: Arguments) -> list[str]:
    """Return the problem with how a rollout splits into optimizer steps; pass ``args`` before derivation."""
    steps, batch = args.num_steps_per_rollout, args.global_batch_size
    if args.rollout_batch_size is None:
        return []
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    product = f"--rollout-batch-size {args.rollout_batch_size} x --n-samples-per-prompt {args.n_samples_per_prompt} = {samples} samples"
    if steps and batch:
        wrong = steps * batch != samples
        return [f"{product} are not {steps} steps of --global-batch-size {batch}; remove one of the two"] * wrong
    flag, value = ("--num-steps-per-rollout", steps) if steps else ("--global-batch-size", batch or samples)
    return [f"{flag} {value} does not divide {product}; give a divisor of {samples}"] * bool(samples % value)


def check_batches(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.rollout_batch_size is None:
        problems.append("no batch size: add --rollout-batch-size N")
        return problems
    if args.num_rollout is None and args.num_epoch is None:
        problems.append("no length of the run: add --num-rollout N (or --num-epoch with --prompt-data)")
    if args.num_epoch is not None and not args.prompt_data:
        problems.append("--num-epoch needs --prompt-data")
    if args.use_dynamic_batch_size and not args.max_tokens_per_gpu:
        problems.append("--use-dynamic-batch-size needs --max-tokens-per-gpu N")
    if args.max_tokens_per_gpu and not args.use_dynamic_batch_size:
        problems.append("--max-tokens-per-gpu has no effect without --use-dynamic-batch-size; add it")
    if args.micro_batch_size != 1 and args.use_dynamic_batch_size:
        problems.append("--micro-batch-size has no effect with --use-dynamic-batch-size; use --max-tokens-per-gpu")
    if args.over_sampling_batch_size < args.rollout_batch_size:
        problems.append("--over-sampling-batch-size is smaller than --rollout-batch-size; raise it, or remove it")
    if args.mask_offpolicy_in_partial_rollout and not args.partial_rollout:
        problems.append("--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout; add it")
    if args.update_weights_interval < 1:
        problems.append(f"--update-weights-interval {args.update_weights_interval}: give 1 or more")
    own_prompts = (
        args.data_source_path == DEFAULT_DATA_SOURCE
    )  # scripts with their own data source give an interval but no set
    same_function = args.eval_function_path == args.rollout_function_path
    if args.eval_interval and not args.eval_datasets and same_function and own_prompts:
        problems.append(
            "--eval-interval needs --eval-prompt-data NAME PATH, --eval-config FILE or --eval-function-path"
        )
    return problems


def check_staleness(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.max_weight_staleness is not None and args.max_weight_staleness < 0:
        problems.append(
            f"--max-weight-staleness {args.max_weight_staleness}: give 0 or more, or remove it for no bound"
        )
    if args.stale_samples != "drop" and args.max_weight_staleness is None:
        problems.append(f"--stale-samples {args.stale_samples} has no effect without --max-weight-staleness N; add it")
    if args.stale_samples == "correct" and not (args.use_tis or args.use_rollout_logprobs):
        problems.append(
            "--stale-samples correct needs a loss that uses the sampling policy: add --use-tis, or --use-rollout-logprobs "
            "(the clipped ratio is then relative to the weights that sampled)"
        )
    return problems
