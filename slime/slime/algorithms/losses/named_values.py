"""A custom loss that asks for its values by name, as guides write them, behind the contract of custom losses.

``compute_loss(policy_logits, reference_logits, rewards, advantages, config) -> loss or (loss, dict of metrics)``, with any of
these parameters. The loss is called once per sample. Each tensor is ``[n]`` float32 and covers the sample's ``n`` trained
response tokens (loss mask 1).

* ``policy_logits``, ``student_logprobs``: log probabilities of the sampled tokens under the policy, with a gradient. Guides
  call them logits, but their formulas need one number per token.
* ``reference_logits``: the same of the reference model, if the run computes them (``--use-kl-loss`` or ``--kl-coef``),
  otherwise of the old policy, to which the ratio of a clipped surrogate belongs.
* ``teacher_logprobs``: the same of the teacher. A sample without a teacher gets the policy's own, so that their difference
  and its gradient are zero.
* ``rewards``, ``scalar_rewards``: the sample's reward at every token, before any normalisation.
* ``advantages``: of the run's estimator.
* ``advantage_mask``: 1 at every token. A loss that divides by it is not called for a sample without a teacher, because
  all of its mask would be 0.
* ``config``: a :class:`slime.args.ConfigView` of the run's arguments.

A parameter with a default gets the argument of its name, such as one of ``--custom-config-path``, and otherwise keeps its
default. ``clip_ratio`` and ``config["clip_range"]`` are ``--eps-clip``, if that is not at its own default.

Guarantees: micro-batches, packing and the number of ranks do not change the loss, because each sample's loss gets the weight
that the run's reducer gives its tokens. A sample without a trained token adds zero. The logits of a whole sequence never
exist. A context-parallel rank has parts of samples, so the command line refuses this form there.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from slime.algorithms.losses.custom import CustomLoss, from_response_rows
from slime.algorithms.losses.reduce import Reducer
from slime.args import Arguments, ConfigView
from slime.arguments.plugin_forms import (
    CONFIG,
    LOSS_TENSORS,
    POLICY,
    TEACHER,
    FormError,
    check_loss_signature,
    loss_values,
)
from slime.logprobs.packed_logits import get_log_probs_and_entropy
from slime.logprobs.response_rows import ResponseRows
from slime.utils.misc import is_tuple, load_function
from slime.utils.streams import TrainBatch

WITH_TEACHER = "with_teacher"
"""Metric of a loss that asks for a teacher: the share of samples that have one."""
_CLIP_NAMES = ("clip_ratio", "clip_range")
_REWARDS = ("rewards", "scalar_rewards")
_MASK = "advantage_mask"


@functools.cache
def load_custom_loss(path: str) -> CustomLoss:
    """Return the loss at a plugin path in the form of the contract.

    Raises:
        PluginError: there is none, or its signature is of neither form.
    """
    function = load_function(path)
    if not callable(function):
        raise FormError("loss-1", f"{path} is a {type(function).__name__}, which cannot be called")
    signature = inspect.signature(function)
    names = loss_values(signature)
    if names is None:
        check_loss_signature(signature)
        return function
    return from_response_rows(functools.partial(_loss, path, function, names))


def _loss(
    path: str,
    function: Callable[..., Any],
    names: tuple[str, ...],
    args: Arguments,
    batch: TrainBatch,
    logits: Tensor | ResponseRows,
    sum_of_sample_mean: Reducer,
) -> tuple[Tensor, dict[str, Tensor]]:
    _, output = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )
    log_probs = output["log_probs"]
    settings = _settings(args, names)
    teachers = [_entry(batch, "teacher_log_probs", index) for index in range(len(log_probs))]
    losses: list[Tensor] = []
    metrics: list[dict[str, Any]] = []
    for index, policy in enumerate(log_probs):
        trained, teacher = batch["loss_masks"][index].bool(), teachers[index]
        if not trained.any() or (teacher is None and TEACHER in names and _MASK in names):
            losses.append(policy.sum() * 0.0)
            metrics.append({})
            continue
        tensors = {name: _tensor(path, name, batch, index, policy, teacher) for name in names if name in LOSS_TENSORS}
        loss, given = _checked(path, function(**{name: x[trained] for name, x in tensors.items()}, **settings))
        losses.append(loss)
        metrics.append(given)

    def reduced(values: list[Tensor]) -> Tensor:
        pairs = zip(values, log_probs, strict=True)
        return sum_of_sample_mean(torch.cat([value.expand(len(own)) for value, own in pairs]))

    def of_metric(name: str) -> Tensor:
        pairs = zip(metrics, log_probs, strict=True)
        return reduced([torch.as_tensor(given.get(name, 0.0)).detach().to(own).reshape(()) for given, own in pairs])

    shown = {name: of_metric(name) for name in dict.fromkeys(name for given in metrics for name in given)}
    if TEACHER in names:
        shown[WITH_TEACHER] = reduced(
            [own.new_tensor(t is not None) for t, own in zip(teachers, log_probs, strict=True)]
        )
    return reduced(losses), shown


def _settings(args: Arguments, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of the parameters that are no tensors; one that the run does not set is left out."""
    changed = not math.isclose(args.eps_clip, Arguments.eps_clip)
    config = ConfigView(args, dict.fromkeys(_CLIP_NAMES, args.eps_clip) if changed else None)
    settings = {name: config[name] for name in names if name not in LOSS_TENSORS and name in config}
    return settings | ({CONFIG: config} if CONFIG in names else {})


def _tensor(path: str, name: str, batch: TrainBatch, index: int, policy: Tensor, teacher: Tensor | None) -> Tensor:
    """Return the value ``[R]`` of a name for a sample; ``policy`` are its log probabilities."""
    if name in POLICY:
        return policy
    if name == TEACHER:
        return policy if teacher is None else teacher
    if name == _MASK:
        return torch.ones_like(policy)
    if name in _REWARDS:
        return torch.full_like(policy, float(_entry(batch, "raw_reward", index, "rewards")))
    keys = ("advantages",) if name == "advantages" else ("ref_log_probs", "log_probs")
    value = _entry(batch, keys[0], index, *keys[1:])
    if value is None:
        raise ValueError(
            f"--custom-loss-function-path {path} reads {name}, which this run does not compute; remove "
            "--disable-compute-advantages-and-returns"
        )
    return value.to(policy)


def _entry(batch: Mapping[str, Any], name: str, index: int, *others: str) -> Any:
    """Return a sample's entry of the first stream that the batch has; None without one."""
    streams = (batch.get(key) for key in (name, *others))
    values = next((stream for stream in streams if stream is not None), None)
    return None if values is None else values[index]


def _checked(path: str, result: object) -> tuple[Tensor, dict[str, Any]]:
    """Return the loss and the metrics of a result: a scalar, alone or with a dict."""
    loss, metrics = result if is_tuple(result) and len(result) == 2 else (result, cast(object, {}))
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and isinstance(metrics, dict)):
        shown = f"tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise FormError(
            "loss-3", f"{path} must return a scalar tensor, or one and a dict of metrics; it returned a {shown}"
        )
    return loss.reshape(()), cast("dict[str, Any]", metrics)
