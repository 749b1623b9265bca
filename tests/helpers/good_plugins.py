"""Plugins that keep their contract, small enough to read."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import torch

from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
from slime.rollout.before_push import Decision, Probe
from slime.utils.types import Sample


def keep_all(args, group, **kwargs):
    return SimpleNamespace(keep=True, reason=None)


def remove_truncated(args, groups):
    for group in groups:
        for sample in group:
            sample.remove_sample = sample.status == Sample.Status.TRUNCATED


def count_all(args, all_groups, data_source):
    args.groups_seen = len(all_groups)


async def trace(args, sample, *, rollout_id=None, evaluation=False):
    sample.trace = {"rollout": rollout_id, "evaluation": evaluation}


def accept_what_scores_better(args, rollout_id, data_source, policies):
    probes = [Probe([1, 2, 3], [4, 5], max_new_tokens=3)]
    means = [statistics.fmean(policy.ask(probes)[0].log_probs) for policy in policies]
    margin = means[1] - means[0]
    return Decision(margin >= 0, f"margin {margin:.3f}", {"gate/margin": margin})


def log_rollout(rollout_id, args, samples, extra_metrics, rollout_time):
    return False


def log_eval(rollout_id, args, data, extra_metrics):
    return True


def centre_rewards(args, samples):
    raw = [sample.get_reward_value(args) for sample in samples]
    return raw, [value - statistics.fmean(raw) for value in raw]


def look_at_rollout(args, rollout_id, rollout_data):
    assert len(rollout_data["advantages"]) == len(rollout_data["response_lengths"])


def likelihood(args, batch, logits, sum_of_sample_mean):
    """The negative log likelihood of the responses."""
    _, found = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        max_seq_lens=batch["max_seq_lens"],
    )
    loss = sum_of_sample_mean(-torch.cat(found["log_probs"]))
    return loss, {"likelihood": -loss.detach()}


def constant_advantage(args, rollout_data):
    values = [reward * mask for reward, mask in zip(rollout_data["rewards"], rollout_data["loss_masks"], strict=True)]
    rollout_data["advantages"] = rollout_data["returns"] = values


def add_custom_arguments(parser):
    parser.add_argument("--my-method-weight", type=float, default=0.5)
    return parser


def model_provider(pre_process=True, post_process=True, vp_stage=None):
    return torch.nn.Identity()


def megatron_init(args):
    args.seen_init = True


def before_log_prob(args, model, store_prefix):
    args.seen_prefix = store_prefix


def before_train_step(args, rollout_id, step_id, model, optimizer, opt_param_scheduler):
    args.seen_step = (rollout_id, step_id)
