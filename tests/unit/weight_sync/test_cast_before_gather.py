"""A weight is cast before it is gathered: fewer bytes, the same bits; what is merged in float32 is rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from slime.backends.fsdp_utils.model import full_weights
from slime.backends.megatron_utils import weights
from slime.backends.trainer.trainable import merged_weight
from slime.weight_sync.delta import bits
from tests.helpers.weight_receivers import CPU, rank_zero


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with rank_zero():
        yield


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The type of each tensor that is gathered."""
    found: list[torch.dtype] = []
    whole = DTensor.full_tensor

    def full_tensor(tensor: DTensor) -> Tensor:
        found.append(tensor.dtype)
        return whole(tensor)

    monkeypatch.setattr(DTensor, "full_tensor", full_tensor)
    return found


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
    return model


def odd_values() -> Tensor:
    """Numbers that a rounding could treat apart: halfway cases, subnormals, infinities, both zeros, and ordinary ones."""
    special = [1.00390625, 1.01171875, -1.00390625, 1e-40, -1e-40, 3.4e38, float("inf"), -float("inf"), 0.0, -0.0]
    return torch.cat([torch.tensor(special), torch.randn(54)]).view(16, 4)


def test_what_is_gathered_has_the_type_of_the_push(gathered: list[torch.dtype]) -> None:
    model = nn.Linear(4, 16)
    with torch.no_grad():
        model.weight.copy_(odd_values())
    expected = {name: value.detach().clone().to(torch.bfloat16) for name, value in model.named_parameters()}
    policy: object = SimpleNamespace(hf=sharded(model))
    found = dict(full_weights(policy, dtype=torch.bfloat16, device=CPU))  # pyright: ignore[reportArgumentType]
    assert gathered == [torch.bfloat16] * 2
    assert all(torch.equal(bits(found[name]), bits(value)) for name, value in expected.items())


def test_what_a_rank_has_whole_is_left_to_who_packs_it(gathered: list[torch.dtype]) -> None:
    model = nn.Linear(4, 16)
    policy: object = SimpleNamespace(hf=model)
    found = dict(full_weights(policy, dtype=torch.bfloat16, device=CPU))  # pyright: ignore[reportArgumentType]
    assert gathered == []
    assert all(found[name].data_ptr() == value.data_ptr() for name, value in model.named_parameters())


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_casting_shards_gives_the_bits_of_casting_the_whole(ranks: int) -> None:
    whole = odd_values()
    shards = [shard.to(torch.bfloat16) for shard in whole.chunk(ranks)]
    assert torch.equal(bits(torch.cat(shards)), bits(whole.to(torch.bfloat16)))


def test_an_adapter_is_merged_in_float32_and_rounded_once(gathered: list[torch.dtype]) -> None:
    base = nn.Sequential()
    base.add_module("q_proj", nn.Linear(4, 16, bias=False))
    base.add_module("norm", nn.LayerNorm(16))
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, base)
    values = {name: value.detach().clone() for name, value in base.named_parameters()}
    a, b = (values[f"q_proj.lora_{side}.default.weight"] for side in "AB")
    expected = merged_weight(values["q_proj.base_layer.weight"], a, b, 2.0).to(torch.bfloat16)
    policy: object = SimpleNamespace(hf=sharded(base))
    found = dict(full_weights(policy, dtype=torch.bfloat16, device=CPU))  # pyright: ignore[reportArgumentType]
    assert torch.equal(found["q_proj.weight"], expected)
    assert sorted(map(str, gathered)) == ["torch.bfloat16"] * 2 + ["torch.float32"] * 3


@pytest.mark.parametrize(("adapters", "expected"), [(None, torch.bfloat16), (object(), torch.float32)])
def test_megatron_gathers_in_the_type_of_the_push_unless_it_merges(
    monkeypatch: pytest.MonkeyPatch, adapters: object, expected: torch.dtype
) -> None:
    gathered: list[torch.dtype] = []

    def stage(
        model: Any, shape: Any, of: Callable[[Tensor], Tensor], dtype: Any = None
    ) -> Iterator[tuple[str, Tensor]]:
        value = of(model.weight)
        gathered.append(value.dtype)
        yield "weight", value

    def of_one_stage(model: Any, tensors: Callable[[], Any], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        return ((name, value.to(dtype)) for name, value in tensors())

    monkeypatch.setattr(weights, "_stage_weights", stage)
    monkeypatch.setattr(weights, "_merged_stage", stage)
    monkeypatch.setattr(weights, "_of_all_stages", of_one_stage)
    model: Any = SimpleNamespace(weight=odd_values(), adapters=adapters)
    shape: Any = None
    found = dict(weights.full_weights(model, shape, dtype=torch.bfloat16))
    assert gathered == [expected]
    assert torch.equal(bits(found["weight"]), bits(model.weight.to(torch.bfloat16)))


def test_adapters_are_sent_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(4, 2))
    linear = SimpleNamespace(targets=["q_proj"], pair=lambda name: sides, is_row=False, prefix="", scale=1.0)
    model = SimpleNamespace(adapters=SimpleNamespace(linears=lambda: [linear]))
    whole = SimpleNamespace(
        get_tensor_model_parallel_group=lambda: None,
        get_pipeline_model_parallel_group=lambda: None,
        get_pipeline_model_parallel_rank=lambda: 0,
    )
    monkeypatch.setattr(weights, "groups", lambda: whole)
    found = weights.adapter_weights(model, of=lambda value: value.to(torch.bfloat16))
    assert [value.requires_grad for value in found.values()] == [False, False]
