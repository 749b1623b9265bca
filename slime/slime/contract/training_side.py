"""Check plugins that run on a training rank: losses, advantages, corrections, reducers.

They get a small rollout as tensors, as the trainer passes it to advantages and losses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.custom import contract_batch
from slime.algorithms.losses.reduce import make_reducer
from slime.args import Arguments
from slime.contract.clauses import check_call, require, running
from slime.contract.surroundings import Surroundings
from slime.utils import streams

VOCABULARY = 32
K = 4
RESPONSES = (3, 1, 4)


def rollout_data(args: Arguments) -> dict[str, Any]:
    """Return three samples with every stream: per sample a tensor ``[R_i]`` (top-K: ``[R_i, K]``)."""
    generator = torch.Generator().manual_seed(0)

    def log_probs() -> list[torch.Tensor]:
        return [-3.0 - torch.rand(length, generator=generator) for length in RESPONSES]

    def top_k(ids: bool) -> list[torch.Tensor]:
        values = [torch.randn(length, VOCABULARY, generator=generator) for length in RESPONSES]
        return [rows.argsort(-1)[:, :K] if ids else rows.log_softmax(-1)[:, :K] for rows in values]

    totals = [2 + length for length in RESPONSES]
    data: dict[str, Any] = {
        "unconcat_tokens": [torch.randint(VOCABULARY, (total,), generator=generator) for total in totals],
        "total_lengths": totals,
        "response_lengths": list(RESPONSES),
        "loss_masks": [torch.ones(length, dtype=torch.int64) for length in RESPONSES],
        "rewards": [1.0, -1.0, 0.5],
        "raw_reward": [1.0, 0.0, 0.5],
        "truncated": [0, 0, 1],
        "sample_indices": [0, 1, 2],
        "group_indices": [0, 0, 1],
        "rollout_ids": [0, 1, 2],
        "advantages": [torch.full((length,), 1.0 - index) for index, length in enumerate(RESPONSES)],
        "kl": [torch.zeros(length) for length in RESPONSES],
    }
    data["loss_masks"][2][1] = 0
    data["returns"] = [values.clone() for values in data["advantages"]]
    for stream in streams.STREAMS:
        if stream.per_token and stream.name not in data and (stream.attribute or stream.in_contract):
            data[stream.name] = top_k(stream.dtype == "int64") if stream.top_k else log_probs()
    data["metadata"] = [{}, {}, {}]
    return data


def micro_batch(data: dict[str, Any], indices: list[int]) -> dict[str, Any]:
    """Return the samples ``indices`` of ``data`` as a batch with copied tensors."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    return {name: [copied(values[index]) for index in indices] for name, values in data.items()}


def logits_of(data: dict[str, Any]) -> torch.Tensor:
    """Return random float32 logits ``[1, T, V]`` for all tokens of ``data``."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, sum(data["total_lengths"]), VOCABULARY, generator=generator)


Plugin = Callable[..., Any]
TOLERANCE = 1e-4
TIS_KEYWORDS = (
    "args",
    "pg_loss",
    "train_log_probs",
    "rollout_log_probs",
    "loss_masks",
    "total_lengths",
    "response_lengths",
)


def check_loss(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a custom loss on a batch and on its two micro-batches."""
    check_call(plugin, "loss-1", 4)
    data = rollout_data(surroundings.args)
    logits = logits_of(data)
    end = data["total_lengths"][0]
    pieces = [([0, 1, 2], logits), ([0], logits[:, :end]), ([1, 2], logits[:, end:])]
    results = [_loss_of(plugin, surroundings, micro_batch(data, indices), rows) for indices, rows in pieces]
    names = [sorted(metrics) for _, metrics in results]
    require(names[0] == names[1] == names[2], "loss-6", f"it returned {names[0]}, {names[1]} and {names[2]}")
    whole, parts = results[0][0], results[1][0] + results[2][0]
    require(
        abs(whole - parts) <= TOLERANCE * max(1.0, abs(whole)),
        "loss-8",
        f"the loss of three samples is {whole:.6f}, but their two micro-batches add up to {parts:.6f}",
    )


