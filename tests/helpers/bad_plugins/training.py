"""Losses, advantages, corrections and reducers that break one clause of the contract each; the name says which."""

from __future__ import annotations

import torch

from slime.algorithms.losses.rejection import icepop_function
from slime.rollout.before_push import Decision
from tests.helpers.good_plugins import likelihood


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


def before_push_1(args, policies):
    return Decision(True, "fine")


async def before_push_2(args, rollout_id, data_source, policies):
    return Decision(True, "fine")


def before_push_3(args, rollout_id, data_source, policies):
    raise RuntimeError("no probes")


def before_push_4(args, rollout_id, data_source, policies):
    return Decision(True, "fine", {"gate/margin": float("nan")})
