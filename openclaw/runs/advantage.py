"""The advantage of each token of a sample, computed by the trainer's own functions from what the ledger stores.

Guarantees: the same code as a step: `openclaw.training.rollout.prepare`, `slime.rollout.rewards.post_process_rewards` and
`slime.algorithms.advantages.compute_advantages`, with the arguments that the run recorded. Where a step also reads what
nobody stores (the rest of its batch, a reference model, a critic), `Advantages.missing` says what is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from openclaw.ledger.records import BASELINE
from openclaw.ledger.views import SampleRecord
from openclaw.training.rollout import compares_rewards, prepare
from slime.algorithms.advantages import compute_advantages
from slime.args import Arguments
from slime.rollout.rewards import post_process_rewards

NEEDS_OTHERS = ("ppo", "step_wise")
"""Estimators that read what no ledger stores."""


@dataclass(frozen=True)
class Advantages:
    """The advantages of a sample.

    Attributes:
        values: one per response token; None if they cannot be known.
        reward: what the trainer got, with the baseline subtracted.
        baseline: what was subtracted; None if nothing was.
        missing: what the step adds that is not in ``values``, one sentence each.
    """

    values: tuple[float, ...] | None
    reward: float
    baseline: float | None
    missing: tuple[str, ...]


def advantages_of(record: SampleRecord, args: Arguments, settings: Mapping[str, str] | None) -> Advantages:
    """Return the advantages of a stored sample.

    Args:
        record: of the ledger; its sample is changed as a step changes it.
        args: of the trainer, as the run recorded them.
        settings: the runtime's variables, as the run recorded them; None if it did not.
    """
    sample = record.sample
    missing: list[str] = []
    if settings is None:
        missing.append("The run did not record its variables; this assumes the defaults, such as OPENCLAW_BASELINE=1.")
    compares = compares_rewards(settings or {})
    baseline = float(sample.metadata[BASELINE]) if compares and BASELINE in sample.metadata else None
    prepare(sample, None, compares)
    _, [reward] = post_process_rewards(args, [sample])
    if args.custom_advantage_function_path or args.advantage_estimator in NEEDS_OTHERS:
        what = args.custom_advantage_function_path or f"--advantage-estimator {args.advantage_estimator}"
        missing.append(f"{what} reads what the ledger does not store, so the advantages of its tokens are unknown.")
        return Advantages(None, reward, baseline, tuple(missing))
    missing += left_out(args)
    sampled = torch.tensor(sample.rollout_log_probs or [0.0] * sample.response_length, dtype=torch.float32)
    teacher = sample.teacher_log_probs
    rollout = {
        "rewards": [reward],
        "response_lengths": [sample.response_length],
        "loss_masks": [torch.tensor(sample.loss_mask or [1] * sample.response_length, dtype=torch.float32)],
        "rollout_log_probs": [sampled],
        "log_probs": [sampled],
        "teacher_log_probs": None if teacher is None else [torch.tensor(teacher, dtype=torch.float32)],
    }
    if teacher is None and args.advantage_estimator == "on_policy_distillation":
        missing.append("The sample has no teacher's log-probabilities for each token, so its advantages are unknown.")
        return Advantages(None, reward, baseline, tuple(missing))
    [values], _ = compute_advantages(args.changed(kl_coef=0.0, normalize_advantages=False), rollout)
    return Advantages(tuple(values.tolist()), reward, baseline, tuple(missing))


def left_out(args: Arguments) -> list[str]:
    """Return what a step with these arguments adds to the advantages, or changes, beyond one sample."""
    results: list[str] = []
    if args.normalize_advantages:
        results.append("--normalize-advantages then scales them by the mean and deviation of the whole batch.")
    if args.kl_coef:
        results.append("--kl-coef subtracts the distance to the reference model, which is not stored.")
    if args.custom_loss_function_path and args.loss_type == "custom_loss":
        results.append(f"The loss {args.custom_loss_function_path} adds terms of its own to them.")
    if args.stale_samples == "mask" and args.max_weight_staleness is not None:
        results.append("--stale-samples mask left out tokens whose weights were too old at the step.")
    return results
