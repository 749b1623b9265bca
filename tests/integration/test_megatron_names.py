"""What method folders import from Megatron itself is there, and is called as they call it; what is not Megatron's own is told from it."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from groundwork.exceptions import ConfigError
from lab.testkit.trainer import trainer_args
from slime.backends.megatron_utils.weights import add_adapters
from slime.utils.vocab_parallel import tensor_parallel_group
from tests.contract.test_import_map import IMPORT_MAP, mismatch

MEGATRON = [(module, name) for module, names in IMPORT_MAP.items() if module.startswith("megatron") for name in names]


@pytest.mark.parametrize(("module", "name"), MEGATRON)
def test_every_name_of_megatron_is_there(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name)


def test_the_group_of_top_k_losses_is_megatrons() -> None:
    mpu = importlib.import_module("megatron.core").mpu
    assert mismatch("", mpu.get_tensor_model_parallel_group) is None
    assert tensor_parallel_group() is None, "no Megatron runs here"


def test_adapters_go_beside_megatrons_own_linears_only() -> None:
    layer: Any = nn.Module()
    layer.layer_number = 1
    layer.self_attention = nn.ModuleDict({"linear_qkv": nn.Linear(2, 2)})
    model: Any = nn.Module()
    model.decoder = SimpleNamespace(layers=[layer])
    shape: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match=r"self_attention\.linear_qkv of this model is a Linear"):
        add_adapters(trainer_args("", use_lora=True), model, shape)
