"""Whether the numbers of a run can be counted with: read before anything is derived from them.

Guarantee: after :func:`check_counts` found nothing no derivation divides by zero.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import flag_of

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
