"""Optimizer steps in float64 on a Hugging Face model, from the formulas and without the trainer's code."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM


def log_probs_of(model: Any, weights: dict[str, Tensor], args: Namespace, data: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` log probabilities of every response of ``data``."""
    found = []
    for tokens, response in zip(data["tokens"], data["response_lengths"], strict=True):
        ids = torch.tensor(tokens)
        logits = functional_call(model, weights, (ids[None],), {"use_cache": False}).logits[0]
        table = torch.log_softmax(logits[len(ids) - response - 1 : -1] / args.rollout_temperature, dim=-1)
        found.append(table.gather(1, ids[len(ids) - response :, None])[:, 0])
    return found


def sft_steps(args: Namespace, data: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return ``log_probs`` and ``gradients`` at the start, ``losses``, and the weights ``after`` the steps of AdamW."""
    model = AutoModelForCausalLM.from_pretrained(
        args.hf_checkpoint, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in weights.items()}
    result: dict[str, Any] = {"losses": []}
    for step in range(1, steps + 1):
        found = log_probs_of(model, weights, args, data)
        masks = [torch.tensor(mask) for mask in data["loss_masks"]]
        loss = torch.stack([-(v * m).sum() / m.sum() for v, m in zip(found, masks, strict=True)]).mean()
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        if step == 1:
            result |= {"log_probs": [value.detach() for value in found], "gradients": gradients}
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
