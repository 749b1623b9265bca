"""Plugins that break one clause each; the name says which. What they inherit or call keeps all the others."""

from __future__ import annotations

import torch

from slime.algorithms.losses.icepop import icepop_function
from slime.rollout import sglang_rollout
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSource, pop_first
from slime.utils.types import Sample
from tests.helpers.good_plugins import likelihood

# Rollout functions


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


# Generate functions


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


# Reward functions


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


# Filters and the buffer


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


# Data sources


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


# Hooks


def sample_hook_1(args, sample, tokenizer):
    return sample


def sample_hook_2(args, sample):
    raise RuntimeError("no tracer")


def sample_hook_3(args, sample):
    return sample.tokens


def rollout_log_1(args, samples):
    return False


async def rollout_log_2(rollout_id, args, samples, extra_metrics, rollout_time):
    return False


def rollout_log_3(rollout_id, args, samples, extra_metrics, rollout_time):
    return samples.mean()


def rollout_log_4(rollout_id, args, samples, extra_metrics, rollout_time):
    samples[0].reward = 0.0
    samples[0].metadata["logged"] = True


def eval_log_1(args, data):
    return False


async def eval_log_2(rollout_id, args, data, extra_metrics):
    return False


def eval_log_3(rollout_id, args, data, extra_metrics):
    return data["aime"]


def eval_log_4(rollout_id, args, data, extra_metrics):
    data.pop("held_out")


def reward_post_process_1(samples):
    return [], []


async def reward_post_process_2(args, samples):
    return [0.0] * len(samples), [0.0] * len(samples)


def reward_post_process_3(args, samples):
    return samples.rewards


def reward_post_process_4(args, samples):
    return [1.0 for _ in samples]


def reward_post_process_5(args, samples):
    return [1.0 for _ in samples], [float("nan") for _ in samples]


def train_data(samples):
    return {
        "tokens": [one.tokens for one in samples],
        "response_lengths": [one.response_length for one in samples],
        "rewards": [one.reward for one in samples],
        "loss_masks": [one.loss_mask for one in samples],
    }


def convert_1(args):
    return {}


async def convert_2(args, samples):
    return train_data(samples)


def convert_3(args, samples):
    return train_data(samples.groups)


def convert_4(args, samples):
    return train_data(samples) | {"loss_masks": [[1] for _ in samples]}


def data_postprocess_1(args, rollout_data):
    return None


async def data_postprocess_2(args):
    return None


def data_postprocess_3(args, rollout_id, rollout_data):
    return rollout_data["no such key"]


# Training


def loss_1(args, batch, logits):
    return logits.sum(), {}


def loss_2(args, batch, logits, sum_of_sample_mean):
    return sum_of_sample_mean(batch["no such key"]), {}


def loss_3(args, batch, logits, sum_of_sample_mean):
    return likelihood(args, batch, logits, sum_of_sample_mean)[0]


def loss_4(args, batch, logits, sum_of_sample_mean):
    loss, metrics = likelihood(args, batch, logits, sum_of_sample_mean)
    return loss.detach(), metrics


def loss_5(args, batch, logits, sum_of_sample_mean):
    loss, _ = likelihood(args, batch, logits, sum_of_sample_mean)
    return loss, {"likelihood": -loss}


def loss_6(args, batch, logits, sum_of_sample_mean):
    loss, metrics = likelihood(args, batch, logits, sum_of_sample_mean)
    return loss, metrics | {f"samples_{len(batch['response_lengths'])}": 1.0}


def loss_7(args, batch, logits, sum_of_sample_mean):
    loss, metrics = likelihood(args, batch, logits, sum_of_sample_mean)
    batch["advantages"][0].mul_(2.0)
    return loss, metrics


def loss_8(args, batch, logits, sum_of_sample_mean):
    loss, metrics = likelihood(args, batch, logits, sum_of_sample_mean)
    return loss / len(batch["response_lengths"]), metrics


def advantage_1(rollout_data):
    return None


def advantage_2(args, rollout_data):
    rollout_data["advantages"] = rollout_data["no such key"]


def advantage_3(args, rollout_data):
    rollout_data["advantages"] = rollout_data["rewards"]


def advantage_4(args, rollout_data):
    values = [mask * float("inf") for mask in rollout_data["loss_masks"]]
    rollout_data["advantages"] = rollout_data["returns"] = values


def tis_1(args, pg_loss):
    return pg_loss, [], {}


def tis_2(*, args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths):
    return pg_loss * (train_log_probs - rollout_log_probs).exp(), loss_masks, {}


def tis_3(**kwargs):
    return icepop_function(**kwargs)[:2]


def tis_4(**kwargs):
    losses, masks, metrics = icepop_function(**kwargs)
    return losses.sum(), masks, metrics


def tis_5(**kwargs):
    losses, masks, metrics = icepop_function(**kwargs)
    return losses, masks, {name: value.mean() for name, value in metrics.items()}


def pg_loss_reducer_1(response_lengths, loss_masks):
    return torch.sum


def pg_loss_reducer_2(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return torch.cat(total_lengths).sum


def pg_loss_reducer_3(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return lambda values: values / len(values)


def pg_loss_reducer_4(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    return torch.sum


# Flags, and hooks of which only the call is checked


def arguments_1():
    return None


def arguments_2(parser):
    parser.add_argument("--lr", type=float)


def arguments_3(parser):
    parser.add_argument("--my-server", required=True)


def model_provider_1(pre_process):
    return None


def megatron_init_1():
    return None


def before_log_prob_1(args, model):
    return None


def before_train_step_1(args, model, optimizer):
    return None
