"""Filters of groups, samples and the buffer that break one clause of the contract each; the name says which."""

from __future__ import annotations

from slime.rollout.data_source import pop_first


def dynamic_filter_1(args, group):
    return True


async def dynamic_filter_2(args, group, **kwargs):
    return True


def dynamic_filter_3(args, group, **kwargs):
    return group.rewards.std() > 0


def dynamic_filter_4(args, group, **kwargs):
    return 0.5


def dynamic_filter_5(args, group, **kwargs):
    group.sort(key=lambda one: -one.index)
    return True


def buffer_filter_1(args, buffer, num_samples):
    return []


async def buffer_filter_2(args, rollout_id, buffer, num_samples):
    return []


def buffer_filter_3(args, rollout_id, buffer, num_samples):
    return buffer[rollout_id + 1 :]


def buffer_filter_4(args, rollout_id, buffer, num_samples):
    return pop_first(args, rollout_id, buffer, num_samples + 1)


def buffer_filter_5(args, rollout_id, buffer, num_samples):
    return buffer[:num_samples]


def sample_filter_1(groups):
    return None


async def sample_filter_2(args, groups):
    return None


def sample_filter_3(args, groups):
    return groups.remove("samples")


def sample_filter_4(args, groups):
    del groups[0][0]


def all_samples_1(args, all_groups):
    return None


async def all_samples_2(args, all_groups, data_source):
    return None


def all_samples_3(args, all_groups, data_source):
    raise OSError("disk full")
