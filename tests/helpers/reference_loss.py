"""Loss and gradients of a batch in float64, one sample at a time, without the trainer's code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from slime.args import Arguments
from tests.helpers.reference_policy import reference_advantages, reference_policy_loss, reference_value_loss
from tests.helpers.reference_steps import adamw_steps


def reference(
    args: Arguments, data: dict[str, Any], lora: dict[str, Tensor] | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Return the step's loss and the gradient of every trainable parameter, by the checkpoint's names.

    ``lora``: adapter tensors by module name plus ``.lora_A`` or ``.lora_B``; then the gradients are theirs.
    """
    model = AutoModelForCausalLM.from_pretrained(
        args.hf_checkpoint, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    leaves = {name: value.double().requires_grad_() for name, value in (lora or weights).items()}
    used = dict(leaves)
    if lora:
        used = dict(weights)
        for name in [name.removesuffix(".lora_A") for name in lora if name.endswith(".lora_A")]:
            delta = leaves[f"{name}.lora_B"] @ leaves[f"{name}.lora_A"]
            used[f"{name}.weight"] = weights[f"{name}.weight"] + args.lora_alpha / args.lora_rank * delta
    new, ref, entropy = [], [], []
    for tokens, response in zip(data["tokens"], data["response_lengths"], strict=True):
        found = _log_probs(model, used, tokens, response, args.rollout_temperature)
        new.append(found[0])
        entropy.append(found[1])
        ref.append(found[0].detach())
        if lora:
            ref[-1] = _log_probs(model, weights, tokens, response, args.rollout_temperature)[0].detach()
    batch = _batch(data, new, ref, from_engine=args.use_rollout_logprobs)
    total = _negative_log_likelihood(args, batch, new)
    if "teacher_topk_indices" in data:
        forward = args.custom_loss_function_path.endswith("forward_topk_distillation_loss")
        total = torch.stack([_topk_divergence(model, used, data, i, forward) for i in range(len(new))]).sum()
    elif args.loss_type != "sft_loss":
        batch["advantages"] = reference_advantages(args, batch)
        total = reference_policy_loss(args, batch, new, entropy)
    tokens = sum(int(mask.sum()) for mask in batch["loss_masks"])
    loss = total / (tokens if args.calculate_per_token_loss else len(new))
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return float(loss.detach()), dict(zip(leaves, gradients, strict=True))


def reference_critic(
    args: Arguments, data: dict[str, Any], head: dict[str, Tensor], steps: int = 1
) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the values of each sample at the start, and of ``steps`` steps towards the returns these give what `adamw_steps` does.

    ``head`` is the value head's ``weight`` and ``bias``; old log probabilities are the engine's.
    """
    model = AutoModelForCausalLM.from_pretrained(
        args.hf_checkpoint, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    backbone = model.model
    leaves = {f"hf.{name}": value.detach().clone().requires_grad_() for name, value in backbone.named_parameters()}
    leaves |= {f"head.{name}": value.double().requires_grad_() for name, value in head.items()}
    weights = {name.removeprefix("hf."): value for name, value in leaves.items() if name.startswith("hf.")}
    lengths = list(zip(data["tokens"], data["response_lengths"], strict=True))

    def values() -> list[Tensor]:
        found = []
        for tokens, response in lengths:
            output = functional_call(backbone, weights, (torch.tensor([tokens]),), {"use_cache": False})
            states = output.last_hidden_state[0][len(tokens) - response - 1 : -1]
            found.append((states @ leaves["head.weight"].T + leaves["head.bias"])[:, 0])
        return found

    start = dict(model.named_parameters())
    refs = [_log_probs(model, start, *sample, args.rollout_temperature)[0].detach() for sample in lengths]
    old = [value.detach() for value in values()]
    batch = _batch(data, refs, refs, from_engine=True)
    advantages = reference_advantages(args, batch | {"values": old})
    returns = [a + v for a, v in zip(advantages, old, strict=True)]

    def loss() -> Tensor:
        return reference_value_loss(old, values(), returns, batch["loss_masks"], args.value_clip) / len(old)

    return old, adamw_steps(args, leaves, loss, steps)


def _log_probs(model, weights, tokens, response, temperature) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([tokens])
    logits = functional_call(model, weights, (ids,), {"use_cache": False}).logits[0] / temperature
    table = torch.log_softmax(logits[len(tokens) - response - 1 : -1], dim=-1)
    entropy = -(table.exp() * table).sum(-1)
    return table.gather(1, ids[0, len(tokens) - response :, None])[:, 0], entropy


def _topk_divergence(model: Any, weights: dict[str, Tensor], data: dict[str, Any], i: int, forward: bool) -> Tensor:
    """The mean over unmasked tokens of the KL over the teacher's support and one bucket for the rest, at temperature 1."""
    response = data["response_lengths"][i]
    logits = functional_call(model, weights, (torch.tensor([data["tokens"][i]]),), {"use_cache": False}).logits[0]
    table = torch.softmax(logits[-response - 1 : -1], dim=-1)
    total, mask = torch.zeros((), dtype=torch.float64), data["loss_masks"][i]
    for t in range(response):
        p = table[t, data["teacher_topk_indices"][i][t]]
        q = torch.tensor(data["teacher_topk_log_probs"][i][t], dtype=torch.float64).exp()
        p, q = (torch.cat([x, 1.0 - x.sum()[None]]) for x in (p, q))
        first, second = (q, p) if forward else (p, q)
        total = total + mask[t] * (first * (first.log() - second.log())).sum()
    return total / max(1, sum(mask))


def _batch(data: dict[str, Any], new: list[Tensor], ref: list[Tensor], *, from_engine: bool) -> dict[str, Any]:
    """The streams of ``data`` in float64, with old log probabilities from the engine or from the weights before the step."""

    def doubles(values: list[Any]) -> list[Any]:
        return [None if value is None else torch.tensor(value, dtype=torch.float64) for value in values]

    rollout = doubles(data["rollout_log_probs"])
    return data | {
        "loss_masks": [torch.tensor(mask) for mask in data["loss_masks"]],
        "log_probs": rollout if from_engine else [values.detach() for values in new],
        "rollout_log_probs": rollout,
        "ref_log_probs": ref,
        "teacher_log_probs": doubles(data["teacher_log_probs"]),
    }


def _negative_log_likelihood(args: Arguments, batch: dict[str, Any], new: list[Tensor]) -> Tensor:
    sums = [(-values * mask).sum() for values, mask in zip(new, batch["loss_masks"], strict=True)]
    if not args.calculate_per_token_loss:
        sums = [total / mask.sum() for total, mask in zip(sums, batch["loss_masks"], strict=True)]
    return torch.stack(sums).sum()
