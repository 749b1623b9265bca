"""Checks the arguments of live training before the runtime process starts.

A custom loss declares which streams it ``READS`` beyond those of every sample, or asks for them by name
(`slime.arguments.plugin_forms`). A method declares which ones it ``fills`` (`openclaw.config.method_config.MethodConfig`). A loss whose streams the method does not fill is refused, before the first batch.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Set

from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.method import method_config
from slime.args import Arguments
from slime.arguments.cluster import check_asynchronous
from slime.arguments.plugin_forms import TEACHER
from slime.arguments.plugins import asked_values, is_plugin_file, source_of
from slime.utils.misc import load_function
from slime.utils.streams import carried

READS = "READS"
TOPK_EXAMPLE = 64
TEACHER_TOPK = "teacher_topk_log_probs"


def check_arguments(args: Arguments, method_path: str) -> None:
    """Raise ValueError for arguments that do not fit training on judged turns."""
    if path := args.custom_loss_function_path:
        module = None if is_plugin_file(path) else getattr(load_function(path), "__module__", None)
        own = method_config(method_path) or MethodConfig
        name = getattr(load_function(method_path), "name", method_path)
        if problem := unfed_loss(args, name, own.fills, module):
            raise ValueError(problem)
    if problems := check_asynchronous(args, "a method on live conversations"):
        raise ValueError(problems[0])
    practice, replay = (RuntimeVariables.declared(name).read(os.environ)[0] for name in ("practice", "practice_replay"))
    if problem := practice_problem(args, str(practice), bool(replay)):
        raise ValueError(problem)
    if args.n_samples_per_prompt != 1:
        raise ValueError(
            f"--n-samples-per-prompt {args.n_samples_per_prompt} does not fit live training; use 1, because a turn is one sample"
        )
    if args.global_batch_size and args.rollout_batch_size % args.global_batch_size:
        raise ValueError(
            f"--rollout-batch-size {args.rollout_batch_size} is not a multiple of --global-batch-size "
            f"{args.global_batch_size}; change one of them, or the rest of each batch would never be trained"
        )


def practice_problem(args: Arguments, practice: str, replays: bool = False) -> str | None:
    """Return why a run cannot practise lessons, and what to type; None if it can, or need not.

    Args:
        args: of the run.
        practice: the value of OPENCLAW_PRACTICE.
        replays: whether OPENCLAW_PRACTICE_REPLAY is above 0.
    """
    if practice == "off":
        return None
    if replays and not args.use_tis:
        return (
            "OPENCLAW_PRACTICE_REPLAY trains replies of older weights, which need importance weights; add --use-tis, or set "
            "OPENCLAW_PRACTICE_REPLAY=0"
        )
    where = f"OPENCLAW_PRACTICE={practice}"
    if not args.use_lora:
        return (
            f"{where} needs LoRA: the teacher is the base model, which engines still have beside adapters only; add --use-lora, "
            "or set OPENCLAW_PRACTICE=off"
        )
    path = args.custom_loss_function_path if args.loss_type == "custom_loss" else None
    reads = declared_reads(path) if path and not is_plugin_file(path) else frozenset[str]()
    if TEACHER_TOPK not in reads or not args.distill_topk:
        return f"{where} needs a loss that distils a teacher's likeliest tokens; use --method personal, or set OPENCLAW_PRACTICE=off"
    return None


def unfed_loss(args: Arguments, method: str, fills: Set[str], module: str | None = None) -> str | None:
    """Return why a method's samples cannot feed the custom loss of ``args``, and what to type; None if they can.

    Args:
        args: of the run.
        method: the method's name.
        fills: streams that its samples have.
        module: module of the loss function; default: from its path.
    """
    path = args.custom_loss_function_path
    if args.loss_type != "custom_loss" or not path:
        return None
    try:
        reads = declared_reads(f"{module}.{path.rpartition('.')[2]}" if module else path)
    except ValueError:
        return f"--custom-loss-function-path {path}: {READS} of its module is not a literal; write a tuple of names"
    if TEACHER in asked_values(args):
        reads |= {"teacher_log_probs"}
    if lacking := sorted(reads - fills):
        names = ", ".join(lacking)
        return (
            f"--custom-loss-function-path {path} reads {names}, which the samples of {method} do not have; "
            "use a method whose Config names them in fills"
        )
    top_k = {name for name, stream in carried() if stream.top_k}
    if reads & top_k and not args.distill_topk:
        return f"--custom-loss-function-path {path} reads a top K; add --distill-topk {TOPK_EXAMPLE}"
    return None


def declared_reads(path: str) -> frozenset[str]:
    """Return the literal ``READS`` beside the loss at a plugin path, or where its module imports it from; empty without one.

    Reads the source, because a loss imports torch, which a launcher does without.

    Raises:
        ValueError: if ``READS`` is not a literal.
    """
    source, loss = source_of(path)
    tree = ast.parse(source.read_text()) if source else ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [READS]:
            return frozenset(ast.literal_eval(node.value))
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == READS:
            return frozenset(ast.literal_eval(node.value))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == loss:
                    return declared_reads(f"{node.module}.{alias.name}")
    return frozenset()
