"""Which runs can replay the experts of their tokens.

Guarantee: a run that would have nothing to replay, or no router to replay it in, is refused by name before anything starts.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.model_shape import number_of_experts, text_config
from slime.arguments.placement import pipeline_stages

# Data sources whose samples never have experts.
_WITHOUT_EXPERTS = ("openclaw.training.rollout.LedgerDataSource",)
# SGLang's record of a token is found by the token's place in the GPU's cache, and is that of the layers of one stage.
_CACHES_ELSEWHERE = ("sglang_enable_hierarchical_cache", "sglang_enable_lmcache")


def derive_routing_replay(args: Arguments) -> None:
    """The engines' experts are replayed as the trainer's own are: the one flag implies the other."""
    args.use_routing_replay |= args.use_rollout_routing_replay


def check_routing_replay(args: Arguments, config: dict | None) -> list[str]:
    """Return the problems, one line each; ``config`` is that of the checkpoint, None where it is on another machine."""
    if not args.use_routing_replay:
        return []
    flag = "--use-rollout-routing-replay" if args.use_rollout_routing_replay else "--use-routing-replay"
    if config is not None and not number_of_experts(text_config(config)):
        return [f"{flag}: {args.hf_checkpoint} has no experts; remove it"]
    if args.train_backend != "megatron":
        return [f"{flag} is Megatron's, which alone trains experts; use --train-backend megatron"]
    if args.loss_type == "sft_loss":
        return [f"{flag} has no effect with --loss-type sft_loss, which trains on what no policy sampled; remove it"]
    live = args.data_source_path in _WITHOUT_EXPERTS
    if args.use_rollout_routing_replay:
        problems = [
            f"{flag}: with {word} an engine reports experts that it did not sample with; change one of them"
            for word in _wrong_reports(args)
        ]
        if live:
            problems.append(
                f"{flag}: turns of conversations ({args.data_source_path}) have no experts; use --use-routing-replay "
                "without --use-rollout-logprobs"
            )
        return problems
    if args.use_rollout_logprobs or not args.compute_advantages_and_returns:
        skips = "--use-rollout-logprobs" if args.use_rollout_logprobs else "--disable-compute-advantages-and-returns"
        instead = "remove that" if live and args.use_rollout_logprobs else "use --use-rollout-routing-replay"
        return [f"{flag} records experts in the pass of old logprobs, which {skips} skips; {instead}"]
    return []


def _wrong_reports(args: Arguments) -> list[str]:
    """Flags of engines whose record of experts, which lies beside the cache of one GPU and one stage, goes wrong unnoticed."""
    stages = pipeline_stages(args)
    flags = [f"--sglang-pp-size {stages}"] if stages > 1 else []
    guesser = args.sglang_speculative_algorithm
    if guesser == "NGRAM":
        flags.append("--sglang-speculative-algorithm NGRAM")
    elif guesser and args.sglang_speculative_eagle_topk != 1:  # of a tree of guesses the kept ones move in the cache
        flags.append(f"--sglang-speculative-algorithm {guesser} and no --sglang-speculative-eagle-topk 1")
    return [*flags, *(f"--{name.replace('_', '-')}" for name in _CACHES_ELSEWHERE if getattr(args, name))]
