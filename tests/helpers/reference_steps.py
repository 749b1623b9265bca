"""Optimizer steps in float64 on a Hugging Face model, from the formulas and without the trainer's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from slime.args import Arguments


def log_probs_of(model: Any, weights: dict[str, Tensor], args: Arguments, data: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` log probabilities of every response of ``data``."""
    found = []
    for tokens, response in zip(data["tokens"], data["response_lengths"], strict=True):
        ids = torch.tensor(tokens)
        logits = functional_call(model, weights, (ids[None],), {"use_cache": False}).logits[0]
        table = torch.log_softmax(logits[len(ids) - response - 1 : -1] / args.rollout_temperature, dim=-1)
        found.append(table.gather(1, ids[len(ids) - response :, None])[:, 0])
    return found


def by_expert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the checkpoint: transformers holds all experts of a layer in two tensors."""
    found = {}
    for name, value in weights.items():
        layer, experts, kind = name.partition(".mlp.experts.")
        if not experts:
            found[name] = value
            continue
        for number, expert in enumerate(value):
            parts = expert.chunk(2) if kind == "gate_up_proj" else (expert,)
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            for one, part in zip(kinds, parts, strict=True):
                found[f"{layer}.mlp.experts.{number}.{one}.weight"] = part
    return found


def adamw_steps(
    args: Arguments, weights: dict[str, Tensor], loss_of: Callable[[], Tensor], steps: int
) -> dict[str, Any]:
    """Return the ``losses`` of the steps of AdamW, the ``gradients`` of the first one, and the weights ``after`` all.

    ``loss_of`` gives the loss of ``weights``, which are changed in place; gradients are clipped to their norm.
    """
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in weights.items()}
    result: dict[str, Any] = {"losses": []}
    for step in range(1, steps + 1):
        loss = loss_of()
        found = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        gradients = dict(zip(weights, found, strict=True))
        result.setdefault("gradients", gradients)
        result["losses"].append(float(loss.detach()))
        norm = torch.stack([value.norm() for value in gradients.values()]).norm()
        scale = min(1.0, args.clip_grad / (float(norm) + 1e-6))
        for name, weight in weights.items():
            first, second = moments[name]
            gradient = gradients[name] * scale
            first.mul_(args.adam_beta1).add_(gradient, alpha=1 - args.adam_beta1)
            second.mul_(args.adam_beta2).add_(gradient.square(), alpha=1 - args.adam_beta2)
            corrected = first / (1 - args.adam_beta1**step)
            divisor = (second / (1 - args.adam_beta2**step)).sqrt() + args.adam_eps
            decay = args.weight_decay if weight.dim() > 1 else 0.0
            with torch.no_grad():
                weight.sub_(args.lr * (corrected / divisor + decay * weight))
    return result | {"after": {name: value.detach() for name, value in weights.items()}}


def sft_steps(args: Arguments, data: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return ``log_probs`` at the start, and of the steps what :func:`adamw_steps` does."""
    model = AutoModelForCausalLM.from_pretrained(
        args.hf_checkpoint, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    masks = [torch.tensor(mask) for mask in data["loss_masks"]]
    log_probs: list[list[Tensor]] = []

    def loss() -> Tensor:
        log_probs.append(log_probs_of(model, weights, args, data))
        return torch.stack([-(v * m).sum() / m.sum() for v, m in zip(log_probs[-1], masks, strict=True)]).mean()

    return adamw_steps(args, weights, loss, steps) | {"log_probs": [value.detach() for value in log_probs[0]]}
