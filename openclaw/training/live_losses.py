"""Refuses custom losses whose inputs live conversations cannot provide, before the first batch.

Every method's samples can have the teacher's log-probabilities. The teacher's top K, and the policy's own top K at the
sampled state, are there only if the method asks for them; its `MethodConfig` says so.
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


HYBRID_COMMAND = "use --method hybrid, or a method with JudgePlan(student_topk=...) and keeps_student_topk = True"


def unfed_loss(
    args: Arguments, without_topk: str | None, module: str | None = None, *, student_topk: bool = False
) -> str | None:
    """Return why live turns cannot feed the custom loss of ``args``, and what to type; None if they can.

    Args:
        args: of the run.
        without_topk: name of the method if its samples never have the teacher's top K, otherwise None.
        module: module of the loss function; default: from its path.
        student_topk: whether the method's samples have the policy's own top K.
    """
    if args.loss_type != "custom_loss" or not args.custom_loss_function_path:
        return None
    path = args.custom_loss_function_path
    module = module or path.rpartition(".")[0]
    if module == HYBRID_MODULE and not student_topk:
        return (
            f"--custom-loss-function-path {path} needs the policy's own top K (rollout_topk_log_probs), which this method's "
            f"samples do not have; {HYBRID_COMMAND}"
        )
    if module == HYBRID_MODULE:
        rows = "--distill-topk 64, the likeliest tokens among which the teacher finds the policy's"
        return None if args.distill_topk else f"--custom-loss-function-path {path} needs a teacher's tokens; add {rows}"
    if module not in (TOPK_MODULE, TOPK_ALIAS):
        return None
    if without_topk:
        return f"--custom-loss-function-path {path} needs the teacher's top K, which {without_topk} does not store; {TOPK_COMMAND}"
    if not args.distill_topk:
        return f"--custom-loss-function-path {path} needs the teacher's top K; add --distill-topk 50"
    return None
