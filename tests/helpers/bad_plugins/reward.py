"""Reward functions that break one clause of the contract each; the name says which."""

from __future__ import annotations


async def reward_1(args, sample):
    return [] if sample == [] else 1.0


def reward_2(args, sample, **kwargs):
    return 1.0


async def reward_3(args, sample, **kwargs):
    return sample.metadata["no such key"]


async def reward_4(args, sample, **kwargs):
    return "good"


async def reward_5(args, sample, **kwargs):
    return 1.0


async def reward_6(args, sample, **kwargs):
    if isinstance(sample, list):
        return [1.0] * len(sample) or None
    return 1.0


async def reward_7(args, sample, **kwargs):
    if isinstance(sample, list):
        return [await reward_7(args, one) for one in sample]
    sample.response = sample.response.strip() + "!"
    return 1.0
