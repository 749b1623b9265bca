"""Data sources that break one clause of the contract each; the name says which."""

from __future__ import annotations

from slime.rollout.data_source import RolloutDataSource
from slime.utils.types import Sample


def data_source_1(args):
    return RolloutDataSource(args)


class data_source_2:
    def __init__(self, args):
        self.args = args

    def get_samples(self, num_samples):
        return [[Sample()] for _ in range(num_samples)]


class data_source_3(RolloutDataSource):
    def get_samples(self, num_samples):
        raise FileNotFoundError("tasks.json")


class data_source_4(RolloutDataSource):
    def get_samples(self, num_samples):
        return [one for group in super().get_samples(num_samples) for one in group]


class data_source_5(RolloutDataSource):
    def get_samples(self, num_samples):
        groups = super().get_samples(num_samples)
        for group in groups:
            for one in group:
                one.group_index = 0
        return groups


class data_source_6(RolloutDataSource):
    def add_samples(self, samples):
        assert all(len(group) == self.args.n_samples_per_prompt for group in samples)


class data_source_7(RolloutDataSource):
    def load(self, rollout_id=None):
        return None
