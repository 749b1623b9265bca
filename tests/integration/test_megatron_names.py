"""What method folders import from Megatron itself is there, and is called as they call it."""

from __future__ import annotations

import importlib

import pytest

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
