"""A base in NF4: the code book and both directions against float64, adapters over it, and a policy that learns, saves and goes on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader

from groundwork.network import find_available_port
from lab.testkit.trainer import trainer_args
from slime.arguments.memory_budget.shape import shape_of_folder
from slime.backends.fsdp_utils import backend
from slime.backends.fsdp_utils.fused_lora import FusedLinear, fuse_adapters
from slime.backends.fsdp_utils.model import adapters_off, build_policy, full_weights
from slime.backends.trainer.micro_batch import build
from slime.backends.trainer.schedule import Schedule
from slime.utils import nf4
from slime.utils.nf4 import BLOCK, Nf4Linear, quantise_layers, whole
from tests.helpers.needed import needs
from tests.helpers.tolerance import assert_near
from tests.unit.fsdp.test_fused_lora import TwoLayers, outcome, with_adapters

pytestmark = needs("bitsandbytes", "peft")
CPU = torch.device("cpu")
IN, OUT = 24, 40


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{find_available_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def code_book() -> Tensor:
    """The 16 numbers, from quantiles of the normal distribution as in QLoRA: 8 above zero, zero, 7 below, scaled to 1."""
    offset, quantile = 0.9677083, NormalDist().inv_cdf
    above = [quantile(float(p)) for p in torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1]]
    below = [-quantile(float(p)) for p in torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1]]
    values = torch.tensor(sorted([*above, 0.0, *below]), dtype=torch.float64)
    return values / values.max()


def by_hand(weight: Tensor) -> Tensor:
    """Round a weight to NF4 in float64."""
    blocks = weight.bfloat16().double().view(-1, BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True)
    code = code_book()
    nearest = (blocks.unsqueeze(-1) - scale.unsqueeze(-1) * code).abs().argmin(dim=-1)
    return (code[nearest] * scale).view(weight.shape)


def linear(seed: int = 0, *, out: int = 48, inputs: int = 64, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(inputs, out, bias=bias).requires_grad_(False)
    layer.weight.data *= torch.logspace(-3, 1, out).unsqueeze(-1)
    return layer


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 2), (torch.bfloat16, 1)])
def test_values_are_those_of_a_reference_in_float64(dtype: torch.dtype, roundings: int) -> None:
    layer = linear()
    packed = Nf4Linear(layer, CPU)
    found, expected = whole(packed.weight, packed.shape, dtype), by_hand(layer.weight)
    assert found.dtype == dtype
    for row, exact in zip(found, expected, strict=True):  # rows have sizes of their own
        size = float(exact.abs().max())
        assert_near(row / size, exact / size, dtype=dtype, roundings=roundings, magnitude=1.0)
    zero = nn.Linear(64, 4)
    nn.init.zeros_(zero.weight)
    assert torch.equal(whole(Nf4Linear(zero, CPU).weight, (4, 64), torch.float32), torch.zeros(4, 64))


def test_a_value_takes_four_bits_and_a_share_of_a_scale() -> None:
    layer = linear()
    packed = Nf4Linear(layer, CPU)
    assert packed.weight.nbytes == layer.weight.numel() // 2 + 4 * layer.weight.numel() // BLOCK
    assert not packed.weight.requires_grad
    with pytest.raises(ValueError, match=r"a multiple of 64 values, but a weight has \[3, 7\]"):
        Nf4Linear(nn.Linear(7, 3), CPU)


def test_layers_are_quantised_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)) for _ in range(3)])
    seen = [weakref.ref(module.weight) for module in model.modules() if type(module) is nn.Linear]
    left: list[int] = []

    def watched(weight: Tensor) -> Any:
        gc.collect()
        left.append(sum(reference() is not None for reference in seen))
        return quantise(weight)

    quantise = nf4.quantise
    monkeypatch.setattr(nf4, "quantise", watched)
    quantise_layers(list(model), CPU)
    assert left == [6, 5, 4, 3, 2, 1]


def over_nf4(dtype: torch.dtype, *, fused: bool) -> tuple[nn.Module, nn.Module]:
    """A model with adapters over NF4, and the same model in float64 over the values of its base."""
    model = TwoLayers()
    for name in ("q_proj", "o_proj"):
        setattr(model, name, Nf4Linear(getattr(model, name), CPU))
    exact = TwoLayers()
    for layer, packed in zip(exact.children(), model.children(), strict=True):
        layer.weight.data = whole(packed.weight, packed.shape, dtype).double()
        if layer.bias is not None:
            layer.bias.data = packed.bias.data.double()
    model, exact = with_adapters(dtype, model), with_adapters(torch.float64, exact)
    for name, parameter in exact.named_parameters():
        if ".lora_" in name:
            parameter.data = model.get_parameter(name).detach().double()
    if fused:
        assert fuse_adapters(model)["fused"] == 2
    return model, exact


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 100), (torch.bfloat16, 4)])
def test_values_and_gradients_are_those_over_the_whole_base(fused: bool, dtype: torch.dtype, roundings: int) -> None:
    model, exact = over_nf4(dtype, fused=fused)
    x = torch.randn(2, 7, IN, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected, found = outcome(exact, x.double()), outcome(model, x)
    assert set(found) == set(expected)
    assert len(found) == 6
    for name, value in expected.items():
        size = float(value.abs().max())
        assert_near(found[name] / size, value / size, dtype=dtype, roundings=roundings, magnitude=1.0, what=name)
    with adapters_off(model), adapters_off(exact):
        assert_near(model(x), exact(x.double()), dtype=dtype, roundings=roundings)


@pytest.mark.parametrize("fused", [True, False])
def test_no_whole_weight_is_kept_for_the_backward_pass(fused: bool) -> None:
    model, _ = over_nf4(torch.float32, fused=fused)
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(torch.randn(3, IN, requires_grad=True))
    assert [tensor.shape for tensor in kept if tensor.is_floating_point() and tensor.numel() >= IN * OUT] == []
    assert any(tensor.dtype == torch.uint8 for tensor in kept)


def a_policy(path: Path, **changes: Any) -> Any:
    args = trainer_args(path, use_lora=True, base_quantization="nf4", lora_kernel="fused", **changes)
    return args, build_policy(args, str(path), device=CPU)


def set_adapters(policy: Any) -> None:
    for name, parameter in policy.named_parameters():
        if ".lora_" in name:
            generator = torch.Generator().manual_seed(len(name))
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def logprobs(policy: Any) -> Tensor:
    with torch.no_grad():
        return policy(
            build([[7, 8, 9, 10, 4], [3] * 11], [4, 10], packed=True, device=CPU), temperature=1.0, chunk_size=7
        )[0]


@pytest.mark.parametrize("train_dtype", ["float32", "bfloat16"])
def test_a_policy_holds_what_the_memory_plan_counts(tiny_random_model: Path, train_dtype: str) -> None:
    _, policy = a_policy(tiny_random_model, train_dtype=train_dtype)
    layers = policy.hf.model.layers
    assert {type(module) for module in layers.modules() if isinstance(module, nn.Linear)} <= {
        FusedLinear,
        Nf4Linear,
        nn.Linear,
    }
    assert sum(isinstance(module, Nf4Linear) for module in policy.modules()) == 7 * len(layers)
    assert not isinstance(policy.hf.lm_head, Nf4Linear)
    logprobs(policy)
    base = sum(parameter.nbytes for name, parameter in policy.named_parameters() if ".lora_" not in name)
    shape = shape_of_folder(str(tiny_random_model))
    assert shape is not None
    assert base == shape.bytes_in_nf4(2 if train_dtype == "bfloat16" else 4)


def test_exported_weights_are_the_values_and_their_adapters(tiny_random_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    _, policy = a_policy(tiny_random_model)
    set_adapters(policy)
    merged = dict(full_weights(policy, dtype=torch.float32, device=CPU))
    plain = AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.float32)
    assert set(merged) == {name for name, _ in plain.named_parameters()}
    plain.load_state_dict(merged)
    ids = torch.tensor([[7, 8, 9, 10, 4]])
    expected = plain(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    assert_near(logprobs(policy)[:4], expected, magnitude=4.0)


def test_a_run_learns_saves_its_adapters_and_goes_on(tiny_random_model: Path, tmp_path: Path) -> None:
    args, policy = a_policy(tiny_random_model, gradient_checkpointing=True, lr=3e-3, weight_decay=0.0)
    optimizer, schedule = backend.build_optimizer(args, policy), Schedule(args, 0)
    batch = build([[7, 8, 9, 10, 4], [3] * 11], [4, 10], packed=True, device=CPU)
    before = {name: value.clone() for name, value in policy.named_parameters() if ".lora_" not in name}
    losses = []
    for _ in range(25):
        loss = -policy(batch, temperature=1.0, chunk_size=7)[0].mean()
        loss.backward()
        backend.apply_gradients(policy, optimizer, schedule, 1.0)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(value, policy.get_parameter(name)) for name, value in before.items())
    folder = backend.save_checkpoint(tmp_path, 1, policy, optimizer, {"lora": True, "iteration": 1, "world_size": 0})
    _, again = a_policy(tiny_random_model)
    backend.load_checkpoint(folder, again, backend.build_optimizer(args, again), wants_lora=True)
    assert torch.equal(logprobs(again), logprobs(policy))
    saved = FileSystemReader(folder / "state").read_metadata().state_dict_metadata
    assert saved
    assert [name for name in saved if ".lora_" not in name and not name.startswith("optimizer.param_groups")] == []
