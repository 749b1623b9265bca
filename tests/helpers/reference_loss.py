"""Loss and gradients of a batch in float64, one sample at a time, without the trainer's code."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM


def reference(
    args: Namespace, data: dict[str, Any], lora: dict[str, Tensor] | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Return the step's loss and the gradient of every trainable parameter, by the checkpoint's names.

    ``lora``: adapter tensors by module name plus ``.lora_A`` or ``.lora_B``; then the gradients are theirs.
    """
    model = AutoModelForCausalLM.from_pretrained(args.hf_checkpoint, dtype=torch.float64, attn_implementation="eager")
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    leaves = {name: value.double().requires_grad_() for name, value in (lora or weights).items()}
    used = dict(leaves)
    if lora:
        used = dict(weights)
        for name in [name.removesuffix(".lora_A") for name in lora if name.endswith(".lora_A")]:
            delta = leaves[f"{name}.lora_B"] @ leaves[f"{name}.lora_A"]
            used[f"{name}.weight"] = weights[f"{name}.weight"] + args.lora_alpha / args.lora_rank * delta
    losses, masks = [], []
    for index, tokens in enumerate(data["tokens"]):
        response = data["response_lengths"][index]
        mask = torch.tensor(data["loss_masks"][index], dtype=torch.float64)
        new = _log_probs(model, used, tokens, response, args.rollout_temperature)
        ref, ref_entropy = (new[0].detach(), new[1])
        if lora:
            ref = _log_probs(model, weights, tokens, response, args.rollout_temperature)[0].detach()
        losses.append(_token_losses(args, data, index, new[0], ref, ref_entropy))
        masks.append(mask)
    if args.calculate_per_token_loss:
        loss = sum((x * m).sum() for x, m in zip(losses, masks, strict=True)) / sum(m.sum() for m in masks)
    else:
        loss = sum((x * m).sum() / m.sum() for x, m in zip(losses, masks, strict=True)) / len(losses)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return float(loss.detach()), dict(zip(leaves, gradients, strict=True))


def _log_probs(model, weights, tokens, response, temperature) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([tokens])
    logits = functional_call(model, weights, (ids,), {"use_cache": False}).logits[0] / temperature
    table = torch.log_softmax(logits[len(tokens) - response - 1 : -1], dim=-1)
    entropy = -(table.exp() * table).sum(-1)
    return table.gather(1, ids[0, len(tokens) - response :, None])[:, 0], entropy


def _token_losses(args, data, index, new: Tensor, ref: Tensor, entropy: Tensor) -> Tensor:
    if args.loss_type == "sft_loss":
        return -new
    old = new.detach()
    rollout = torch.tensor(data["rollout_log_probs"][index], dtype=torch.float64)
    if args.use_rollout_logprobs:
        old = rollout
    advantage = torch.full_like(new, data["rewards"][index]).detach()
    teacher = data["teacher_log_probs"][index]
    if args.use_opd and teacher is not None:
        advantage = advantage + args.opd_kl_coef * (torch.tensor(teacher, dtype=torch.float64) - old)
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high)
    loss = -torch.minimum(ratio * advantage, clipped * advantage)
    if args.use_tis:
        loss = loss * (old - rollout).exp().clamp(args.tis_clip_low, args.tis_clip)
    if args.use_kl_loss:
        d = new - ref
        loss = loss + args.kl_loss_coef * ((-d).exp() - 1 + d)
    return loss - args.entropy_coef * entropy
