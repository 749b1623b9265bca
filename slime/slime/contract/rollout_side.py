"""Check plugins that collect, choose and report samples, before the trainer sees them.

They are rollout and evaluation functions, generation, rewards and sample hooks; filters, the buffer and the data source;
logs, rewards, conversion and postprocessing between a rollout and the trainer.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from slime.contract.clauses import check_asynchronous, check_call, check_synchronous, require, running, settled
from slime.contract.surroundings import Surroundings
from slime.exceptions import PluginError, SampleError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.before_push import Answer, Canary, Decision, Offered, Policies, Probe, Trained
from slime.utils.misc import load_function
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
        results = result.get("rewards") if isinstance(result, dict) else None
        rewards = results if isinstance(results, list) else []
        fits = isinstance(results, list) and all(map(is_number, results))
        require(fits, "eval-4", f"{name} has rewards {results!r}")
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


def check_rollout_log(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check the function that logs a rollout."""
    check_call(plugin, "rollout_log-1", 5)
    check_synchronous(plugin, "rollout_log-2")
    samples = surroundings.answered()
    before = [copy.deepcopy(sample.to_dict()) for sample in samples]
    with running("rollout_log-3"):
        plugin(0, surroundings.args, samples, {"rollout/extra": 1.0}, 2.5)
    require([sample.to_dict() for sample in samples] == before, "rollout_log-4", "it changed them")


def check_eval_log(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check the function that logs an evaluation."""
    check_call(plugin, "eval_log-1", 4)
    check_synchronous(plugin, "eval_log-2")
    samples = surroundings.answered(2)
    data = {"held_out": {"rewards": [0.0, 1.0], "truncated": [False, True], "samples": samples}}
    before = copy.deepcopy(data)
    with running("eval_log-3"):
        plugin(0, surroundings.args, data, {"eval/extra": 1.0})
    require(data == before, "eval_log-4", "it changed them")


def check_reward_post_process(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a function that replaces the normalisation of rewards."""
    check_call(plugin, "reward_post_process-1", 2)
    check_synchronous(plugin, "reward_post_process-2")
    samples = surroundings.answered()
    with running("reward_post_process-3"):
        result = plugin(surroundings.args, samples)
    require(
        isinstance(result, tuple | list) and len(result) == 2, "reward_post_process-4", f"it returned {result!r:.100}"
    )
    for name, values in zip(("raw_rewards", "rewards"), result, strict=True):
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        require(
            len(values) == len(samples) and all(map(is_number, values)),
            "reward_post_process-5",
            f"{name} are {values} for {len(samples)} samples",
        )


def check_convert(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a function that replaces the conversion to training data."""
    from slime.rollout.custom_conversion import ConversionError, convert_with

    check_call(plugin, "convert-1", 2)
    check_synchronous(plugin, "convert-2")
    samples = surroundings.answered()
    try:
        with running("convert-3"):
            data = plugin(surroundings.args, samples)
        convert_with(lambda *_: data, surroundings.args, samples)
    except ConversionError as error:
        require(False, error.clause, error.detail)


class StandInPolicy:
    """Gives every token of a stored reply the same probability, and ends a greedy reply at once."""

    def __init__(self, version: str) -> None:
        self.version = version

    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe."""
        return [Answer([-0.5] * len(probe.reply_ids), [1][: probe.max_new_tokens], True) for probe in probes]


class StandInCandidate(StandInPolicy):
    """As above; the trainer has said nothing of it, and there is no engine."""

    trained = Trained()

    def on_one_engine(self) -> Canary:
        """Raise, because the check has no engine to give weights to."""
        raise PluginError("the check has no engine for the candidate; try it with --canary-engine in a run")

    def engines(self) -> Sequence[str]:
        """Return none."""
        return ()

    def on_all_engines(self) -> Offered:
        """Raise, because the check has no engines to give weights to."""
        raise PluginError("the check has no engines for the candidate; see what engines() returns, or try it in a run")


def check_before_push(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check the function that decides about an update, on two versions with the same answers."""
    check_call(plugin, "before_push-1", 4)
    check_synchronous(plugin, "before_push-2")
    source = load_function(surroundings.args.data_source_path)(surroundings.args)
    with running("before_push-3"):
        decision = plugin(surroundings.args, 0, source, Policies(StandInPolicy("1"), StandInCandidate("2")))
    require(
        isinstance(decision, Decision)
        and isinstance(decision.accepted, bool)
        and isinstance(decision.why, str)
        and "\n" not in decision.why
        and all(isinstance(name, str) and is_number(value) for name, value in decision.metrics.items()),
        "before_push-4",
        f"it returned {decision!r:.200}",
    )


def check_data_postprocess(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a hook that gets the rollout data on a training rank."""
    takes_three = callable(plugin) and len(inspect.signature(plugin).parameters) >= 3
    check_call(plugin, "data_postprocess-1", 3 if takes_three else 1)
    check_synchronous(plugin, "data_postprocess-2")
    from slime.contract.training_side import rollout_data

    with running("data_postprocess-3"):
        plugin(surroundings.args, *((0, rollout_data(surroundings.args)) if takes_three else ()))


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
        samples = restored.get_samples(2)
    prompts = [[sample.prompt for group in groups for sample in group] for groups in (expected, samples)]
    require(prompts[0] == prompts[1], "data_source-7", f"it returned {prompts[1]!r:.100}, not {prompts[0]!r:.100}")


def _give_back(source: Any, groups: list[list[Sample]]) -> None:
    with running("data_source-6"), contextlib.suppress(RuntimeError):
        source.add_samples(groups)


def _check_numbers(groups: list[list[Sample]]) -> None:
    numbers = [{sample.group_index for sample in group} for group in groups]
    single = all(len(number) == 1 for number in numbers)
    require(
        single and len(set.union(*numbers)) == len(groups),
        "data_source-5",
        f"three groups have the group_index {numbers}",
    )
    indices = [sample.index for group in groups for sample in group]
    require(len(set(indices)) == len(indices), "data_source-5", f"samples have the index {indices}")
