"""A merged adapter is PEFT's model, and what is not a plain adapter of the base is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tools import merge_lora
from transformers import AutoModelForCausalLM

from lab.testkit import tiny_random
from slime.conversion.merge_lora import merge, read_adapter
from tests.helpers import tiny_hybrid
from tests.helpers.tolerance import MODEL, assert_near

IDS = torch.arange(3, 23)[None]


def copy_as(source: Path, folder: Path, dtype: torch.dtype) -> Path:
    """Write the model of ``source`` as ``dtype``."""
    AutoModelForCausalLM.from_pretrained(source, dtype=dtype).save_pretrained(folder)
    return folder


def adapter_of(base: Path, folder: Path, size: float = 0.1, **options: Any) -> Any:
    """Write an adapter with random halves of deviation ``size`` and return PEFT's model with it."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(**({"r": 4, "lora_alpha": 24, "target_modules": targets, "task_type": "CAUSAL_LM"} | options))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    model.save_pretrained(folder)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}])
def test_logits_are_those_of_the_adapted_model(
    tmp_path: Path, tiny_random_model: Path, options: dict[str, Any]
) -> None:
    adapted = adapter_of(tiny_random_model, tmp_path / "adapter", **options)
    words = ["--base-model", str(tiny_random_model), "--adapter", str(tmp_path / "adapter")]
    assert merge_lora.main([*words, "--output", str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.float32)
    assert_near(logits(merged), logits(adapted), roundings=MODEL)
    assert (logits(merged) - logits(base)).abs().max() > 0.1
    assert (tmp_path / "merged" / "tokenizer.json").is_file()


def test_the_scale_is_alpha_over_r(tmp_path: Path, tiny_random_model: Path) -> None:
    adapter_of(tiny_random_model, tmp_path / "adapter")
    merge(tiny_random_model, tmp_path / "adapter", tmp_path / "merged")
    halves = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    name = "model.layers.1.mlp.down_proj"
    product = halves[f"base_model.model.{name}.lora_B.weight"] @ halves[f"base_model.model.{name}.lora_A.weight"]
    before = load_file(tiny_random_model / "model.safetensors")[f"{name}.weight"]
    after = load_file(tmp_path / "merged" / "model.safetensors")[f"{name}.weight"]
    assert_near(after - before, 24 / 4 * product)


def test_the_dtype_can_be_chosen(tmp_path: Path, tiny_random_model: Path) -> None:
    adapter_of(tiny_random_model, tmp_path / "adapter")
    merge(tiny_random_model, tmp_path / "adapter", tmp_path / "merged", dtype="bfloat16")
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("size", "dtype", "warned"), [(1e-4, "bfloat16", True), (1e-4, "float32", False), (0.1, "bfloat16", False)]
)
def test_a_change_that_rounding_swallows_is_measured(
    tmp_path: Path, tiny_random_model: Path, size: float, dtype: str, warned: bool
) -> None:
    base = copy_as(tiny_random_model, tmp_path / "base", torch.bfloat16)
    adapter_of(base, tmp_path / "adapter", size=size)
    told = merge(base, tmp_path / "adapter", tmp_path / "merged", dtype=dtype)
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "merged"))
    scale, pairs = read_adapter(tmp_path / "adapter")
    wanted = {name: scale * b.double() @ a.double() for name, (a, b) in pairs.items()}
    left = sum(
        float(((after[name].double() - before[name].double()) * change).sum()) for name, change in wanted.items()
    )
    share = left / sum(float(change.square().sum()) for change in wanted.values())
    assert ("warning: merged weights in bfloat16 keep" in told) == warned == (share < 0.9)
    if warned:
        assert f"keep {max(share, 0.0):.0%} of what" in told


def test_an_adapter_of_the_language_model_in_a_larger_model(tmp_path: Path) -> None:
    base = tiny_hybrid.build(tmp_path / "base")
    adapted = adapter_of(base, tmp_path / "adapter")
    merge(base, tmp_path / "adapter", tmp_path / "merged")
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "merged"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert set(before) == set(after)
    assert "model.language_model.layers.0.mlp.down_proj.weight" in changed
    assert all(name.startswith("model.language_model.layers.") for name in changed)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert_near(logits(merged), logits(adapted), roundings=MODEL)


def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_random_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, wide = tmp_path / "adapter", tmp_path / "wide"
    adapter_of(tiny_random_model, adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    for name, changes in (("dora", {"use_dora": True}), ("saved", {"modules_to_save": ["lm_head"]}), ("r", {"r": 8})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config | changes))
        save_file(load_file(adapter / "adapter_model.safetensors"), tmp_path / name / "adapter_model.safetensors")
    tiny_random.build(wide, num_layers=1)
    (tmp_path / "there").mkdir()
    cases = [
        (tiny_random_model, tmp_path / "there", "out", "is not a LoRA adapter: it has no adapter_config.json"),
        (tmp_path, adapter, "out", "is not a Hugging Face checkpoint"),
        (tiny_random_model, tmp_path / "dora", "out", "this has use_dora"),
        (tiny_random_model, tmp_path / "saved", "out", "this has modules_to_save"),
        (tiny_random_model, tmp_path / "r", "out", "no partner of rank 8"),
        (wide, adapter, "out", "was made for another model"),
        (tiny_random_model, adapter, "there", "add --force"),
        (tiny_random_model, adapter, "adapter", "which is an input; name another folder"),
    ]
    for base, given, output, says in cases:
        words = ["--base-model", str(base), "--adapter", str(given), "--output", str(tmp_path / output)]
        assert merge_lora.main(words) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        merge_lora.main(
            ["--base-model", str(tiny_random_model), "--adapter", str(tmp_path / "adaptr"), "--output", "o"]
        )
    assert f"no such folder; did you mean {adapter}?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "there").iterdir())