def _loss_of(
    plugin: Plugin, surroundings: Surroundings, data: dict[str, Any], rows: Tensor
) -> tuple[float, dict[str, Any]]:
    args = surroundings.args
    batch = contract_batch(data)
    before = _copied(batch)
    logits = rows.clone().requires_grad_()
    reduce = make_reducer(args.calculate_per_token_loss, batch["response_lengths"], batch["loss_masks"])
    with running("loss-2"):
        result = plugin(args, batch, logits, reduce)
    require(isinstance(result, tuple) and len(result) == 2, "loss-3", f"it returned a {type(result).__name__}")
    loss, metrics = result
    require(
        isinstance(loss, Tensor) and loss.numel() == 1 and isinstance(metrics, dict),
        "loss-3",
        f"it returned {tuple(loss.shape) if isinstance(loss, Tensor) else loss!r} and a {type(metrics).__name__}",
    )
    for name, value in metrics.items():
        scalar = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
        with_gradient = isinstance(value, Tensor) and value.requires_grad
        require(scalar and not with_gradient, "loss-5", f"the metric {name!r} is {value!r:.100}")
    require(torch.equal(logits.detach(), rows), "loss-7", "it wrote to the logits")
    changed = [name for name in before if not _equal(before[name], batch.get(name))]
    require(not changed, "loss-7", f"it changed {', '.join(changed)}")
    require(bool(torch.isfinite(loss)), "loss-4", f"the loss is {loss.item()}")
    require(loss.requires_grad, "loss-4", "the loss has no gradient")
    with running("loss-2"):
        loss.backward()
    gradient = logits.grad
    require(
        gradient is not None and bool(torch.isfinite(gradient).all()), "loss-4", "the gradient is missing or not finite"
    )
    return float(loss.detach()), metrics


def _copied(batch: Mapping[str, Any]) -> dict[str, Any]:
    def copied(value: Any) -> Any:
        if isinstance(value, list):
            return [copied(one) for one in value]
        return value.clone() if isinstance(value, Tensor) else value

    return {name: copied(value) for name, value in batch.items()}


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and torch.equal(left, right)
    return left == right


def check_advantage(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a function that sets advantages and returns."""
    check_call(plugin, "advantage-1", 2)
    data = rollout_data(surroundings.args)
    for name in ("advantages", "returns"):
        del data[name]
    with running("advantage-2"):
        plugin(surroundings.args, data)
    for name in ("advantages", "returns"):
        require(data.get(name) is not None, "advantage-3", f"it did not set {name}")
        lengths = [len(values) if hasattr(values, "__len__") else "no" for values in data[name]]
        require(lengths == list(RESPONSES), "advantage-3", f"{name} have {lengths} values for {list(RESPONSES)} tokens")
        finite = all(bool(torch.isfinite(torch.as_tensor(values)).all()) for values in data[name])
        require(finite, "advantage-4", f"{name} are not finite")


def check_tis(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a correction for the mismatch between engine and trainer."""
    check_call(plugin, "tis-1", 0, TIS_KEYWORDS)
    data = rollout_data(surroundings.args)
    losses = torch.linspace(-1.0, 1.0, sum(RESPONSES), requires_grad=True)
    with running("tis-2"):
        result = plugin(
            args=surroundings.args,
            pg_loss=losses,
            train_log_probs=data["log_probs"],
            rollout_log_probs=data["rollout_log_probs"],
            loss_masks=data["loss_masks"],
            total_lengths=data["total_lengths"],
            response_lengths=data["response_lengths"],
        )
    require(isinstance(result, tuple) and len(result) == 3, "tis-3", f"it returned a {type(result).__name__}")
    corrected, masks, metrics = result
    lengths = [len(mask) for mask in masks]
    require(
        isinstance(corrected, Tensor) and corrected.shape == losses.shape and lengths == list(RESPONSES),
        "tis-4",
        f"it returned pg_loss {tuple(getattr(corrected, 'shape', ()))} and masks of {lengths} for {list(RESPONSES)} tokens",
    )
    for name, value in metrics.items():
        flat = value if isinstance(value, Tensor) else torch.cat(list(value))
        require(
            flat.numel() == sum(RESPONSES), "tis-5", f"{name} has {flat.numel()} values for {sum(RESPONSES)} tokens"
        )


def check_pg_loss_reducer(plugin: Plugin, surroundings: Surroundings) -> None:
    """Check a function that reduces the policy loss of a micro-batch."""
    takes_args = callable(plugin) and "args" in inspect.signature(plugin).parameters
    check_call(plugin, "pg_loss_reducer-1", 4, ("args",) if takes_args else ())
    data = rollout_data(surroundings.args)
    extra = {"args": surroundings.args} if takes_args else {}
    values = torch.linspace(-1.0, 1.0, sum(RESPONSES))
    with running("pg_loss_reducer-2"):
        reduce = plugin(
            data["total_lengths"],
            data["response_lengths"],
            data["loss_masks"],
            surroundings.args.calculate_per_token_loss,
            **extra,
        )
    require(callable(reduce), "pg_loss_reducer-3", f"it returned a {type(reduce).__name__}")
    with running("pg_loss_reducer-2"):
        result = reduce(values)
    require(
        isinstance(result, Tensor) and result.numel() == 1,
        "pg_loss_reducer-3",
        f"its function returned {result!r:.100}",
    )
    masked = values.clone()
    masked[torch.cat(data["loss_masks"]) == 0] = 1e3
    with running("pg_loss_reducer-2"):
        again = reduce(masked)
    require(
        torch.allclose(result, again), "pg_loss_reducer-4", f"a masked token changed {float(result)} to {float(again)}"
    )
