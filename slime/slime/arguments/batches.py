"""Batches, the end of a run, and samples of older weights: which numbers can be counted with, and which go together.

Guarantee: after :func:`check_counts` found nothing no derivation divides by zero.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.arguments.rollout import DEFAULT_DATA_SOURCE

# Attributes that count something there must be one of; None: not given.
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
# Here none is a number too.
_COUNTS_FROM_NONE = ("num_rollout", "rollout_num_gpus", "prm_num_gpus")
# Rollout functions of the core that generate with the sampling parameters of the run.
_GENERATING = (
    "slime.rollout.sglang_rollout.generate_rollout",
    "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
)


def check_counts(args: Arguments) -> list[str]:
    """Return a line per number that is too small, as it was given."""
    given = [(flag_of(name), getattr(args, name)) for name in _COUNTS]
    problems = [f"{flag} {value}: give 1 or more" for flag, value in given if value is not None and value < 1]
    counts = [(flag_of(name), getattr(args, name)) for name in _COUNTS_FROM_NONE]
    problems += [f"{flag} {value}: give 0 or more" for flag, value in counts if value is not None and value < 0]
    if args.log_probs_chunk_size < 1 and args.log_probs_chunk_size != -1:
        problems.append(f"--log-probs-chunk-size {args.log_probs_chunk_size}: give 1 or more, or -1 for all at once")
    return problems


def check_lengths(args: Arguments) -> list[str]:
    """Return a line per bound on lengths that is missing or leaves no room; after the derivations."""
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
        problems.append("no longest response: add --rollout-max-response-len N")
    return problems


def _generates(args: Arguments) -> bool:
    """Whether the core's own generation answers prompts of this run."""
    replayed = args.debug_train_only or args.load_debug_rollout_data
    own = args.rollout_function_path in _GENERATING and not args.custom_generate_function_path
    return bool(own and args.prompt_data and not replayed)


def check_steps(args: Arguments) -> list[str]:
    """Return the problem with how a rollout is cut into optimizer steps; ``args`` as they were given, before any derivation."""
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
        problems.append("no end: add --num-rollout N (or --num-epoch with --prompt-data)")
    if args.num_epoch is not None and not args.prompt_data:
        problems.append("--num-epoch needs --prompt-data")
    if args.use_dynamic_batch_size and not args.max_tokens_per_gpu:
        problems.append("--use-dynamic-batch-size needs --max-tokens-per-gpu N")
    if args.max_tokens_per_gpu and not args.use_dynamic_batch_size:
        problems.append("--max-tokens-per-gpu has no effect without --use-dynamic-batch-size; add it")
    if args.micro_batch_size != 1 and args.use_dynamic_batch_size:
        problems.append("--micro-batch-size has no effect with --use-dynamic-batch-size; use --max-tokens-per-gpu")
    if args.over_sampling_batch_size < args.rollout_batch_size:
        problems.append("--over-sampling-batch-size is smaller than --rollout-batch-size")
    if args.mask_offpolicy_in_partial_rollout and not args.partial_rollout:
        problems.append("--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout")
    if args.update_weights_interval < 1:
        problems.append(f"--update-weights-interval {args.update_weights_interval}: give 1 or more")
    own_prompts = args.data_source_path == DEFAULT_DATA_SOURCE  # scripts with their own name an interval and no set
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
            f"--max-weight-staleness {args.max_weight_staleness}: give 0 or more, or leave it out for no bound"
        )
    if args.stale_samples == "correct" and args.max_weight_staleness is None:
        problems.append("--stale-samples correct has no effect without --max-weight-staleness N")
    if args.stale_samples == "correct" and not (args.use_tis or args.use_rollout_logprobs):
        problems.append(
            "--stale-samples correct needs a loss that knows who sampled: add --use-tis, or --use-rollout-logprobs "
            "(the clipped ratio is then over the weights that sampled)"
        )
    return problems
