"""Images on their way from a sample to the batch of a loss: kept, checked, replayed; what lost them is not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slime.algorithms.losses.custom import contract_batch
from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.backends.trainer.micro_batch import RolloutShard
from slime.ray import rollout as manager_module
from slime.ray.rollout import BatchMaker
from slime.rollout.custom_conversion import ConversionError, convert_with
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.data_files import load_data
from slime.utils.types import Sample

CPU = torch.device("cpu")
IMAGE = {"images": [Image.new("RGB", (8, 8), "red")], "videos": None}


def processed(seed: int = 0, grids: tuple[tuple[int, int, int], ...] = ((1, 2, 2),)) -> dict[str, torch.Tensor]:
    patches = sum(t * h * w for t, h, w in grids)
    pixels = torch.randn(patches, 96, generator=torch.Generator().manual_seed(seed))
    kinds = torch.zeros(1, 3, dtype=torch.int64)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor(grids), "mm_token_type_ids": kinds}


def sample(index: int, inputs: Any = None, media: Any = None) -> Sample:
    return Sample(
        index=index,
        group_index=0,
        tokens=[1, 2, 3 + index],
        response_length=2,
        reward=float(index),
        rollout_log_probs=[-1.0, -2.0],
        multimodal_train_inputs=inputs,
        multimodal_inputs=media,
    )


def arguments(**changes: Any) -> Arguments:
    return Arguments(**{"global_batch_size": 3, "micro_batch_size": 2, "use_dynamic_batch_size": False, **changes})


def test_images_reach_the_batch_of_the_sample_they_belong_to() -> None:
    first, last = processed(1, ((1, 2, 2), (1, 4, 2))), processed(2)
    data = convert(arguments(), [sample(0, first, IMAGE), sample(1), sample(2, last, IMAGE)])
    assert all(isinstance(value, np.ndarray) for value in data["multimodal_train_inputs"][0].values())
    assert data["multimodal_train_inputs"][1] is None
    assert data["loss_masks"] == [[1, 1]] * 3
    counts = {}
    for shard in map(RolloutShard, split_by_dp(data, 2, arguments())):
        for indices in shard.micro_batches[0]:
            batch = contract_batch(shard.batch(indices, CPU)) if indices else {"tokens": torch.empty(1, 0)}
            for place in range(len(indices)):
                index = int(batch["unconcat_tokens"][place][-1]) - 3
                counts[index] = batch["multimodal_num_items"][place]
                found, given = batch["multimodal_train_inputs"][place], (first, None, last)[index]
                assert (found is None) == (given is None)
                if given is not None:
                    assert set(found) == {"pixel_values", "image_grid_thw"}
                    assert all(torch.equal(found[name], given[name]) for name in found)
                assert "multimodal_train_inputs" not in shard.batch(indices, CPU, images=False)
    assert counts == {0: 2, 1: 0, 2: 1}


def test_half_precision_and_lists_become_float32() -> None:
    inputs = processed()
    half = {"pixel_values": inputs["pixel_values"].bfloat16().requires_grad_(), "image_grid_thw": [[1, 2, 2]]}
    found = convert(arguments(), [sample(0, half), sample(1), sample(2)])["multimodal_train_inputs"][0]
    assert {name: value.dtype.name for name, value in found.items()} == {
        "pixel_values": "float32",
        "image_grid_thw": "int64",
    }
    assert np.array_equal(found["pixel_values"], inputs["pixel_values"].bfloat16().float().numpy())


@pytest.mark.parametrize("inputs", [None, {}, {"mm_token_type_ids": torch.zeros(1, 3)}])
def test_a_rollout_of_text_has_no_such_field(inputs: Any) -> None:
    data = convert(arguments(), [sample(index, inputs, {"images": None, "videos": None}) for index in range(3)])
    assert "multimodal_train_inputs" not in data
    batch = contract_batch(RolloutShard(split_by_dp(data, 1, arguments())[0]).batch([0], CPU))
    assert batch["multimodal_train_inputs"] is None
    assert batch["multimodal_num_items"] is None


def test_a_sample_that_lost_its_images_is_not_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    data = convert(arguments(), [sample(0, processed(), IMAGE), sample(1, None, IMAGE), sample(2)])
    assert data["loss_masks"] == [[1, 1], [0, 0], [1, 1]]
    assert data["rollout_mask_sums"] == [2, 0, 2]
    assert "1 of 3 samples had images but lack multimodal_train_inputs" in caplog.text
    with pytest.raises(ValueError, match="sample 1: multimodal_inputs has images, but no sample has"):
        convert(arguments(), [sample(0), sample(1, None, IMAGE), sample(2)])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pixel_values": None}, "has no pixel_values"),
        ({"image_grid_thw": None}, "has no image_grid_thw"),
        ({"image_grid_thw": torch.tensor([[1, 2, 4]])}, "image_grid_thw says 8 patches, pixel_values has 4"),
        ({"image_grid_thw": torch.tensor([1, 2, 2])}, r"are not \[patches, D\] and \[images, 3\]"),
        ({"pixel_values_videos": torch.zeros(4, 96)}, "has pixel_values_videos; only images"),
    ],
)
def test_arrays_that_do_not_fit_name_the_sample(changes: dict[str, Any], says: str) -> None:
    inputs = processed() | changes
    with pytest.raises(ValueError, match=f"sample 1: .*{says}"):
        convert(arguments(), [sample(0), sample(1, inputs), sample(2)])
    data = {"tokens": [[1, 2]] * 2, "response_lengths": [1, 1], "rewards": [0.0, 1.0], "loss_masks": [[1], [1]]}
    with pytest.raises(ConversionError, match=f"clause convert-9: .*entry 1: .*{says}"):
        convert_with(lambda args, samples: data | {"multimodal_train_inputs": [None, inputs]}, arguments(), [])


def test_a_plugin_gives_an_entry_per_sample() -> None:
    data = {"tokens": [[1, 2]], "response_lengths": [1], "rewards": [0.0], "loss_masks": [[1]]}

    def converted(inputs: Any) -> dict[str, Any]:
        return convert_with(lambda args, samples: data | {"multimodal_train_inputs": inputs}, arguments(), [])

    assert converted([processed()])["multimodal_train_inputs"][0]["pixel_values"].shape == (4, 96)
    assert "multimodal_train_inputs" not in converted([None])
    assert "multimodal_train_inputs" not in converted(None)
    with pytest.raises(ConversionError, match="not a list with an entry for each of 1 samples"):
        converted([None, None])


def test_a_dumped_rollout_is_replayed_with_its_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = [sample(index, processed(index), IMAGE) for index in range(3)]

    def shard_of(**flags: Any) -> Any:
        args = arguments(rollout_function_path="builtins.print", **flags)
        batches = BatchMaker(args, Placement((0,), (), ()))
        batches._generate = lambda args, rollout_id, source, evaluation=False: given
        return batches.generate(0, None, lambda _: None)["shards"][0]

    monkeypatch.setattr(manager_module.ray, "put", lambda value: value)
    template = str(tmp_path / "{rollout_id}.pt")
    live = shard_of(save_debug_rollout_data=template)["multimodal_train_inputs"]
    dumped = Sample.from_dict(load_data(template.format(rollout_id=0))["samples"][2])
    assert dumped.multimodal_inputs["images"][0].getpixel((0, 0)) == (255, 0, 0)
    shard = shard_of(load_debug_rollout_data=template)
    for one, other in zip(live, shard["multimodal_train_inputs"], strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ("pixel_values", "image_grid_thw"))
