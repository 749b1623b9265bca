"""Hooks of the rollout side: logs, rewards, conversion that break one clause of the contract each; the name says which."""

from __future__ import annotations


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


def convert_5(args, samples):
    responses = [one.tokens[-one.response_length :] for one in samples]
    return train_data(samples) | {"tokens": responses}


def convert_6(args, samples):
    return train_data(samples) | {"rewards": [float("nan") for _ in samples]}


def convert_7(args, samples):
    return train_data(samples) | {"rollout_log_probs": [one.rollout_log_probs[1:] for one in samples]}


def convert_8(args, samples):
    return train_data(samples) | {"rollout_routed_experts": [[] for _ in samples]}


def convert_9(args, samples):
    return train_data(samples) | {"multimodal_train_inputs": [{"pixel_values": [[0.0]]} for _ in samples]}


def data_postprocess_1(args, rollout_data):
    return None


async def data_postprocess_2(args):
    return None


def data_postprocess_3(args, rollout_id, rollout_data):
    return rollout_data["no such key"]
