"""The memory budget of a run: what each role needs per GPU, whether it fits, and what to change if it does not.

Guarantees: pure except for queries to the driver and the disk. A plan is refused only if it would not fit even with
every estimate too high by `parts.UNCERTAINTY`; within that margin it gets a warning. Suggested changes are computed to
fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.memory_budget.disk import checkpoint_lines, host_line
from slime.arguments.memory_budget.fixes import Fix, as_flags, fitting
from slime.arguments.memory_budget.gpus import Cache, GpuRow, Layout, layout
from slime.arguments.memory_budget.machine import GpuMemory, gpu_memory
from slime.arguments.memory_budget.parts import GIB
from slime.arguments.memory_budget.shape import policy_shape
from slime.arguments.memory_budget.trainer import step_tokens

Spell = Callable[[Fix], str]


@dataclass(frozen=True)
class Budget:
    """What a dry run prints and a start checks.

    Attributes:
        lines: text to print.
        rows: the GPUs behind the lines.
        problems: what cannot fit, each with changes that fit.
        warnings: what may not fit.
    """

    lines: tuple[str, ...]
    rows: tuple[GpuRow, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def budget_of(
    args: Arguments, memory: GpuMemory | None, *, names: Sequence[int] | None = None, spell: Spell = as_flags
) -> Budget:
    """Return the budget of derived arguments; empty if there is nothing to count.

    Args:
        args: derived arguments without problems.
        memory: memory of one GPU; None if unknown.
        names: GPU numbers to print, by position; default: the position.
        spell: how to spell a change for the user.
    """
    if args.device != "cuda":
        return Budget(())
    if memory is None:
        return Budget(("memory per GPU: not computed, because this machine has no GPU; --gpu-memory-gb N computes it",))
    plan, shape = layout(args, memory.size), policy_shape(args)
    if plan is None or shape is None:
        return Budget(("memory per GPU: not computed, because neither config.json nor flags give the model's shape",))
    disk, warnings = checkpoint_lines(args, shape)
    lines = [
        f"memory per GPU in GiB, of {memory.size / GIB:.1f} ({memory.source}); estimates may be off by 20 %, "
        "parts in brackets do not count, because they are freed before the peak:",
        *(line for row in plan.rows for line in _row_lines(row, memory, names)),
        *(_cache_line(cache) for cache in plan.caches),
        *(f"  {role}: its model is not on this machine, so it is not counted" for role in plan.unknown),
        *(
            []
            if step_tokens(args)
            else ["  activations: no flag bounds a sample, so they are not counted (--rollout-max-context-len)"]
        ),
        host_line(args, shape),
        *disk,
    ]
    problems, doubts = _verdict(plan, memory, names)
    if problems:
        problems = [f"{problem}; {_advice(args, memory, spell)}" for problem in problems]
    return Budget(tuple(lines), plan.rows, tuple(problems), (*doubts, *warnings))


def memory_problems(args: Arguments) -> tuple[list[str], Budget]:
    """Return the memory problems on this machine's GPUs, and the budget; pass ``args`` without other problems."""
    try:
        budget = budget_of(args, gpu_memory(args))
    except ConfigError as error:
        return [str(error)], Budget(())
    return list(budget.problems), budget


def _verdict(plan: Layout, memory: GpuMemory, names: Sequence[int] | None) -> tuple[list[str], list[str]]:
    """Return what cannot fit, and what may not."""
    problems, warnings = [], []
    for row in plan.rows:
        if row.total + row.doubt <= memory.size:
            continue
        said = (
            f"{_gpus(row, names)} needs {row.total / GIB:.1f} GiB (give or take {row.doubt / GIB:.1f}) and has "
            f"{memory.size / GIB:.1f} ({memory.source}): {_largest(row)}"
        )
        (problems if row.total - row.doubt > memory.size else warnings).append(said)
    for cache in plan.caches:
        if plan.context is None or min(cache.tokens, cache.again) >= plan.context:
            continue
        room = min(cache.tokens, cache.again)
        limited = cache.limit is not None and cache.limit < plan.context
        when = "" if cache.tokens < plan.context else " when it restarts while the others run"
        said = f"the {cache.role} engine's cache holds {room} tokens{when}, but a context has {plan.context}"
        certain = limited or cache.most < plan.context
        (problems if certain else warnings).append(said)
    return problems, warnings


def _fits(args: Arguments, memory: GpuMemory) -> bool:
    try:
        plan = layout(args, memory.size)
    except ConfigError:
        return False
    if plan is None:
        return False
    caches = all(min(cache.tokens, cache.again) >= (plan.context or 0) for cache in plan.caches)
    return caches and all(row.total <= memory.size for row in plan.rows)


def _advice(args: Arguments, memory: GpuMemory, spell: Spell) -> str:
    changes = [spell(change) for change in fitting(args, lambda changed: _fits(changed, memory))]
    if not changes:
        return "no single change makes it fit; use a smaller model, or more or larger GPUs"
    return f"each of these alone fits: {', or '.join(changes)}"


def _largest(row: GpuRow) -> str:
    """Return the largest parts, with their roles."""
    parts = sorted(((part.size, need.role, part.name) for need in row.needs for part in need.parts), reverse=True)
    return ", ".join(f"{role} {name} {size / GIB:.1f}" for size, role, name in parts[:3])


def _gpus(row: GpuRow, names: Sequence[int] | None) -> str:
    numbers = [names[gpu] if names else gpu for gpu in row.gpus]
    together = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return "GPU " + (f"{numbers[0]}-{numbers[-1]}" if together and len(numbers) > 1 else ",".join(map(str, numbers)))


def _row_lines(row: GpuRow, memory: GpuMemory, names: Sequence[int] | None) -> list[str]:
    where = _gpus(row, names)
    lines = [f"  {where:<8} {need.role:<8} {need.total / GIB:5.1f}  {need.line()}" for need in row.needs]
    verdict = (
        "fits"
        if row.total + row.doubt <= memory.size
        else "may not fit"
        if row.total - row.doubt <= memory.size
        else "does not fit"
    )
    total = f"{row.total / GIB:5.1f}  give or take {row.doubt / GIB:.1f}, driver included: {verdict}"
    return [*lines, f"  {where:<8} sum      {total}"]


def _cache_line(cache: Cache) -> str:
    again = f", {cache.again} after a restart" if cache.again != cache.tokens else ""
    return f"  cache of the {cache.role} engine: {cache.tokens} tokens{again}"
