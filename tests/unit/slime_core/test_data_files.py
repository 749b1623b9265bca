"""Loading a file of samples or random states runs none of its code, and what is written can be read."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.checkpoints import checkpoint_folder
from slime.exceptions import CheckpointError
from slime.ray.rollout import BatchMaker
from slime.rollout.data_source import RolloutDataSource
from slime.utils.data_files import load_data, save_data
from slime.utils.types import Sample

Pair = namedtuple("Pair", "left right")
RAN: list[str] = []


class Hostile:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return ran, ("code",)


def ran(what: str) -> None:
    RAN.append(what)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Own:
    value: int = 1


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right)
    if isinstance(left, Image.Image):
        return left.tobytes() == right.tobytes()
    return type(left) is type(right) and left == right


def opened(folder: Path) -> Image.Image:
    Image.new("RGB", (2, 3), (1, 2, 3)).save(folder / "x.png")
    return Image.open(folder / "x.png")


GOOD: list[Any] = [
    *(None, True, 3, 2**80, 0.5, float("inf"), 1 + 2j, "text", "é\ud800", b"\x00\xff", bytearray(b"x"), {1, "a"}, (1, (2,))),
    *([], {}, [[1, [2]], {"a": {"b": [None]}}], OrderedDict(a=1), Counter("aab"), list(range(5000)), {1: "x", (1, 2): "y"}),
    *(torch.arange(3), torch.zeros(2, 2, dtype=torch.bfloat16), np.arange(4, dtype=np.int16), np.float32(2), np.int64(3)),
    *(np.zeros((2, 0)), np.array(["a", "bc"]), np.array([True]), np.array("2020-01-01", dtype="datetime64[s]"), np.bool_(True)),
    *(Image.new("L", (2, 2), 7), Sample(prompt="p", tokens=[1], reward=np.float64(1)).to_dict(), random.getstate()),
    *(np.random.get_state(), checkpoint_folder.rng_state()),
]  # fmt: skip


@pytest.mark.parametrize("value", GOOD, ids=lambda value: type(value).__name__)
def test_data_comes_back(tmp_path: Path, value: Any) -> None:
    save_data({"state": [value]}, tmp_path / "x.pt")
    assert same(load_data(tmp_path / "x.pt"), {"state": [value]})
    torch.save({"state": [value]}, tmp_path / "old.pt")  # as checkpoints were written before
    assert same(load_data(tmp_path / "old.pt"), {"state": [value]})


def test_a_picture_of_a_file_comes_back(tmp_path: Path) -> None:
    save_data([opened(tmp_path)], tmp_path / "x.pt")
    assert load_data(tmp_path / "x.pt")[0].getpixel((0, 0)) == (1, 2, 3)


STRANGE = [
    Hostile(),
    Own(),
    Colour.RED,
    Pair(1, 2),
    Path("x"),
    datetime.date.min,
    defaultdict(list),
    len,
    Own,
    object(),
]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "around", [lambda x: x, lambda x: [1, (x,)], lambda x: {"a": {"b": x}}, lambda x: {"k": [[], [x]]}]
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, value: Any, around: Callable[[Any], Any]) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be saved with the samples; use plain values, lists"):
        save_data(around(value), tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


def by_position(folder: Path) -> None:
    RolloutDataSource._file(str(folder), 3).parent.mkdir(parents=True)
    torch.save({"epoch": Hostile()}, RolloutDataSource._file(str(folder), 3))
    source = RolloutDataSource.__new__(RolloutDataSource)
    source.args = Arguments(load=str(folder), rollout_global_dataset=True)
    source.load(3)


def by_random_state(folder: Path) -> None:
    torch.save(Hostile(), folder / "rng_0.pt")
    checkpoint_folder.restore_rng(folder, {"world_size": 1})


def by_samples(folder: Path) -> None:
    torch.save({"samples": [Hostile()]}, folder / "0.pt")
    args = Arguments(load_debug_rollout_data=str(folder / "{rollout_id}.pt"), rollout_function_path="builtins.print")
    BatchMaker(args, Placement((0,), (), ())).generate(0, None, lambda _: None)


@pytest.mark.parametrize("read", [by_position, by_random_state, by_samples])
def test_no_file_runs_code(tmp_path: Path, read: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    RAN.clear()
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    with pytest.raises(CheckpointError, match=r"\.pt holds [\w.]+\.ran, and loading it would run code; use"):
        read(tmp_path)
    assert not RAN


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04", b"\x80\x04", b"\x00" * 100])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.pt is damaged .*use another file"):
        load_data(tmp_path / "x.pt")


def test_a_file_cut_in_half_is_named(tmp_path: Path) -> None:
    save_data(list(range(1000)), tmp_path / "x.pt")
    content = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "x.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"x\.pt is damaged"):
        load_data(tmp_path / "x.pt")
