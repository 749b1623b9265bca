"""`openclaw-rl export --adapter`: what a run learned as a PEFT folder, a whole model and a GGUF file.

Readers that are not ours say what is in them: PEFT, Transformers, and the reader of the package ``gguf``.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from groundwork.people import mark_of
from groundwork.private_files import private_folder
from lab.tiny_models.cache import SHIPPED
from openclaw.inspect import main
from openclaw.ledger.store import Ledger
from openclaw.runs import leave
from slime.conversion.checks import ToolError
from slime.conversion.gguf_file import write_gguf
from slime.weight_sync import people
from tests.helpers.checkpoints import checkpoint
from tests.unit.tools.test_merge_lora import adapter_of, copy_as, logits

pytestmark = pytest.mark.slow

BOB = "bob"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The tiny model of the repository, in float32."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "base"))


def make_run(folder: Path, base: Path, **arguments: Any) -> Path:
    private_folder(folder)
    values = {"hf_checkpoint": str(base), "save": str(folder / "checkpoints"), **arguments}
    (folder / "arguments.json").write_text(json.dumps(values))
    Ledger(folder / "ledger.sqlite").close()
    return folder


@pytest.fixture
def adapted(tmp_path: Path, base: Path) -> tuple[Path, Any]:
    """A run whose newest checkpoint has an adapter, and PEFT's model with that."""
    run = make_run(tmp_path / "run", base)
    checkpoint(run / "checkpoints", 3, weight_version="2", lora=True)
    newest = checkpoint(run / "checkpoints", 5, weight_version="4", lora=True)
    return run, adapter_of(base, newest / "adapter")


def export(run: Path, *words: str) -> int:
    return main([str(run), "export", *words])


def test_the_adapter_of_the_newest_checkpoint(
    adapted: tuple[Path, Any], base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel

    run, model = adapted
    assert export(run, "--adapter", "--to", str(tmp_path / "mine")) == 0
    assert f"wrote version 4, checkpoint iter_0000005 to {tmp_path / 'mine'}: a PEFT adapter" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [people.CONFIG, people.WEIGHTS]
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "mine")
    assert torch.equal(logits(loaded), logits(model))


def test_a_whole_model(adapted: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model = adapted
    assert export(run, "--adapter", "--as", "merged", "--to", str(tmp_path / "whole")) == 0
    assert f"wrote version 4, checkpoint iter_0000005 to {tmp_path / 'whole'}\n" in capsys.readouterr().out
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert (logits(loaded) - logits(model)).abs().max() < 1e-3
    assert (tmp_path / "whole" / "chat_template.jinja").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"base", "run", "whole"}, "nothing else stays"


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-3), ("bfloat16", 0.3), ("float16", 0.05)])
def test_a_file_for_llama_cpp(adapted: tuple[Path, Any], base: Path, tmp_path: Path, dtype: str, near: float) -> None:
    run, model = adapted
    assert export(run, "--adapter", "--as", "gguf", "--dtype", dtype, "--to", str(tmp_path / "mine.gguf")) == 0
    # Transformers reads every tensor of the file, but not the size of a head.
    config = AutoConfig.from_pretrained(base)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="mine.gguf", config=config, dtype=torch.float32)
    assert (logits(loaded) - logits(model)).abs().max() < near
    assert {path.name for path in tmp_path.iterdir()} == {"base", "run", "mine.gguf"}, "nothing else stays"


