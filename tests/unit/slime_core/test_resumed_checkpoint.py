"""A run does not start from a damaged checkpoint or from one of another model: one line says why and how to go on."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from groundwork.checkpoint_names import LATEST
from slime.args import Arguments
from slime.arguments.checkpoint import check_resumed, read_index
from tests.helpers.checkpoints import ORIGIN, checkpoint

VOCABULARY, HIDDEN, LAYERS = 32, 8, 3


def hf_shapes(vocabulary: int, hidden: int, layers: int, wide: int = 16) -> dict[str, tuple[int, ...]]:
    names = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        names[f"model.layers.{layer}.self_attn.q_proj.weight"] = (hidden, hidden)
        names[f"model.layers.{layer}.mlp.up_proj.weight"] = (wide, hidden)
    return names


def model(
    folder: Path, vocabulary: int = VOCABULARY, hidden: int = HIDDEN, layers: int = LAYERS, wide: int = 16
) -> str:
    folder.mkdir()
    config = {"vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = hf_shapes(vocabulary, hidden, layers, wide)
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return str(folder)


def fsdp(lora: bool = False) -> dict[str, Any]:
    shapes = hf_shapes(VOCABULARY, HIDDEN, LAYERS)
    if not lora:
        return {"model": {f"hf.{name}": torch.zeros(shape) for name, shape in shapes.items()}}
    parts: dict[str, Any] = {}
    for name, shape in shapes.items():
        if "layers" in name:
            base = f"hf.{name.removesuffix('.weight')}"
            parts[f"{base}.lora_A.default.weight"] = torch.zeros(2, shape[1])
            parts[f"{base}.lora_B.default.weight"] = torch.zeros(shape[0], 2)
    return {"model": parts}


def megatron(padding: int = 0, stacked: bool = True) -> dict[str, Any]:
    attention = "self_attention.linear_proj.weight"
    each = torch.zeros(HIDDEN, HIDDEN)
    layers = {f"decoder.layers.{layer}.{attention}": each for layer in range(LAYERS)}
    return {
        "embedding.word_embeddings.weight": torch.zeros(VOCABULARY + padding, HIDDEN),
        **({f"decoder.layers.{attention}": torch.zeros(LAYERS, HIDDEN, HIDDEN)} if stacked else layers),
    }


def resumed(root: Path, hf: str, **more: Any) -> Arguments:
    given = {"save": str(root), "load": str(root), "resume": True, "hf_checkpoint": hf, "use_lora": False} | more
    return Arguments(**given)


STATES = [
    pytest.param(fsdp(), {}, id="fsdp"),
    pytest.param(fsdp(lora=True), {"lora": True}, id="lora"),
    pytest.param(megatron(), {"backend": "megatron"}, id="megatron"),
    pytest.param(megatron(padding=4), {"backend": "megatron"}, id="megatron-padded"),
    pytest.param(megatron(stacked=False), {"backend": "megatron"}, id="megatron-numbered"),
]


@pytest.mark.parametrize(("state", "meta"), STATES)
@pytest.mark.parametrize("resume", [True, False], ids=["resume", "load"])
def test_a_whole_checkpoint_of_the_model_is_accepted(tmp_path: Path, state: Any, meta: Any, resume: bool) -> None:
    folder = checkpoint(tmp_path / "save", 4, state, **meta)
    hf = model(tmp_path / "hf")
    for load in (folder.parent, folder):
        if load == folder.parent or not resume:
            more = {"resume": resume, "load": str(load), "use_lora": meta.get("lora", False)}
            assert check_resumed(resumed(folder.parent, hf, **more)) == []


@pytest.mark.parametrize(("state", "meta"), STATES)
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"vocabulary": 200}, r"vocabulary 3\d, not 200"),
        ({"hidden": 12}, r"hidden size 8, not 12|lora_A\S+ 8, not 12"),
        ({"layers": 5}, "layers 3, not 5"),
        ({"layers": 2}, "layers 3, not 2"),
    ],
)
def test_another_model_is_named_with_the_sizes(tmp_path: Path, state: Any, meta: Any, other: Any, words: str) -> None:
    folder = checkpoint(tmp_path / "save", 4, state, **meta)
    hf = model(tmp_path / "hf", **other)
    found = check_resumed(resumed(folder.parent, hf, use_lora=meta.get("lora", False)))
    if meta.get("lora") and "vocabulary" in other:
        assert found == [], "adapters have no vocabulary"
        return
    (line,) = found
    assert line.startswith(f"{folder} is of another model than --hf-checkpoint {hf} (HF_CKPT): ")
    assert ORIGIN in line
    assert re.search(words, line)
    assert "\n" not in line


@pytest.mark.parametrize("lora", [True, False])
def test_a_weight_of_another_size_is_named(tmp_path: Path, lora: bool) -> None:
    folder = checkpoint(tmp_path / "save", 4, fsdp(lora), lora=lora)
    (line,) = check_resumed(resumed(folder.parent, model(tmp_path / "hf", wide=24), use_lora=lora))
    assert ("lora_B.default.weight 16, not 24" if lora else "layers.0.mlp.up_proj.weight 16 x 8, not 24 x 8") in line


@pytest.mark.parametrize(("lora", "words"), [(True, "LoRA adapters: add"), (False, "full weights: remove")])
def test_the_other_kind_is_named(tmp_path: Path, lora: bool, words: str) -> None:
    folder = checkpoint(tmp_path / "save", 4, fsdp(lora), lora=lora)
    found = check_resumed(resumed(folder.parent, model(tmp_path / "hf"), use_lora=not lora))
    assert found == [f"{folder} holds {words} --use-lora"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def garbage(file: Path) -> None:
    file.write_bytes(b"\x00" * 7)


FILES = ["state/.metadata", "state/__0_0.distcp", "rng_0.pt", "meta.json", "../rollout/global_dataset_state_dict_5.pt"]


@pytest.mark.parametrize("harm", [cut, empty, garbage, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_and_the_line_to_type_works(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    root, hf = tmp_path / "my save", model(tmp_path / "hf")
    for number in (2, 4, 6):
        newest = checkpoint(root, number, fsdp())
    if harm is Path.unlink and name.startswith(".."):
        pytest.skip("a run without prompts has no such file")
    harm(newest / name)
    cut(root / "iter_0000004" / "state" / ".metadata")
    (line,) = check_resumed(resumed(root, hf))
    assert Path(name).name in line
    assert "iter_0000002 is the newest whole checkpoint" in line
    subprocess.run(line.partition(" type: ")[2], shell=True, check=True, stdout=subprocess.DEVNULL)
    assert check_resumed(resumed(root, hf)) == []


def test_critic_and_policy_go_back_together(tmp_path: Path) -> None:
    root, hf = tmp_path / "save", model(tmp_path / "hf")
    for number in (1, 2, 3):
        checkpoint(root, number, fsdp())
        newest = checkpoint(root / "critic", number, fsdp(), role="critic")
    cut(newest / "state" / ".metadata")
    cut(root / "iter_0000002" / "state" / ".metadata")
    args = resumed(root, hf, use_critic=True, critic_save=str(root / "critic"))
    (line,) = check_resumed(args)
    assert line.startswith(f"{root / 'critic'}: iter_0000003/state/.metadata is damaged; iter_0000001 is the newest")
    subprocess.run(shlex.split(line.partition("| ")[2]), input=b"1", check=True, stdout=subprocess.DEVNULL)
    assert check_resumed(args) == []


def test_without_another_whole_checkpoint_the_line_says_so(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 2, fsdp())
    cut(folder / "state" / ".metadata")
    (line,) = check_resumed(resumed(tmp_path, model(tmp_path / "hf")))
    assert line.endswith("no earlier checkpoint there is whole: restore the file, or start in another folder")


@pytest.mark.parametrize(
    ("text", "words"), [("", "says ''"), ("x", "says 'x'"), ("7", "names iter_0000007, which does")]
)
def test_a_marker_that_names_no_checkpoint(tmp_path: Path, text: str, words: str) -> None:
    checkpoint(tmp_path, 2, fsdp())
    (tmp_path / LATEST).write_text(text)
    (line,) = check_resumed(resumed(tmp_path, model(tmp_path / "hf")))
    assert words in line
    assert line.endswith(f"type: echo 2 | tee {tmp_path / LATEST}")


def test_an_interrupted_replacement_is_continued(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 2, fsdp())
    folder.rename(folder.with_name(f"{folder.name}.old"))
    assert check_resumed(resumed(tmp_path, model(tmp_path / "hf"))) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 2, fsdp())
    (folder / "state" / ".metadata").chmod(0)
    (line,) = check_resumed(resumed(tmp_path, model(tmp_path / "hf")))
    assert "cannot be read" in line


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_reading_an_index_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(ValueError, match="not a whole index"):
        read_index(tmp_path)
    assert not (tmp_path / "ran").exists()
