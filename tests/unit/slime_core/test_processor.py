"""The processor of a vision-language checkpoint: real patches without torchvision, videos refused, text models have none."""

import numpy as np
import pytest
from PIL import Image

from groundwork.processors import build_processor_kwargs, load_processor
from lab.testkit import tiny_random
from tests.helpers import tiny_vision

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    tiny_vision.save_processor(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')
    return load_processor(str(folder))


def image(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_each_image_becomes_one_pad_per_four_patches(processor):
    parts = [{"type": "image"}, {"type": "text", "text": "or"}, {"type": "image"}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>or"
        "<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
    )
    inputs = processor(text=[text], images=[image(16, 24), image(8, 8)], return_tensors="pt")
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert inputs["image_grid_thw"].tolist() == [[1, 6, 4], [1, 2, 2]]
    assert inputs["pixel_values"].shape == (28, 3 * 2 * tiny_vision.PATCH**2)
    assert (inputs["input_ids"] == pad).sum() == 28 // tiny_vision.MERGE**2


def test_pixels_are_scaled_to_one_and_repeated_over_the_two_frames(processor):
    picture = image(8, 8, seed=3)
    patches = processor.image_processor(images=[picture], return_tensors="pt")["pixel_values"]
    first = patches[0].view(3, 2, tiny_vision.PATCH, tiny_vision.PATCH)
    expected = np.asarray(picture, dtype=np.float32)[: tiny_vision.PATCH, : tiny_vision.PATCH] / 127.5 - 1
    torch.testing.assert_close(first[:, 0], torch.tensor(expected).permute(2, 0, 1), atol=1e-5, rtol=0)
    assert torch.equal(first[:, 0], first[:, 1])


def test_videos_are_refused_where_their_part_is_missing(processor):
    if hasattr(processor, "video_processor"):
        pytest.skip("torchvision is installed: the processor has its part for videos")
    with pytest.raises(ValueError, match="videos need torchvision"):
        processor(text=["<|vision_start|><|video_pad|><|vision_end|>"], videos=[[image(8, 8)]])


def test_a_text_checkpoint_has_no_processor(tmp_path):
    assert load_processor(str(tiny_random.build(tmp_path / "text"))) is None


def test_keywords_of_a_processors_call(processor):
    media = {"return_tensors": "pt"}
    text = {"return_tensors": None, "return_mm_token_type_ids": False}
    kinds = {"text_kwargs": text, "audio_kwargs": media, "images_kwargs": media, "videos_kwargs": media}
    assert build_processor_kwargs() == build_processor_kwargs({}) == kinds
    given = {"images": ["a"], "images_kwargs": {"do_resize": False, "return_tensors": "np"}}
    found = build_processor_kwargs(given)
    assert found == {**kinds, "images": ["a"], "images_kwargs": {"do_resize": False, "return_tensors": "pt"}}
    assert given["images_kwargs"] == {"do_resize": False, "return_tensors": "np"}


def test_the_keywords_give_lists_of_ids_and_tensors_of_pixels(processor):
    inputs = processor(
        text="<|vision_start|><|image_pad|><|vision_end|>", **build_processor_kwargs({"images": [image(8, 8)]})
    )
    assert isinstance(inputs["input_ids"], list)
    assert isinstance(inputs["pixel_values"], torch.Tensor)
