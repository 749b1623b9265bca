"""Which runs can replay the experts of their tokens.

Guarantee: a run that would have nothing to replay, or no router to replay it in, is refused by name before anything starts.
"""

from __future__ import annotations

from argparse import Namespace

from slime.arguments.model_shape import number_of_experts, text_config


def derive_routing_replay(args: Namespace) -> None:
    """The engines' experts are replayed as the trainer's own are: the one flag implies the other."""
    args.use_routing_replay |= args.use_rollout_routing_replay


def check_routing_replay(args: Namespace, config: dict) -> list[str]:
    """Return the problems, one line each; ``config`` is that of the checkpoint."""
    if not args.use_routing_replay:
        return []
    flag = "--use-rollout-routing-replay" if args.use_rollout_routing_replay else "--use-routing-replay"
    if not number_of_experts(text_config(config)):
        return [f"{flag}: {args.hf_checkpoint} has no experts; remove it"]
    if args.train_backend != "megatron":
        return [f"{flag} is Megatron's, which alone trains experts; use --train-backend megatron"]
    if args.loss_type == "sft_loss":
        return [f"{flag} has no effect with --loss-type sft_loss, which trains on what no policy sampled; remove it"]
    if args.use_rollout_routing_replay:
        return []
    if args.use_rollout_logprobs or not args.compute_advantages_and_returns:
        skips = "--use-rollout-logprobs" if args.use_rollout_logprobs else "--disable-compute-advantages-and-returns"
        return [
            f"{flag} records experts in the pass of old logprobs, which {skips} skips; use --use-rollout-routing-replay"
        ]
    return []
