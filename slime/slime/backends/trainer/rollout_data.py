"""One rank's shard of a rollout, as CPU tensors, and the batch dictionary of a micro-batch on the device.

Guarantees: every per-token list has its response's length, checked once on arrival. Values reach the device one
micro-batch at a time. The images of a micro-batch are joined for one pass of the vision tower.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from groundwork.private_files import private, private_folder
from slime.args import Arguments
from slime.utils import streams
from slime.utils.misc import load_function
from slime.utils.streams import Stream, TrainBatch
from slime.utils.types import EXPERTS, GRID, IMAGES, PIXELS

SampleImages = dict[str, Tensor]


@dataclass(frozen=True)
class Images:
    """Images of a micro-batch; present in all micro-batches if any sample has one, so that all ranks run the tower.

    Attributes:
        pixels: ``[patches, D]`` of all images, sample after sample; None if this micro-batch has none.
        grids: ``[images, 3]`` of each sample on the CPU: frames, rows and columns of patches.
        tokens: the token ids of each sample.
    """

    pixels: Tensor | None
    grids: list[Tensor]
    tokens: list[list[int]]


def join_images(tokens: Sequence[Sequence[int]], images: Sequence[SampleImages | None], device: torch.device) -> Images:
    """Return the joined images of samples, some of which may have none."""
    pixels = [sample[PIXELS] for sample in images if sample]
    return Images(
        pixels=torch.cat(pixels).to(device) if pixels else None,
        grids=[sample[GRID] if sample else torch.empty(0, 3, dtype=torch.int64) for sample in images],
        tokens=[list(ids) for ids in tokens],
    )


# Number of images per sample.
NUM_IMAGES = "multimodal_num_items"


class RolloutShard:
    """Owned by the training actor for one call of ``train``."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.tokens: list[list[int]] = data["tokens"]
        self.partition: list[int] = data["partition"]
        self.micro_batches: list[list[list[int]]] = data["micro_batch_indices"]
        self.global_batch_sizes: list[int] = data["global_batch_sizes"]
        self.global_token_counts: list[int] = data["global_token_counts"]
        self.fields: dict[str, Any] = {
            "total_lengths": [len(tokens) for tokens in self.tokens],
            "response_lengths": list(data["response_lengths"]),
            "rewards": list(data["rewards"]),
        }
        known = {*self.fields, *streams.computed()}
        for stream in streams.STREAMS:
            if stream.name in data and stream.name not in known:
                entries = enumerate(data[stream.name])
                self.fields[stream.name] = [self._entry(stream, index, values) for index, values in entries]
        self.experts: list[Tensor] | None = None
        """``[total length - 1, layers, K]`` int16 per sample, if engines recorded experts; see ``routed_experts``."""
        if EXPERTS in data:
            self.experts = [torch.tensor(array) for array in data[EXPERTS]]
        if IMAGES in data:
            self.fields[IMAGES] = [_tensors(arrays) for arrays in data[IMAGES]]
            self.fields[NUM_IMAGES] = [len(tensors[GRID]) if tensors else 0 for tensors in self.fields[IMAGES]]

    def _entry(self, stream: Stream, index: int, values: Any) -> Any:
        if values is None or not stream.per_token:
            return values
        tensor = torch.as_tensor(values, dtype=getattr(torch, stream.dtype))
        expected = self.fields["response_lengths"][index]
        if len(tensor) != expected:
            raise ValueError(
                f"sample {index} of the shard: {stream.name} has {len(tensor)} entries for {expected} response tokens"
            )
        return tensor

    @property
    def num_samples(self) -> int:
        return len(self.tokens)

    def set_computed(self, name: str, values: list[Tensor]) -> None:
        """Store ``[R_i]`` results per sample; ``name`` is a per-token stream that the trainer computes."""
        if name not in streams.computed():
            raise KeyError(f"{name} is not one of {', '.join(streams.computed())}")
        self.fields[name] = values

    def dump(self, path: str) -> None:
        """Write tokens, micro-batches and all fields to a file that ``torch.load`` reads."""
        private_folder(Path(path).parent)
        data: dict[str, Any] = {"tokens": self.tokens, "micro_batch_indices": self.micro_batches}
        data |= {} if self.experts is None else {EXPERTS: self.experts}
        with open(path, "wb", opener=private) as file:
            torch.save({**data, "global_batch_sizes": self.global_batch_sizes, **self.fields}, file)

    def by_position(self, name: str) -> dict[int, Tensor]:
        """Return a computed field's values by their sample's position in the whole rollout."""
        return dict(zip(self.partition, self.fields[name], strict=True))

    def set_from_positions(self, name: str, parts: Sequence[dict[int, Tensor]]) -> None:
        """Store results of other ranks' ``by_position``; together ``parts`` must cover this shard."""
        values = {position: value for part in parts for position, value in part.items()}
        self.set_computed(name, [values[position] for position in self.partition])

    def batch(self, indices: list[int], device: torch.device, *, images: bool = True) -> TrainBatch:
        """Return the per-sample lists of ``indices``, tensors on ``device``, and ``unconcat_tokens``.

        Without ``images`` the batch has no pixel values, because the model input already has them on the device.
        """

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: moved(inner) for key, inner in value.items()}
            return value.to(device) if isinstance(value, Tensor) else value

        fields = {name: values for name, values in self.fields.items() if images or name != IMAGES}
        batch: dict[str, Any] = {name: [moved(values[i]) for i in indices] for name, values in fields.items()}
        batch["unconcat_tokens"] = [torch.tensor(self.tokens[i], device=device) for i in indices]
        return cast(TrainBatch, batch)


def _tensors(arrays: dict[str, Any] | None) -> SampleImages | None:
    return None if arrays is None else {name: torch.tensor(array) for name, array in arrays.items()}


def postprocess(args: Arguments, rollout_id: int, data: RolloutShard) -> None:
    """Call the function of ``--rollout-data-postprocess-path`` on the rank's data, if there is one.

    The plugin runs after log probabilities and advantages, before the first optimizer step.

    ``fn(args, rollout_id, rollout_data)``; an older function with fewer than three parameters is called as
    ``fn(args)``. ``rollout_data`` maps names to per-sample lists; the steps train on the plugin's in-place changes.
    """
    path = args.rollout_data_postprocess_path
    if not path:
        return
    function = load_function(path)
    if len(inspect.signature(function).parameters) < 3:
        function(args)
        return
    data.fields["tokens"] = data.tokens
    try:
        function(args, rollout_id, data.fields)
    finally:
        del data.fields["tokens"]
