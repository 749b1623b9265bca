"""Trains the tiny model: one Qwen3 that is policy and judge.

Guarantees: float32 weights, deterministic in the seed on one machine; the schedule counts steps, not seconds. No files
are written here. Muon moves the matrices (https://kellerjordan.github.io/posts/muon/), AdamW the embedding and the norms:
600 steps reach what AdamW alone reaches in 1300. Products are taken in bfloat16 where the CPU has instructions for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from lab.tiny_models.cache import Settings

REST_RATE = 0.6  # of the rate of the matrices


def new_model(tokenizer: Any, settings: Settings, seed: int) -> Qwen3ForCausalLM:
    """Return an untrained model."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.hidden // settings.heads,
        intermediate_size=settings.intermediate,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    return model


def new_optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for all else; the rates are as AdamW knows them."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    chosen = set(matrices)
    rest = [parameter for parameter in model.parameters() if parameter not in chosen]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=REST_RATE * learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
    ]


def train(
    model: Qwen3ForCausalLM,
    stream: Iterator[tuple[torch.Tensor, torch.Tensor]],
    *,
    steps: int,
    learning_rate: float,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train for ``steps`` with a short warm-up and a linear decay; return the running mean of the loss."""
    optimizers = new_optimizers(model, learning_rate)
    rates = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    # mkldnn also claims support where it emulates bfloat16, which takes three times as long as float32.
    bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    model.train()
    running: float | None = None
    for step in range(steps):
        ids, weights = next(stream)
        done = step / steps
        for group, rate in rates:
            group["lr"] = rate * min(1.0, done / 0.05 + 0.02) * max(0.03, 1 - done)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = weighted_loss(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        value = loss.item()
        running = value if running is None else 0.97 * running + 0.03 * value
        on_step(step + 1, running)
    model.eval()
    return running if running is not None else float("nan")


def weighted_loss(model: Qwen3ForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean cross entropy; logits are made for the weighted positions only."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    selected = weights[:, 1:] > 0
    losses = F.cross_entropy(model.lm_head(hidden[selected]), ids[:, 1:][selected], reduction="none")
    weight = weights[:, 1:][selected]
    return (losses * weight).sum() / weight.sum()
