"""Pictures from every form a data set holds them in, at the size a model sees them in."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from groundwork import images
from groundwork.processors import encode_image_for_rollout_engine, load_processor, process_vision_info
from tests.helpers import tiny_vision
from tests.helpers.pictures import picture, png


@pytest.fixture(scope="module")
def processor(vision_processor: Path) -> Any:
    return load_processor(str(vision_processor))


def test_every_form_of_a_picture(tmp_path: Path) -> None:
    image, file = picture(), tmp_path / "a.png"
    data = png(image)
    file.write_bytes(data)
    text = base64.b64encode(data).decode()
    forms = (image, data, text, f"data:image/png;base64,{text}", str(file), f"file://{file}")
    forms += ({"bytes": data, "path": None}, {"bytes": None, "path": str(file)})
    for form in forms:
        assert images.open_image(form).tobytes() == image.tobytes()
    assert images.open_image(encode_image_for_rollout_engine(image)).tobytes() == image.tobytes()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("/nowhere/a.png", "no such file: /nowhere/a.png"),
        ("file:///nowhere/a", "no such file: /nowhere/a"),
        ("not base64!", "no such file: not base64!"),
        (b"words", "the data are not a picture"),
        ("data:image/png;base64,%%%", "is not valid base64"),
        (7, "int is not a picture; give a path"),
        (None, "NoneType is not a picture"),
    ],
)
def test_what_is_no_picture_is_named(source: Any, error: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=error):
        images.open_image(source)


@pytest.mark.parametrize("size", [(24, 16), (25, 13), (3, 3), (400, 90), (31, 33)])
def test_the_processor_does_not_resample_what_has_the_models_size(processor: Any, size: tuple[int, int]) -> None:
    image = picture(*size)
    ready = images.at_model_size(image, processor)
    assert ready.size == images.model_size(processor, *size)
    assert images.model_size(processor, *ready.size) == ready.size
    outputs = processor(text=["<|vision_start|><|image_pad|><|vision_end|>"], images=[ready], return_tensors="pt")
    pads = int((outputs["input_ids"] == processor.image_token_id).sum())
    assert pads == images.image_tokens(processor, *size)
    grid_height, grid_width = outputs["image_grid_thw"][0, 1:].tolist()
    assert (grid_width * tiny_vision.PATCH, grid_height * tiny_vision.PATCH) == ready.size
    # The patches are the pixels, shifted and scaled, in another order.
    values = outputs["pixel_values"].reshape(-1, 3, 2, tiny_vision.PATCH**2)[:, :, 0].permute(1, 0, 2).reshape(3, -1)
    expected = (numpy.asarray(ready, dtype=numpy.float32) / 255 - 0.5) / 0.5
    for channel in range(3):
        got = numpy.sort(values[channel].numpy())
        numpy.testing.assert_allclose(got, numpy.sort(expected[..., channel].ravel()), atol=1e-6)


def test_pictures_become_rgb_and_what_shows_through_is_white(processor: Any) -> None:
    glass = Image.new("RGBA", (16, 16), (10, 20, 30, 0))
    assert images.at_model_size(glass, processor).getpixel((0, 0)) == images.WHITE
    assert images.at_model_size(picture(mode="L"), processor).mode == "RGB"


def test_media_of_messages_are_in_order(processor: Any) -> None:
    first, second = picture(16, 16), picture(24, 24)
    parts = [{"type": "image", "image": first}, {"type": "text", "text": "and"}]
    url = {"type": "image_url", "image_url": {"url": encode_image_for_rollout_engine(second)}}
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [url]},
        {"role": "user", "content": "plain"},
    ]
    found = process_vision_info(messages, processor)
    assert [image.size for image in found["images"]] == [(16, 16), (24, 24)]
    assert found["videos"] is None
    assert process_vision_info([{"role": "user", "content": "plain"}], processor) == {"images": None, "videos": None}


def test_without_a_processor_patches_are_those_of_qwen2_vl() -> None:
    assert images.model_size(None, 100, 57) == (112, 56)
    assert images.image_tokens(None, 112, 56) == 8
