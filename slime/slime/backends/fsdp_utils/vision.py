"""A vision-language model on packed or padded samples: image places, positions, and one pass through tower and text.

Guarantees: an image fills exactly as many placeholder tokens as it has merged patches, directly after a start token, so
a placeholder that the policy itself sampled stays a token. Positions are the model's own, per sample (three axes, Wang
et al., "Qwen2-VL", 2024). A micro-batch without images still runs the tower, on one blank image of weight zero, because
all ranks gather the tower's shards together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slime.backends.trainer.packing import MicroBatch
from slime.backends.trainer.rollout_data import Images


def has_tower(base: nn.Module) -> bool:
    """Return whether ``base`` is a language model with a vision tower."""
    return hasattr(base, "visual") and hasattr(base, "language_model")


def text_layers(base: Any) -> list[nn.Module]:
    """Return the decoder layers of a language model, with or without a tower."""
    return list(base.language_model.layers if has_tower(base) else base.layers)


def tower_blocks(base: Any) -> list[nn.Module]:
    """Return the blocks of the vision tower, if any."""
    return list(base.visual.blocks) if has_tower(base) else []


def hidden_states(base: Any, batch: MicroBatch, attention: dict[str, Any]) -> Tensor:
    """Return the last hidden states of ``batch``, which has ``images``, in its input's shape plus the width.

    ``attention`` are the language model's keyword arguments for packed samples.

    Raises:
        ValueError: the model has no vision tower, or an image has no place in its sample's tokens.
    """
    assert batch.images is not None
    if not has_tower(base):
        raise ValueError(
            f"a sample has images, but {type(base).__name__} has no vision tower; use a vision-language model"
        )
    kinds = [token_kinds(base.config, *sample) for sample in zip(batch.images.tokens, batch.images.grids, strict=True)]
    features, deep = _features(base, batch.images, batch.input_ids.device)
    embeddings = base.get_input_embeddings()(batch.input_ids)
    arguments: dict[str, Any] = {"position_ids": _positions(base, batch, kinds).to(batch.input_ids.device)}
    if batch.images.pixels is None:
        nothing = sum((part.sum() for part in deep), features.sum()) * 0.0
        embeddings = embeddings + nothing.to(embeddings.dtype)
    else:
        places = _laid_out(batch, kinds).to(batch.input_ids.device) == 1
        embeddings = embeddings.masked_scatter(places.unsqueeze(-1), features.to(embeddings.dtype))
        arguments |= {"visual_pos_masks": places, "deepstack_visual_embeds": deep}
    output = base.language_model(inputs_embeds=embeddings, use_cache=False, **arguments, **attention)
    return output.last_hidden_state


def token_kinds(config: Any, tokens: Sequence[int], grids: Tensor) -> Tensor:
    """Return ``[L]``: 1 for tokens that are part of an image, 0 for all others.

    Raises:
        ValueError: an image of ``grids`` is missing or out of order.
    """
    merged = config.vision_config.spatial_merge_size**2
    start, part = config.vision_start_token_id, config.image_token_id
    sizes = (grids.prod(dim=-1) // merged).tolist()
    starts = iter([place for place, token in enumerate(tokens) if token == start] if sizes else [])
    kinds = torch.zeros(len(tokens), dtype=torch.int64)
    for number, size in enumerate(sizes, start=1):
        first = next((at + 1 for at in starts if list(tokens[at + 1 : at + 1 + size]) == [part] * size), None)
        if first is None:
            raise ValueError(
                f"image {number} of {len(sizes)} of a sample has no place: there are no {size} tokens {part} behind a "
                f"token {start} for it"
            )
        kinds[first : first + size] = 1
    return kinds


def _features(base: Any, images: Images, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Run the tower; return ``[merged patches, H]`` for the embeddings and for each DeepStack text layer."""
    if images.pixels is None:
        vision = base.config.vision_config
        side = vision.spatial_merge_size
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels, grids = torch.zeros(side * side, width, device=device), torch.tensor([[1, side, side]], device=device)
    else:
        pixels, grids = images.pixels, torch.cat(images.grids).to(device)
    found = base.get_image_features(pixels, grids, return_dict=True)
    return torch.cat(found.pooler_output), [torch.cat(part) for part in found.deepstack_features]


def _positions(base: Any, batch: MicroBatch, kinds: Sequence[Tensor]) -> Tensor:
    """Return ``[4, 1, T]`` for a pack, the first axis restarting at every sample; ``[3, B, L]`` for padded samples."""
    assert batch.images is not None
    samples = []
    for ids, kind, grids in zip(batch.images.tokens, kinds, batch.images.grids, strict=True):
        positions = torch.arange(len(ids)).expand(3, -1)
        if len(grids):
            positions = base.get_rope_index(torch.tensor([ids]), kind[None], image_grid_thw=grids)[0][:, 0]
        samples.append(positions)
    if batch.position_ids is None:
        return torch.stack([_laid_out(batch, [sample[axis] for sample in samples]) for axis in range(3)])
    return torch.cat([batch.position_ids.cpu(), torch.cat(samples, dim=1)]).unsqueeze(1)


def _laid_out(batch: MicroBatch, values: Sequence[Tensor]) -> Tensor:
    """Return per-token values in the input's shape, zero at padding."""
    result = torch.zeros(batch.input_ids.shape, dtype=torch.int64)
    result.view(-1)[batch.token_rows.cpu()] = torch.cat(list(values))
    return result
