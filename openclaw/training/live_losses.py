"""Refuses custom losses whose inputs live conversations cannot provide, before the first batch.

The ledger stores a sample's teacher log-probabilities and, for openclaw-opd with ``--distill-topk``, the teacher's top K.
It has no column for the policy's own top K at the sampled state, which the hybrid loss needs.
"""

from __future__ import annotations

from slime.args import Arguments

HYBRID_MODULE = "slime.algorithms.losses.hybrid_distillation"
TOPK_MODULE = "slime.algorithms.losses.topk_distillation"
# The same loss under its name in launch scripts.
TOPK_ALIAS = "topk_distillation_loss"
TOPK_COMMAND = (
    "use openclaw-opd with --distill-topk 50 --custom-loss-function-path "
    "topk_distillation_loss.topk_distillation_loss_function"
)


def unfed_loss(args: Arguments, without_topk: str | None, module: str | None = None) -> str | None:
    """Return why live turns cannot feed the custom loss of ``args``, and what to type; None if they can.

    Args:
        args: of the run.
        without_topk: name of the method if its samples never have the teacher's top K, otherwise None.
        module: module of the loss function; default: from its path.
    """
    if args.loss_type != "custom_loss" or not args.custom_loss_function_path:
        return None
    path = args.custom_loss_function_path
    module = module or path.rpartition(".")[0]
    if module == HYBRID_MODULE:
        return (
            f"--custom-loss-function-path {path} needs the policy's own top K on every sample (rollout_topk_log_probs), and "
            f"turns of conversations do not have it; {TOPK_COMMAND}, or a rollout function of your own that sets it"
        )
    if module not in (TOPK_MODULE, TOPK_ALIAS):
        return None
    if without_topk:
        return f"--custom-loss-function-path {path} needs the teacher's top K, which {without_topk} does not store; {TOPK_COMMAND}"
    if not args.distill_topk:
        return f"--custom-loss-function-path {path} needs the teacher's top K; add --distill-topk 50"
    return None
