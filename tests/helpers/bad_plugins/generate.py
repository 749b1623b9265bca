"""Functions that generate one sample that break one clause of the contract each; the name says which."""

from __future__ import annotations

from slime.rollout import sglang_rollout
from slime.utils.types import Sample


async def generate_1(args, sample):
    return sample


def generate_2(args, sample, sampling_params):
    return sample


async def generate_3(args, sample, sampling_params):
    raise ValueError("no tool server")


async def generate_4(args, sample, sampling_params):
    return (await sglang_rollout.generate(args, sample, sampling_params)).tokens


async def generate_5(args, sample, sampling_params):
    sample = await sglang_rollout.generate(args, sample, sampling_params)
    sample.loss_mask = [1] * (sample.response_length + 1)
    return sample


async def generate_6(args, sample, sampling_params):
    sample = await sglang_rollout.generate(args, sample, sampling_params)
    sample.status = Sample.Status.PENDING
    return sample


async def generate_7(args, sample, sampling_params):
    sample = await sglang_rollout.generate(args, sample, sampling_params)
    other = Sample.from_dict({**sample.to_dict(), "group_index": 99})
    return [sample, other]


async def generate_8(args, sample, sampling_params):
    sample = await sglang_rollout.generate(args, sample, sampling_params)
    sample.status = Sample.Status.COMPLETED
    return sample
