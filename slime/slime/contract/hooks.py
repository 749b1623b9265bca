"""Check plugins that run between a rollout and the trainer: logs, rewards, conversion, postprocessing."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from slime.contract.clauses import require, running
from slime.contract.rollout_side import is_number
from slime.contract.signature import check_call, check_synchronous
from slime.contract.surroundings import Surroundings
from slime.exceptions import PluginError
from slime.rollout.before_push import Answer, Canary, Decision, Policies, Probe
from slime.utils.misc import load_function

Plugin = Callable[..., Any]


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
    """As above, and no engine is first."""

    def on_one_engine(self) -> Canary:
        """Raise, because the check has no engine to give weights to."""
        raise PluginError("the check has no engine for the candidate; try it with --canary-engine in a run")


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
    from slime.contract.tensors import rollout_data

    with running("data_postprocess-3"):
        plugin(surroundings.args, *((0, rollout_data(surroundings.args)) if takes_three else ()))
