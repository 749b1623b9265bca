"""Rollout and evaluation functions that break one clause of the contract each; the name says which."""

from __future__ import annotations

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.utils.types import Sample


def sample(**changes):
    values = {"tokens": [1, 2, 3], "response_length": 2, "reward": 1.0, "status": Sample.Status.COMPLETED}
    return Sample(**(values | changes))


def rollout_1(args, rollout_id):
    return [[sample()]]


async def rollout_2(args, rollout_id, data_source, evaluation=False):
    return [[sample()]]


def rollout_3(args, rollout_id, data_source, evaluation=False):
    return data_source.get_the_samples(2)


def rollout_4(args, rollout_id, data_source, evaluation=False):
    return {"samples": [[sample()]]}


def rollout_5(args, rollout_id, data_source, evaluation=False):
    return [[sample(rollout_log_probs=[-0.5])]]


def rollout_6(args, rollout_id, data_source, evaluation=False):
    return [[sample(reward=None)]]


def rollout_7(args, rollout_id, data_source, evaluation=False):
    return RolloutFnTrainOutput(samples=[[sample()]], metrics={"rollout/note": "fine"})


def eval_1(args, rollout_id, data_source):
    return {}


async def eval_2(args, rollout_id, data_source, evaluation=False):
    return {}


def eval_3(args, rollout_id, data_source, evaluation=False):
    raise KeyError("held_out")


def eval_4(args, rollout_id, data_source, evaluation=False):
    return {"held_out": [1.0, 0.0]}


def eval_5(args, rollout_id, data_source, evaluation=False):
    return {"held_out": {"rewards": [1.0, 0.0], "truncated": [False]}}


def eval_6(args, rollout_id, data_source, evaluation=False):
    return RolloutFnEvalOutput(data={}, metrics=[1.0])
