"""Find single changes that make a plan fit, by recomputing the plan for each candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments

MAX_FIXES = 3
_RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@dataclass(frozen=True)
class Fix:
    """A change of arguments: ``values`` by attribute. The first attribute names the change."""

    values: tuple[tuple[str, Any], ...]

    def changed(self, args: Arguments) -> Arguments:
        """Return ``args`` with the change applied."""
        return args.changed(**dict(self.values))


def fix(**values: Any) -> Fix:
    """Return the change that sets these attributes."""
    return Fix(tuple(values.items()))


def as_flags(change: Fix) -> str:
    """Return the change as flags to type: ``--max-tokens-per-gpu 8192``."""
    name, value = change.values[0]
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"


def fitting(args: Arguments, fits: Callable[[Arguments], bool]) -> list[Fix]:
    """Return up to :data:`MAX_FIXES` changes that make ``fits`` true, the smallest of each kind."""
    results = []
    for ladder in _ladders(args):
        step = next((change for change in ladder if fits(change.changed(args))), None)
        if step is not None:
            results.append(step)
        if len(results) == MAX_FIXES:
            break
    return results


def _ladders(args: Arguments) -> Iterator[list[Fix]]:
    """Yield kinds of changes, cheapest kind first; within a kind the smallest step comes first."""
    fsdp = args.train_backend == "fsdp"
    if fsdp and not args.gradient_checkpointing:
        yield [fix(gradient_checkpointing=True)]
    if not fsdp and args.recompute_granularity != "full":
        yield [fix(**_RECOMPUTE)]
    if args.use_dynamic_batch_size and args.max_tokens_per_gpu:
        yield [fix(max_tokens_per_gpu=size) for size in _halves(args.max_tokens_per_gpu, 1024)]
    now = args.sglang_mem_fraction_static
    fractions = [round(0.1 * tenth, 1) for tenth in range(3, 10)]
    yield sorted(
        (fix(sglang_mem_fraction_static=value) for value in fractions if value != now),
        key=lambda change: abs(change.values[0][1] - (now or 0.9)),
    )
    context = args.sglang_context_length or args.rollout_max_context_len
    limit = args.sglang_max_total_tokens
    if context and limit != context:
        yield [fix(sglang_max_total_tokens=context)]
    if not (args.use_lora or args.advantage_estimator == "ppo"):
        yield [fix(use_lora=True, update_weight_mode="adapter")]
    if not args.share_gpu and not args.colocate:
        more = (args.actor_num_gpus_per_node * factor for factor in (2, 4))
        yield [fix(actor_num_gpus_per_node=gpus) for gpus in more if gpus <= args.num_gpus_per_node]
        yield [fix(rollout_num_gpus_per_engine=args.rollout_num_gpus)]
    if fsdp and not args.fsdp_cpu_offload and not args.colocate:
        yield [fix(fsdp_cpu_offload=True)]
    if context:
        judge = args.prm_max_new_tokens if args.prm_enable else 0
        least = max(2048, (args.rollout_max_response_len or 0) + 1, judge + 1)
        yield [fix(sglang_context_length=size, rollout_max_context_len=size) for size in _halves(context, least)]


def _halves(number: int, least: int) -> Iterator[int]:
    while (number := number // 2) >= least:
        yield number
