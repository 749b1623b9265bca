"""The tiny Qwen3-VL: its shape, the settings of its pictures, and a forward pass for many pictures of one size.

Guarantee: `hidden` returns what the model's own forward pass returns. It is faster, because it embeds both equal frames of a
picture by one product with the sum of their weights, and attends in all pictures at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from lab.testkit.vision_model import picture_settings, save_picture_settings, vision_config

PATCH, MERGE, FRAMES = 16, 2, 2
COLUMNS, ROWS = 160, 224
"""Pixels of a screen at the model's size: those of the page in whole tokens."""
GRID = (1, ROWS // PATCH, COLUMNS // PATCH)
TOKENS = ROWS * COLUMNS // (PATCH * MERGE) ** 2
HIDDEN, EYES = 128, 128
IMAGES = picture_settings(
    patch=PATCH,
    merge=MERGE,
    min_pixels=(PATCH * MERGE) ** 2,
    max_pixels=ROWS * COLUMNS + PATCH * MERGE * COLUMNS // 2,
)


def new_model(tokenizer: Any, seed: int) -> Qwen3VLForConditionalGeneration:
    """Return an untrained model."""
    torch.manual_seed(seed)
    text = {
        "hidden_size": HIDDEN,
        "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [8, 4, 4],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": EYES,
        "intermediate_size": 2 * EYES,
        "num_heads": 4,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": GRID[1] ** 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "deepstack_visual_indexes": [0],
    }
    config = vision_config(tokenizer, text, vision, tie_word_embeddings=True)
    return Qwen3VLForConditionalGeneration(config).float()


def save_processor(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer and settings of pictures beside a checkpoint."""
    tokenizer.save_pretrained(folder)
    save_picture_settings(IMAGES, folder)


def patches(pictures: Tensor) -> Tensor:
    """Return pictures [B, rows, columns, 3] of bytes as patches [B, patches, 3 * PATCH * PATCH], in the processor's order."""
    found = (pictures.float() / 127.5 - 1).permute(0, 3, 1, 2)
    down, across = GRID[1] // MERGE, GRID[2] // MERGE
    found = found.reshape(len(pictures), 3, down, MERGE, PATCH, across, MERGE, PATCH)
    return found.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(len(pictures), GRID[1] * GRID[2], -1)


def see(model: Any, found: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the tokens [B, TOKENS, HIDDEN] of patches, and what the first layers of the text add to them."""
    eyes = model.model.visual
    grid = torch.tensor([GRID])
    indices, shares = get_vision_interpolation_indices_and_weights(
        grid,
        num_grid_per_side=eyes.num_grid_per_side,
        mode=eyes.interpolation_mode,
        align_corners=eyes.interpolation_align_corners,
        spatial_merge_size=MERGE,
        kwargs={},
    )
    weight = eyes.patch_embed.proj.weight.sum(2).flatten(1)
    places = (eyes.pos_embed(indices) * shares[:, :, None]).sum(1)
    hidden = F.linear(found, weight, eyes.patch_embed.proj.bias) + places
    cos, sin = eyes.rotary_pos_emb(hidden, get_vision_position_ids(grid, MERGE, kwargs={}))
    deep: list[Tensor] = []
    for number, block in enumerate(eyes.blocks):
        hidden = hidden + _attend(block.attn, block.norm1(hidden), cos, sin)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if number in eyes.deepstack_visual_indexes:
            merger = eyes.deepstack_merger_list[eyes.deepstack_visual_indexes.index(number)]
            deep.append(merger(hidden).view(len(found), TOKENS, -1))
    return eyes.merger(hidden).view(len(found), TOKENS, -1), deep


def _attend(attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    many, length, width = hidden.shape
    query, key, value = attention.qkv(hidden).view(many, length, 3, attention.num_heads, -1).unbind(2)
    query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
    mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    return attention.proj(mixed.transpose(1, 2).reshape(many, length, width))


def hidden(model: Any, ids: Tensor, tokens: Tensor, deep: list[Tensor]) -> Tensor:
    """Return the last hidden states [B, L, HIDDEN] of episodes, padded at the end.

    Args:
        model: whose.
        ids: of the episodes [B, L].
        tokens: of their pictures in order [pictures, TOKENS, HIDDEN].
        deep: what the first layers add to these, each of the same shape.
    """
    inner = model.model
    seen = ids == model.config.image_token_id
    embedded = inner.language_model.embed_tokens(ids)
    embedded = embedded.masked_scatter(seen[..., None], tokens.to(embedded.dtype))
    grids = torch.tensor([GRID]).expand(len(tokens), -1)
    places, _ = inner.get_rope_index(input_ids=ids, mm_token_type_ids=seen.int(), image_grid_thw=grids)
    return inner.language_model(
        inputs_embeds=embedded,
        position_ids=places,
        visual_pos_masks=seen,
        deepstack_visual_embeds=[each.flatten(0, 1) for each in deep],
        use_cache=False,
    ).last_hidden_state


def matrices(model: Any) -> Iterator[Tensor]:
    """Yield the weights that Muon moves: the matrices of all layers."""
    for layers in (model.model.language_model.layers, model.model.visual.blocks):
        yield from (each for each in layers.parameters() if each.ndim == 2)