def test_what_the_file_says_of_the_model(base: Path, tmp_path: Path) -> None:
    write_gguf(base, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")

    def value(name: str) -> Any:
        return reader.fields[name].contents()

    config = json.loads((base / "config.json").read_text())
    assert value("general.architecture") == "qwen3"
    assert value("qwen3.block_count") == config["num_hidden_layers"]
    assert value("qwen3.attention.head_count_kv") == config["num_key_value_heads"]
    assert value("qwen3.attention.key_length") == config["head_dim"]
    assert value("qwen3.rope.freq_base") == config["rope_parameters"]["rope_theta"]
    assert value("tokenizer.ggml.pre") == "qwen2"
    assert value("tokenizer.ggml.eos_token_id") == config["eos_token_id"]
    assert value("tokenizer.chat_template") == (base / "chat_template.jinja").read_text()
    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    assert len(tokens) == len(kinds) == config["vocab_size"]
    assert (tokens[1], kinds[1]) == ("<|im_start|>", gguf.TokenType.CONTROL)
    assert kinds[tokens.index("<think>")] == gguf.TokenType.USER_DEFINED, "a reply shows it"
    names = [tensor.name for tensor in reader.tensors]
    assert "output.weight" not in names, "the head is the embedding"
    norm = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_norm.weight")
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32


def test_a_head_of_its_own_and_rows_without_a_token_are_written(base: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(base)
    tokens = config.vocab_size
    config.tie_word_embeddings, config.vocab_size = False, tokens + 8
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(base)
    write_gguf(base, tmp_path / "m.gguf", dtype="float32")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", config=config, dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(model))
    kinds = gguf.GGUFReader(tmp_path / "m.gguf").fields["tokenizer.ggml.token_type"].contents()
    assert kinds[tokens:] == [gguf.TokenType.UNUSED] * 8


def test_all_weights_of_a_run_without_an_adapter(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", base)
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    state = {f"model.hf.{name}": tensor for name, tensor in model.state_dict().items()}
    checkpoint(run / "checkpoints", 2, state, weight_version="2", hf_checkpoint=str(base))
    assert export(run, "--adapter", "--to", str(tmp_path / "out")) == 2
    assert "trains all weights and has no adapter; add --as merged or --as gguf" in capsys.readouterr().err
    assert export(run, "--adapter", "--as", "merged", "--to", str(tmp_path / "out")) == 0
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(model))


def test_a_person_leaves_with_a_whole_model(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", base, adapter_per_person=True)
    name = people.adapter_name(1, "0123abcd", 1, mark_of(BOB))
    folder = people.folder_of(people.people_folder(run), name)
    model = adapter_of(base, folder)
    people.publish(run, name)
    assert export(run, "--person", BOB, "--as", "merged", "--to", str(tmp_path / "bobs")) == 0
    assert f"wrote version 1 to {tmp_path / 'bobs'}, SHA-256 {people.digest_of(folder)}" in capsys.readouterr().out
    assert (logits(AutoModelForCausalLM.from_pretrained(tmp_path / "bobs")) - logits(model)).abs().max() < 1e-3
    assert export(run, "--adapter", "--to", str(tmp_path / "all")) == 2
    assert "each person of this run has an adapter; add --person NAME" in capsys.readouterr().err
    (folder / people.WEIGHTS).write_bytes(b"other")
    assert export(run, "--person", BOB, "--as", "gguf", "--to", str(tmp_path / "b.gguf")) == 2
    assert "it is damaged" in capsys.readouterr().err


def test_a_version_without_a_checkpoint_is_told(
    adapted: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = adapted
    with closing(Ledger(run / "ledger.sqlite")) as ledger:
        monkeypatch.setattr(type(ledger.samples), "live_weight_version", lambda self, person: "6")
    assert export(run, "--adapter", "--to", str(tmp_path / "mine")) == 0
    assert "version 6 serves, and has no checkpoint yet" in capsys.readouterr().out


def test_what_cannot_be_written_is_one_line(
    adapted: tuple[Path, Any], base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = adapted
    there = tmp_path / "there"
    there.write_text("mine")
    moved = base.rename(tmp_path / "moved")
    alone = Path(shutil.copy(run / "ledger.sqlite", tmp_path / "alone.sqlite"))
    young = make_run(tmp_path / "young", base)
    for place, words, says in (
        (run, ["--to", str(there)], f"{there} exists; name a new folder"),
        (run, ["--to", str(tmp_path / "no" / "out")], f"there is no folder {tmp_path / 'no'}"),
        (run, ["--to", str(tmp_path / "out"), "--as", "merged"], f"the base model is not at {base}; name its folder"),
        (young, ["--to", str(tmp_path / "out")], "has no checkpoint yet"),
        (alone, ["--to", str(tmp_path / "out")], "is a ledger alone"),
    ):
        assert export(place, "--adapter", *words) == 2
        assert says in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert export(run, "--adapter", "--to", str(tmp_path / "out"), "--as", "merged", "--base", str(moved)) == 0
    for words, says in (
        (["f.jsonl", "--as", "gguf"], "--as goes with --adapter or --person NAME"),
        (["--adapter", "--to", "o", "--dtype", "float32"], "add --as merged or --as gguf"),
        (["--adapter"], "export takes a FILE"),
        (["f.jsonl", "--adapter"], "export takes a FILE"),
    ):
        with pytest.raises(SystemExit):
            export(run, *words)
        assert says in " ".join(capsys.readouterr().err.split())


def test_a_model_that_llama_cpp_would_misread_is_refused(base: Path, tmp_path: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    tokenizer = (base / "tokenizer.json").read_text()
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"architectures": ["Qwen3MoeForCausalLM"]}, tokenizer, "Qwen3MoeForCausalLM cannot be written as GGUF"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, tokenizer, "scaled positions"),
        ({}, tokenizer.replace(r"\\p{N}|", r"\\p{N}{1,3}|"), "cuts words in a way that is not known"),
        ({}, "{", "no tokenizer.json that can be read"),
    ]
    for changes, text, says in cases:
        (base / "config.json").write_text(json.dumps(config | changes))
        (base / "tokenizer.json").write_text(text)
        with pytest.raises(ToolError, match=says):
            write_gguf(base, tmp_path / "m.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {"base"}


def test_a_write_that_fails_leaves_nothing(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: gguf.GGUFWriter, tensor: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(OSError, match="No space"):
        write_gguf(base, tmp_path / "m.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {"base"}


def test_rounding_that_swallows_what_was_learned_is_told(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = copy_as(base, tmp_path / "half", torch.bfloat16)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, half)
    run = make_run(tmp_path / "run", half)
    adapter_of(half, checkpoint(run / "checkpoints", 1, weight_version="1", lora=True) / leave.ADAPTER, size=1e-4)
    assert export(run, "--adapter", "--as", "gguf", "--to", str(tmp_path / "m.gguf")) == 0
    assert "warning: merged weights in bfloat16 keep" in capsys.readouterr().out
