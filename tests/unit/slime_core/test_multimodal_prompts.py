"""``--multimodal-keys``: which picture goes where, what a long prompt is, and what cannot be used."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer
from slime.args import Arguments
from slime.arguments.evaluation import read_eval_datasets
from slime.rollout import stored_pictures
from slime.rollout.data_source import RolloutDataSource, RolloutDataSourceWithBuffer, rows_to_samples, undecoded
from slime.rollout.eval_datasets import eval_group
from slime.rollout.generation import GenerateState
from slime.rollout.multimodal_prompts import StoredPicture, copy_sharing_media, fresh_copies
from slime.rollout.sglang_rollout import generate_rollout_async
from slime.rollout.stored_pictures import decode, put_pictures_away
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from tests.helpers.arguments import refusal
from tests.helpers.pictures import picture, png

PAD = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def folder(vision_processor: Path) -> Path:
    """The processor, and a file of 16 x 16 and one of 32 x 24 pixels: 4 and 12 tokens."""
    (vision_processor / "a.png").write_bytes(png(picture(16, 16)))
    (vision_processor / "b.png").write_bytes(png(picture(32, 24)))
    return vision_processor


def args_of(folder: Path, **changes: Any) -> Arguments:
    values = {
        "hf_checkpoint": str(folder),
        "multimodal_keys": {"image": "pictures"},
        "apply_chat_template": True,
        "rollout_global_dataset": True,
        "n_samples_per_prompt": 2,
        "rollout_seed": 1,
    }
    return Arguments(**(values | changes))


def samples_of(folder: Path, *rows: dict[str, Any], longest: int | None = None, **changes: Any) -> list[Any]:
    return rows_to_samples(args_of(folder, **changes), list(rows), "input", None, longest=longest)


def test_placeholders_become_parts_in_order(folder: Path) -> None:
    a, b = str(folder / "a.png"), str(folder / "b.png")
    (sample,) = samples_of(folder, {"input": "from <image> to <image>?", "pictures": [a, b]})
    assert f"from {PAD} to {PAD}?" in sample.prompt
    assert sample.multimodal_inputs == {"images": [a, b]}
    (raw,) = samples_of(folder, {"input": "<image>what", "pictures": a}, apply_chat_template=False)
    parts = [{"type": "image", "image": a}, {"type": "text", "text": "what"}]
    assert raw.prompt == [{"role": "user", "content": parts}]


def test_typed_parts_keep_their_pictures_and_take_the_columns(folder: Path) -> None:
    a, b = str(folder / "a.png"), str(folder / "b.png")
    parts = [{"type": "image", "image": b, "text": None}, {"type": "text", "text": "or"}, {"type": "image"}]
    (sample,) = samples_of(folder, {"input": [{"role": "user", "content": parts}], "pictures": [a]})
    assert sample.multimodal_inputs == {"images": [b, a]}
    assert f"{PAD}or{PAD}" in sample.prompt


def test_rows_without_pictures_are_text(folder: Path) -> None:
    plain, also = samples_of(folder, {"input": "hi", "pictures": None}, {"input": "hi", "pictures": []})
    assert plain.multimodal_inputs is None
    assert plain.prompt == also.prompt
    assert "hi" in plain.prompt


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"input": "<image>"}, "no column 'pictures'; it has input"),
        ({"input": "<image>", "pictures": []}, "row 2 of the prompt data: 1 <image> in the prompt and 0 pictures in"),
        ({"input": "what?", "pictures": ["a.png"]}, "row 2 of the prompt data: 0 <image> in the prompt and 1 pictures"),
        ({"input": "<image>", "pictures": "/nowhere.png"}, "row 2 .*column 'pictures': no such file: /nowhere.png"),
        ({"input": "<image>", "pictures": b"abc"}, "row 2 .*the data are not a picture"),
        ({"input": "<image>", "pictures": png(picture(300, 1))}, "row 2 .*column 'pictures': absolute aspect ratio"),
        (
            {"input": f"<image>{PAD}", "pictures": png(picture())},
            "row 2 of the prompt data: .* 2 placeholders for 1 pictures",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_named(folder: Path, row: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        samples_of(folder, {"input": "hi", "pictures": None}, row)


def test_a_picture_that_cannot_be_decoded_is_named_with_its_prompt(folder: Path) -> None:
    (sample,) = samples_of(folder, {"input": "<image>what is it?", "pictures": png(picture(64, 64))[:900]})
    with pytest.raises(ConfigError, match=r"a picture of the prompt that starts with '.*what is it\?"):
        decode(args_of(folder), fresh_copies(sample, 1))


def test_a_text_model_has_no_eyes(tiny_random_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a vision-language model, but .* has no processor"):
        samples_of(tiny_random_model, {"input": "hi", "pictures": None})


def test_long_prompts_count_their_pictures(folder: Path) -> None:
    rows = [{"input": "<image>", "pictures": str(folder / name)} for name in ("a.png", "b.png")]
    tokens = len(load_tokenizer(str(folder)).encode(samples_of(folder, *rows)[0].prompt, add_special_tokens=False))
    kept = [len(samples_of(folder, *rows, longest=tokens + more)) for more in (2, 3, 10, 11)]
    assert kept == [0, 1, 1, 2]


def test_a_group_shares_decoded_pictures(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.parquet"
    cell = {"bytes": png(picture(33, 25)), "path": None}
    rows = [{"input": "<image>what", "pictures": [cell]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    source = RolloutDataSource(args_of(folder, prompt_data=str(file)))
    (group, again) = source.get_samples(2)
    first, second = (sample.multimodal_inputs for sample in group)
    assert first["images"][0] is second["images"][0]
    assert first["images"] is not second["images"]
    assert isinstance(first["images"][0], Image.Image)
    assert first["images"][0].size == (32, 24)
    assert again[0].multimodal_inputs["images"][0] is not first["images"][0]
    assert first["videos"] is None


def test_marks_and_copies_share_pictures_and_arrays_and_a_checkpoint_has_them(folder: Path, tmp_path: Path) -> None:
    rows = [{"input": "<image>what", "pictures": str(folder / "b.png")}]
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(rows[0]) + "\n")
    args = args_of(folder, prompt_data=str(file), save=str(tmp_path), load=str(tmp_path))
    source = RolloutDataSourceWithBuffer(args)
    groups = source.get_samples(1)
    first = groups[0][0]
    first.multimodal_train_inputs = {"pixel_values": torch.ones(4, 3)}
    first.metadata["seen"] = []
    (one, other), *_ = copy_sharing_media(groups, groups)
    assert one.multimodal_inputs["images"][0] is other.multimodal_inputs["images"][0]
    assert one.multimodal_inputs["images"][0] is first.multimodal_inputs["images"][0]
    assert one.multimodal_inputs["images"] is not first.multimodal_inputs["images"]
    assert one.multimodal_train_inputs["pixel_values"] is first.multimodal_train_inputs["pixel_values"]
    assert one.metadata["seen"] is not first.metadata["seen"]
    source.add_samples(groups)
    source.mark(0)
    marked = source._marks[0]["buffer"][0][0]
    assert marked["multimodal_inputs"]["images"] == [StoredPicture(str(folder / "b.png"))]
    first.metadata["seen"].append("later")
    source.save(0)
    resumed = RolloutDataSourceWithBuffer(args)
    resumed.load(0)
    ((waiting, *_), *_) = resumed.buffer
    waiting.multimodal_inputs["images"].append("a picture that a generate function made")
    (again, member), *_ = resumed.get_samples(1)
    assert again.multimodal_inputs["images"].pop() == "a picture that a generate function made"
    assert again.multimodal_inputs["images"][0].tobytes() == first.multimodal_inputs["images"][0].tobytes()
    assert again.multimodal_inputs["images"][0] is member.multimodal_inputs["images"][0]
    assert torch.equal(again.multimodal_train_inputs["pixel_values"], torch.ones(4, 3))
    assert again.metadata["seen"] == []


async def test_pictures_are_decoded_away_from_the_loop_before_the_generate_function(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"input": "<image>what", "pictures": str(folder / "b.png")}) + "\n")
    args = args_of(
        folder, prompt_data=str(file), custom_generate_function_path=f"{__name__}.look", rollout_batch_size=1
    )
    args.n_samples_per_prompt = 2
    threads: list[Any] = []
    resize = stored_pictures.at_model_size
    monkeypatch.setattr(
        stored_pictures, "at_model_size", lambda *given: threads.append(threading.current_thread()) or resize(*given)
    )
    source = RolloutDataSourceWithBuffer(args)
    SingletonMeta.clear(GenerateState)
    output, _ = await generate_rollout_async(args, 0, source.get_samples)
    SingletonMeta.clear(GenerateState)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    ((one, other),) = output.samples
    assert (one.response, other.response) == ("decoded", "decoded")
    assert one.multimodal_inputs["images"][0] is other.multimodal_inputs["images"][0]
    put_pictures_away([one])
    assert one.multimodal_inputs["images"] == [str(folder / "b.png")]


async def look(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """A plugin that says what kind of picture it was given."""
    sample.tokens, sample.response_length, sample.reward = [1, 2], 1, 1.0
    assert sample.multimodal_inputs is not None
    sample.response = "decoded" if isinstance(sample.multimodal_inputs["images"][0], Image.Image) else "stored"
    sample.status = Sample.Status.COMPLETED
    return sample


def test_a_plugin_that_hands_out_its_own_samples_is_asked_for_them(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"input": "<image>what", "pictures": str(folder / "b.png")}) + "\n")
    args = args_of(folder, prompt_data=str(file))

    class Own(RolloutDataSourceWithBuffer):
        def get_samples(self, num_samples: int) -> list[list[Any]]:
            return super().get_samples(num_samples)

    own, ours = Own(args), RolloutDataSourceWithBuffer(args)
    assert undecoded(own.get_samples) == own.get_samples
    assert undecoded(ours.get_samples) == ours.get_stored_samples
    assert isinstance(own.get_samples(1)[0][0].multimodal_inputs["images"][0], Image.Image)


def test_evaluation_sets_have_pictures(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval.jsonl"
    file.write_text(json.dumps({"input": "<image>what", "pictures": str(folder / "a.png"), "label": "x"}) + "\n")
    args = args_of(folder, eval_prompt_data=["seen", str(file)], eval_input_key="input", eval_label_key="label")
    args.n_samples_per_eval_prompt, args.rm_type = 3, "f1"
    (dataset,) = read_eval_datasets(args)
    group = eval_group(args, dataset, 0)
    decode(args, group)
    assert [sample.multimodal_inputs["images"][0].size for sample in group] == [(16, 16)] * 3


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ('{"picture": "a"}', "unknown kind of media 'picture'; known are image, video, audio"),
        ('{"video": "a"}', "no back end trains on video; only image is supported"),
        ('{"image": 3}', "'image' needs a column name, got 3"),
        ("{}", "has no column"),
        ("images", "not JSON"),
    ],
)
def test_the_flag_says_what_it_takes(value: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error in refusal(capsys, ["--multimodal-keys", value])
