"""Plugins that write down how they were called, for tests of the places that call them."""

from __future__ import annotations

from typing import Any

from slime.rollout.train_data import convert

CALLS: list[tuple[str, Any]] = []


def log_rollout(rollout_id, args, samples, extra_metrics, rollout_time):
    """Truthy when ``args.skip_default_logging``."""
    CALLS.append(("log_rollout", (rollout_id, len(samples), dict(extra_metrics), rollout_time >= 0)))
    return args.skip_default_logging


def log_eval(rollout_id, args, data, extra_metrics):
    """Truthy when ``args.skip_default_logging``."""
    CALLS.append(("log_eval", (rollout_id, sorted(data), extra_metrics)))
    return args.skip_default_logging


def halve_rewards(args, samples):
    """Raw rewards and half of them."""
    raw = [sample.get_reward_value(args) for sample in samples]
    CALLS.append(("halve_rewards", len(samples)))
    return raw, [value / 2 for value in raw]


def convert_twice_as_good(args, samples):
    """The core's training data with other rewards, and without the lengths that the core adds."""
    CALLS.append(("convert", len(samples)))
    data = convert(args, samples)
    del data["total_lengths"]
    return data | {"rewards": [2.0 * reward for reward in data["rewards"]]}


def postprocess_old(args):
    """The form of older methods."""
    CALLS.append(("postprocess", vars(args).get("name")))


def postprocess_data(args, rollout_id, rollout_data):
    """Halves the advantages in place."""
    CALLS.append(("postprocess", (rollout_id, len(rollout_data["tokens"]))))
    for values in rollout_data["advantages"]:
        values.mul_(0.5)
