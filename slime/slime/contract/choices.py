"""Check plugins that choose samples: filters, the buffer and the data source."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any

from slime.contract.clauses import require, running
from slime.contract.signature import check_call, check_synchronous
from slime.contract.surroundings import Surroundings
from slime.utils.types import Sample

Plugin = Callable[..., Any]


def _dicts(groups: list[list[Sample]]) -> list[list[dict[str, Any]]]:
    return [[copy.deepcopy(sample.to_dict()) for sample in group] for group in groups]


def check_dynamic_filter(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a filter of finished groups."""
    check_call(plugin, "dynamic_filter-1", 2)
    takes_any = any(p.kind == inspect.Parameter.VAR_KEYWORD for p in inspect.signature(plugin).parameters.values())
    require(takes_any, "dynamic_filter-1", f"its signature {inspect.signature(plugin)} has no **kw")
    check_synchronous(plugin, "dynamic_filter-2")
    [group] = groups = surroundings.groups(1)
    before = _dicts(groups)
    with running("dynamic_filter-3"):
        verdict = plugin(surroundings.args, group)
    keep, reason = getattr(verdict, "keep", verdict), getattr(verdict, "reason", None)
    require(isinstance(keep, bool) and isinstance(reason, str | None), "dynamic_filter-4", f"it returned {verdict!r}")
    require(_dicts([group]) == before, "dynamic_filter-5", "it changed the group")


def check_buffer_filter(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a filter that takes groups out of the buffer."""
    check_call(plugin, "buffer_filter-1", 4)
    check_synchronous(plugin, "buffer_filter-2")
    buffer = surroundings.groups(3)
    known = list(map(id, buffer))
    with running("buffer_filter-3"):
        taken = plugin(surroundings.args, None, buffer, 2)
    require(
        isinstance(taken, list) and len(taken) <= 2 and all(id(group) in known for group in taken),
        "buffer_filter-4",
        f"asked for 2 of 3 groups, it returned {len(taken) if isinstance(taken, list) else taken!r}",
    )
    left = set(map(id, buffer))
    require(not any(id(group) in left for group in taken), "buffer_filter-5", "it left them in the buffer")


def check_sample_filter(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a filter that marks samples of a finished rollout."""
    check_call(plugin, "sample_filter-1", 2)
    check_synchronous(plugin, "sample_filter-2")
    groups = surroundings.groups()
    before = [list(map(id, group)) for group in groups]
    with running("sample_filter-3"):
        plugin(surroundings.args, groups)
    after = [list(map(id, group)) for group in groups]
    require(after == before, "sample_filter-4", "it added, removed or moved samples")


def check_all_samples(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a hook that gets all groups of a rollout, including dropped ones."""
    from slime.utils.misc import load_function

    check_call(plugin, "all_samples-1", 3)
    check_synchronous(plugin, "all_samples-2")
    source = load_function(surroundings.args.data_source_path)(surroundings.args)
    with running("all_samples-3"):
        plugin(surroundings.args, surroundings.groups(), source.get_samples)


def check_data_source(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check what a data source hands out, takes back, saves and restores."""
    require(inspect.isclass(plugin), "data_source-1", f"it is a {type(plugin).__name__}")
    check_call(plugin, "data_source-1", 1)
    for name, count in (("get_samples", 2), ("add_samples", 2), ("save", 2), ("load", 1), ("load", 2)):
        require(hasattr(plugin, name), "data_source-2", f"it has no {name}")
        check_call(getattr(plugin, name), "data_source-2", count)
    args = surroundings.args
    with running("data_source-3"):
        source = plugin(args)
        first, second = source.get_samples(2), source.get_samples(1)
    for groups, count in ((first, 2), (second, 1)):
        fits = isinstance(groups, list) and len(groups) == count
        fits = fits and all(isinstance(group, list) and group for group in groups)
        fits = fits and all(isinstance(sample, Sample) for group in groups for sample in group)
        require(fits, "data_source-4", f"get_samples({count}) returned {groups!r:.200}")
    _check_numbers([*first, *second])
    _give_back(source, [first[0][:1], first[1]])
    with running("data_source-3"):
        source = plugin(args)
        source.get_samples(2)
        source.save(0)
        expected = source.get_samples(2)
        restored = plugin(args)
        restored.load(0)
        found = restored.get_samples(2)
    prompts = [[sample.prompt for group in groups for sample in group] for groups in (expected, found)]
    require(prompts[0] == prompts[1], "data_source-7", f"it returned {prompts[1]!r:.100}, not {prompts[0]!r:.100}")


def _give_back(source: Any, groups: list[list[Sample]]) -> None:
    with running("data_source-6"), contextlib.suppress(RuntimeError):
        source.add_samples(groups)


def _check_numbers(groups: list[list[Sample]]) -> None:
    numbers = [{sample.group_index for sample in group} for group in groups]
    single = all(len(found) == 1 for found in numbers)
    require(
        single and len(set.union(*numbers)) == len(groups),
        "data_source-5",
        f"three groups have the group_index {numbers}",
    )
    indices = [sample.index for group in groups for sample in group]
    require(len(set(indices)) == len(indices), "data_source-5", f"samples have the index {indices}")
