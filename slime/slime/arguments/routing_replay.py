"""Check that a run can replay the experts of its tokens.

Guarantee: a run with nothing to replay, or no router to replay it in, is refused by name before anything starts.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.model_shape import number_of_experts, text_config
from slime.arguments.placement import pipeline_stages

# Data sources whose samples never record experts.
_WITHOUT_EXPERTS = ("openclaw.training.rollout.LedgerDataSource",)
# SGLang indexes its expert record by the token's slot in the GPU's cache, and records the layers of one stage only.
_CACHES_ELSEWHERE = ("sglang_enable_hierarchical_cache", "sglang_enable_lmcache")


def derive_routing_replay(args: Arguments) -> None:
    """Enable --use-routing-replay when --use-rollout-routing-replay is given."""
    args.use_routing_replay |= args.use_rollout_routing_replay


def check_routing_replay(args: Arguments, config: dict | None) -> list[str]:
    """Return the problems, one line each; ``config`` is the checkpoint's, None if it is on another machine."""
    if not args.use_routing_replay:
        return []
    flag = "--use-rollout-routing-replay" if args.use_rollout_routing_replay else "--use-routing-replay"
    if config is not None and not number_of_experts(text_config(config)):
        return [f"{flag}: {args.hf_checkpoint} has no experts; remove it"]
    if args.train_backend != "megatron":
        return [f"{flag} needs --train-backend megatron, the only back end that trains experts"]
    if args.loss_type == "sft_loss":
        return [f"{flag} has no effect with --loss-type sft_loss, whose data no policy sampled; remove it"]
    live = args.data_source_path in _WITHOUT_EXPERTS
    if args.use_rollout_routing_replay:
        problems = [
            f"{flag}: with {word} an engine reports experts that it did not sample with; change one of them"
            for word in _wrong_reports(args)
        ]
        if live:
            problems.append(
                f"{flag}: turns of conversations ({args.data_source_path}) record no experts; use --use-routing-replay "
                "without --use-rollout-logprobs"
            )
        return problems
    if args.use_rollout_logprobs or not args.compute_advantages_and_returns:
        skips = "--use-rollout-logprobs" if args.use_rollout_logprobs else "--disable-compute-advantages-and-returns"
        instead = "remove that" if live and args.use_rollout_logprobs else "use --use-rollout-routing-replay"
        return [f"{flag} records experts in the pass of old logprobs, which {skips} skips; {instead}"]
    return []


def _wrong_reports(args: Arguments) -> list[str]:
    """Return engine flags that silently corrupt the expert record, which follows one GPU's cache and one stage."""
    stages = pipeline_stages(args)
    flags = [f"--sglang-pp-size {stages}"] if stages > 1 else []
    guesser = args.sglang_speculative_algorithm
    if guesser == "NGRAM":
        flags.append("--sglang-speculative-algorithm NGRAM")
    elif guesser and args.sglang_speculative_eagle_topk != 1:  # accepted drafts of a tree move within the cache
        flags.append(f"--sglang-speculative-algorithm {guesser} and no --sglang-speculative-eagle-topk 1")
    return [*flags, *(f"--{name.replace('_', '-')}" for name in _CACHES_ELSEWHERE if getattr(args, name))]
