"""Training data with images, and what a Hugging Face model in float64 makes of each sample by itself."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slime.args import Arguments
from slime.backends.fsdp_utils.model import add_adapters
from tests.helpers.tiny_vision import MERGE, PATCH
from tests.helpers.tolerance import MODEL, assert_near

TEXT_TOKENS = 600
ADAPTER_SUFFIX = ".default.weight"
# Rows and columns of patches of the images of each sample; two of the six have none.
GRIDS = [[(2, 2)], [], [(4, 6), (2, 4)], [(8, 2)], [], [(6, 6)]]


def images(grids: list[tuple[int, int]], rng: np.random.Generator) -> dict[str, np.ndarray] | None:
    """What a processor would give for images of ``grids``, with random pixels."""
    if not grids:
        return None
    count = sum(rows * columns for rows, columns in grids)
    pixels = rng.normal(size=(count, 3 * 2 * PATCH**2)).astype(np.float32)
    return {"pixel_values": pixels, "image_grid_thw": np.array([[1, *grid] for grid in grids])}


def train_data(model: Path, grids: list[list[tuple[int, int]]] = GRIDS, *, seed: int = 0) -> dict[str, Any]:
    """Return training data of one sample per entry of ``grids``: text, images, text, and a response of text."""
    config = json.loads((model / "config.json").read_text())
    ids = random.Random(seed)
    rng = np.random.default_rng(seed)
    data: dict[str, list[Any]] = {name: [] for name in ("tokens", "response_lengths", "loss_masks", "rewards")}
    for sample in grids:
        tokens = [ids.randrange(TEXT_TOKENS) for _ in range(ids.randint(1, 4))]
        for rows, columns in sample:
            pads = [config["image_token_id"]] * (rows * columns // MERGE**2)
            tokens += [
                config["vision_start_token_id"],
                *pads,
                config["vision_end_token_id"],
                ids.randrange(TEXT_TOKENS),
            ]
        response = ids.randint(2, 6)
        tokens += [ids.randrange(TEXT_TOKENS) for _ in range(response)]
        data["tokens"].append(tokens)
        data["response_lengths"].append(response)
        data["loss_masks"].append([1] + [ids.randint(0, 1) for _ in range(response - 1)])
        data["rewards"].append(1.0)
    data["total_lengths"] = [len(tokens) for tokens in data["tokens"]]
    data["multimodal_train_inputs"] = [images(sample, rng) for sample in grids]
    return data


def reference_model(path: Path) -> Any:
    """The Hugging Face model in float64, with plain attention."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")


def reference_rows(model: Any, data: dict[str, Any], index: int) -> Tensor:
    """Last hidden states ``[R, H]`` that predict the response of one sample, by a forward pass over it alone."""
    ids = torch.tensor(data["tokens"][index])
    arguments: dict[str, Tensor] = {}
    inputs = data["multimodal_train_inputs"][index]
    if inputs:
        kinds = (ids == model.config.image_token_id).long()
        arguments = {name: torch.as_tensor(value) for name, value in inputs.items()} | {
            "mm_token_type_ids": kinds[None]
        }
    hidden = model.model(ids[None], **arguments).last_hidden_state[0]
    return hidden[-data["response_lengths"][index] - 1 : -1]


def reference_log_probs(model: Any, data: dict[str, Any], index: int, temperature: float) -> Tensor:
    """Log probabilities ``[R]`` of the response of one sample."""
    logits = model.lm_head(reference_rows(model, data, index))
    targets = torch.tensor(data["tokens"][index][-data["response_lengths"][index] :])
    return torch.log_softmax(logits / temperature, dim=-1).gather(1, targets[:, None])[:, 0]


def reference_gradients(
    path: Path, args: Arguments, data: dict[str, Any], adapters: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the mean over samples of the masked mean of the negative log probability (``sft_loss``).

    With ``adapters``, by module name plus ``.lora_A`` or ``.lora_B``, the gradients are theirs.
    """
    model = reference_model(path)
    if adapters:
        add_adapters(args, model)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data = adapters[name.removesuffix(ADAPTER_SUFFIX)].double()
    count = len(data["tokens"])
    total = torch.zeros((), dtype=torch.float64)
    for index, mask in enumerate(data["loss_masks"]):
        log_probs = reference_log_probs(model, data, index, args.rollout_temperature)
        weights = torch.tensor(mask, dtype=torch.float64)
        total = total - (log_probs * weights).sum() / weights.sum() / count
    total.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.grad is not None}
    return float(total.detach()), {name.removesuffix(ADAPTER_SUFFIX): p.grad for name, p in trained.items()}


def check_gradients(path: Path, args: Arguments, outcome: Any) -> None:
    """Compare ``(metrics, gradients, adapters)`` of a step on `train_data` with the reference."""
    metrics, gradients, adapters = outcome
    loss, expected = reference_gradients(path, args, train_data(path), adapters)
    assert_near(metrics["train/loss"], loss, roundings=MODEL, what="loss")
    assert_near(gradients, expected, roundings=MODEL, what="gradients")
