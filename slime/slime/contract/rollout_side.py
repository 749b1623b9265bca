"""Check plugins that collect samples: rollout and evaluation functions, generation, rewards, sample hooks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from slime.contract.clauses import require, running
from slime.contract.signature import check_asynchronous, check_call, check_synchronous, settled
from slime.contract.surroundings import Surroundings
from slime.exceptions import SampleError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.utils.types import Sample

Plugin = Callable[..., Any]


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number (bool included)."""
    return isinstance(value, int | float) and math.isfinite(value)


def _leaves(groups: Any, clause: str) -> list[Sample]:
    if isinstance(groups, Sample):
        return [groups]
    if not isinstance(groups, list):
        require(False, clause, f"it returned a {type(groups).__name__}")
        return []
    return [leaf for member in groups for leaf in _leaves(member, clause)]


def _check_metrics(metrics: Any, clause: str) -> None:
    if metrics is None:
        return
    require(isinstance(metrics, dict), clause, f"its metrics are a {type(metrics).__name__}")
    wrong = [name for name, value in metrics.items() if not isinstance(name, str) or not isinstance(value, int | float)]
    require(not wrong, clause, f"not numbers by name: {wrong}")


def _check_fits(sample: Sample, clause: str) -> None:
    require(sample.tokens, clause, f"sample {sample.index} has no tokens")
    try:
        sample.validate()
    except SampleError as error:
        require(False, clause, f"sample {sample.index}: {error}")


def _check_reward(surroundings: Surroundings, sample: Sample, clause: str) -> None:
    try:
        value = sample.get_reward_value(surroundings.args)
    except SampleError as error:
        require(False, clause, str(error))
    else:
        require(is_number(value), clause, f"sample {sample.index} has reward {value!r}")


def check_rollout(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a rollout function with the run's data source and the stand-in engine."""
    from slime.utils.misc import load_function

    check_call(plugin, "rollout-1", 3, ("evaluation",))
    check_synchronous(plugin, "rollout-2")
    args = surroundings.args
    source = load_function(args.data_source_path)(args)
    with running("rollout-3"):
        output = plugin(args, 0, source, evaluation=False)
    require(isinstance(output, RolloutFnTrainOutput | list), "rollout-4", f"it returned a {type(output).__name__}")
    groups, metrics = (output, None) if isinstance(output, list) else (output.samples, output.metrics)
    samples = _leaves(groups, "rollout-4")
    require(samples, "rollout-5", "it returned none")
    for sample in samples:
        _check_fits(sample, "rollout-5")
        _check_reward(surroundings, sample, "rollout-6")
    _check_metrics(metrics, "rollout-7")


def check_eval(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check an evaluation function on a data set of eight prompts."""
    from slime.utils.misc import load_function

    check_call(plugin, "eval-1", 3, ("evaluation",))
    check_synchronous(plugin, "eval-2")
    args = surroundings.args
    source = load_function(args.data_source_path)(args)
    with running("eval-3"):
        output = plugin(args, 0, source, evaluation=True)
    require(isinstance(output, RolloutFnEvalOutput | dict), "eval-4", f"it returned a {type(output).__name__}")
    data, metrics = (output, None) if isinstance(output, dict) else (output.data, output.metrics)
    for name, result in data.items():
        found = result.get("rewards") if isinstance(result, dict) else None
        rewards = found if isinstance(found, list) else []
        fits = isinstance(found, list) and all(map(is_number, found))
        require(fits, "eval-4", f"{name} has rewards {found!r}")
        for key in ("truncated", "samples"):
            values = result.get(key)
            require(
                values is None or len(values) == len(rewards),
                "eval-5",
                f"{name} has {len(rewards)} rewards and {len(values or [])} {key}",
            )
    _check_metrics(metrics, "eval-6")


def check_generate(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a generate function with an engine that replies, and with one that aborts."""
    from slime.rollout.sglang_rollout import GenerateState

    takes_evaluation = callable(plugin) and "evaluation" in inspect.signature(plugin).parameters
    extra = {"evaluation": False} if takes_evaluation else {}
    check_call(plugin, "generate-1", 3, tuple(extra))
    check_asynchronous(plugin, "generate-2")
    args = surroundings.args
    parameters = GenerateState(args).sampling_params
    for member in _generated(plugin, surroundings, dict(parameters), extra):
        _check_fits(member, "generate-5")
        require(
            isinstance(member.status, Sample.Status) and member.status != Sample.Status.PENDING,
            "generate-6",
            f"the status is {member.status}",
        )
    before = len(surroundings.engine.requests)
    surroundings.engine.aborting = GenerateState(args).aborted = True
    members = _generated(plugin, surroundings, dict(parameters), extra)
    surroundings.engine.aborting = GenerateState(args).aborted = False
    if len(surroundings.engine.requests) == before:
        return
    for member in members:
        aborted = member.status == Sample.Status.ABORTED and member.reward is None
        removed = member.remove_sample and member.reward is not None
        require(
            aborted or removed,
            "generate-8",
            f"status {member.status}, reward {member.reward!r}, remove_sample {member.remove_sample}",
        )


def _generated(
    plugin: Plugin, surroundings: Surroundings, parameters: dict[str, Any], extra: dict[str, Any]
) -> list[Sample]:
    given = surroundings.sample(index=3)
    with running("generate-3"):
        result = settled(plugin(surroundings.args, given, parameters, **extra))
    members = result if isinstance(result, list) else [result]
    wrong = [type(member).__name__ for member in members if not isinstance(member, Sample)]
    require(not wrong, "generate-4", f"it returned {', '.join(wrong)}")
    strangers = [member.group_index for member in members if member.group_index != given.group_index]
    require(not strangers, "generate-7", f"it returned group_index {strangers} for {given.group_index}")
    return members


def check_reward(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a reward function on one sample, on several and on none."""
    check_call(plugin, "reward-1", 2, ("evaluation",))
    check_asynchronous(plugin, "reward-2")
    args, samples = surroundings.args, surroundings.answered()
    for sample in samples:
        sample.reward = None
    before = [sample.to_dict() for sample in samples]
    with running("reward-3"):
        one = settled(plugin(args, samples[0]))
    surroundings_sample = surroundings.answered(1)[0]
    surroundings_sample.reward = one
    _check_reward(surroundings, surroundings_sample, "reward-4")
    with running("reward-3"):
        several = settled(plugin(args, samples))
    require(
        isinstance(several, list) and len(several) == len(samples),
        "reward-5",
        f"it returned {several!r} for {len(samples)} samples",
    )
    with running("reward-3"):
        none = settled(plugin(args, []))
    require(none == [], "reward-6", f"it returned {none!r}")
    for sample, old in zip(samples, before, strict=True):
        changed = [name for name in ("tokens", "response", "loss_mask") if getattr(sample, name) != old[name]]
        require(not changed, "reward-7", f"it changed {', '.join(changed)} of sample {sample.index}")


def check_sample_hook(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a hook that gets a sample before its reward."""
    parameters = inspect.signature(plugin).parameters if callable(plugin) else {}
    values = {"rollout_id": 0, "evaluation": False}
    takes_any = any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    extra = {name: value for name, value in values.items() if takes_any or name in parameters}
    check_call(plugin, "sample_hook-1", 2, tuple(extra))
    with running("sample_hook-2"):
        result = settled(plugin(surroundings.args, surroundings.answered(1)[0], **extra))
    require(result is None or isinstance(result, Sample), "sample_hook-3", f"it returned a {type(result).__name__}")
