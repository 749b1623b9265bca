"""A run's checkpoint becomes the Hugging Face folder that the trainer would have exported itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation.case import EvalError
from evaluation.served import checkpoint_of, export
from safetensors.torch import load_file
from tools import convert_fsdp_to_hf, convert_torch_dist_to_hf

from lab.testkit import tiny_random, trainer
from openclaw.runtime.where import ARGUMENTS_NAME
from slime.conversion import fsdp_to_hf
from tests.helpers import tiny_hybrid, tiny_vision, trainer_ranks, vision_samples
from tests.helpers.tolerance import assert_near

pytestmark = pytest.mark.slow


def saved_run(tmp_path: Path, model: Path, **changes: object) -> tuple[Path, dict[str, torch.Tensor]]:
    """Train a step, save, and return the checkpoints folder and what the trainer exports."""
    save, export = tmp_path / "save", tmp_path / "hf-{rollout_id}"
    args = trainer.trainer_args(model, save=str(save), save_hf=str(export), **changes)
    actor, _ = trainer_ranks.start_actor(args)
    try:
        actor.train(0, trainer.shards(args, trainer.train_data(), 1)[0])
        actor.save(0)
        actor.publish(0)
    finally:
        actor.shutdown()
    return save, load_file(tmp_path / "hf-0" / "model.safetensors")


def test_full_weights(tmp_path: Path, tiny_random_tied_model: Path) -> None:
    model = tiny_random_tied_model
    save, exported = saved_run(tmp_path, model, lr=1e-2)
    words = ["--input-dir", str(save), "--origin-hf-dir", str(model), "--output-dir", str(tmp_path / "out")]
    assert convert_fsdp_to_hf.main(words) == 0
    converted = load_file(tmp_path / "out" / "model.safetensors")
    assert set(converted) == set(exported)
    assert all(torch.equal(converted[name], exported[name]) for name in exported)
    assert not torch.equal(
        converted["model.embed_tokens.weight"], load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    )


def test_an_evaluation_takes_the_newest_weights_of_a_run(tmp_path: Path, tiny_random_model: Path) -> None:
    save, exported = saved_run(tmp_path, tiny_random_model, lr=1e-2)
    run = tmp_path / "run"
    run.mkdir()
    (run / ARGUMENTS_NAME).write_text(json.dumps({"save": str(save), "hf_checkpoint": str(tiny_random_model)}))
    checkpoint, origin = checkpoint_of(run)
    assert (checkpoint.name, origin) == ("iter_0000001", tiny_random_model)
    export(checkpoint, origin, tmp_path / "out")
    converted = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(converted[name], exported[name]) for name in exported)
    with pytest.raises(EvalError, match=r"is not converted: .* --force .*; convert it with a program of slime/tools"):
        export(checkpoint, origin, tmp_path / "out")
    (run / ARGUMENTS_NAME).write_text(json.dumps({"save": str(tmp_path / "empty"), "hf_checkpoint": "m"}))
    with pytest.raises(EvalError, match=r"--run .*empty"):
        checkpoint_of(run)


def test_weights_are_read_in_groups(tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, exported = saved_run(tmp_path, tiny_random_model)
    monkeypatch.setattr(fsdp_to_hf, "GROUP_BYTES", 1)
    fsdp_to_hf.convert(save / "iter_0000001", tiny_random_model, tmp_path / "out")
    converted = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(converted[name], exported[name]) for name in exported)


def test_lora(tmp_path: Path, tiny_random_model: Path) -> None:
    save, exported = saved_run(tmp_path, tiny_random_model, use_lora=True, lr=1e-1)
    fsdp_to_hf.convert(save, tiny_random_model, tmp_path / "out")
    converted = load_file(tmp_path / "out" / "model.safetensors")
    assert set(converted) == set(exported)
    for name, tensor in exported.items():
        assert_near(converted[name], tensor)


def test_a_language_model_goes_back_into_the_larger_model(tmp_path: Path) -> None:
    model = tiny_hybrid.build(tmp_path / "model")
    save, exported = saved_run(tmp_path, model, pack_sequences=False, lr=1e-2)
    fsdp_to_hf.convert(save, model, tmp_path / "out")
    before, converted = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "out"))
    assert set(before) == set(converted) == set(exported)
    assert all(torch.equal(converted[name], exported[name]) for name in exported)
    changed = {name for name in before if not torch.equal(before[name], converted[name])}
    assert "model.language_model.layers.0.linear_attn.out_proj.weight" in changed
    assert all(name.startswith("model.language_model.") for name in changed)


def test_a_vision_language_model_is_converted_whole(tmp_path: Path) -> None:
    model = tiny_vision.build(tmp_path / "model", tie_word_embeddings=True)
    args = trainer.trainer_args(model, save=str(tmp_path / "save"), save_hf=str(tmp_path / "hf"), loss_type="sft_loss")
    actor, _ = trainer_ranks.start_actor(args)
    try:
        actor.train(0, trainer.shards(args, vision_samples.train_data(model), 1)[0])
        actor.save(0)
        actor.publish(0)
    finally:
        actor.shutdown()
    fsdp_to_hf.convert(tmp_path / "save", model, tmp_path / "out")
    before, converted, exported = (load_file(tmp_path / f / "model.safetensors") for f in ("model", "out", "hf"))
    assert set(before) == set(converted) == set(exported)
    assert all(torch.equal(converted[name], exported[name]) for name in exported)
    assert not any(torch.equal(before[name], converted[name]) for name in before)
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()


def test_bad_input_is_refused(tmp_path: Path, tiny_random_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save, _ = saved_run(tmp_path, tiny_random_model)
    (tmp_path / "empty").mkdir()
    other = tiny_random.build(tmp_path / "other", num_layers=1)
    wide = tiny_random.build(tmp_path / "wide", hidden_size=32)
    cases = [
        (tmp_path / "empty", tiny_random_model, "holds no checkpoint"),
        (save, tmp_path / "empty", "is not a Hugging Face checkpoint"),
        (save, other, "model.layers.1.input_layernorm.weight is (64,) there, nothing in"),
        (save, wide, "is not from a run that started from"),
    ]
    for source, origin, says in cases:
        words = ["--input-dir", str(source), "--origin-hf-dir", str(origin), "--output-dir", str(tmp_path / "out")]
        assert convert_fsdp_to_hf.main(words) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tool", [convert_fsdp_to_hf, convert_torch_dist_to_hf])
def test_a_critic_is_no_language_model(tmp_path: Path, tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "critic" / "state").mkdir(parents=True)
    (tmp_path / "critic" / "state" / ".metadata").touch()
    (tmp_path / "critic" / "meta.json").write_text('{"role": "critic", "lora": false}')
    words = ["--input-dir", str(tmp_path / "critic"), "--origin-hf-dir", str(tmp_path), "--output-dir", "out"]
    assert tool.main(words) == 2
    assert "critic is a critic's checkpoint, not a language model" in capsys.readouterr().err
