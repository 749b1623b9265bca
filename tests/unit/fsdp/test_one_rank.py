"""A single rank without FSDP2: the bits of FSDP2's mixed precision, parameters that stay, and a step on plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from groundwork.network import find_available_port
from lab.testkit.trainer import trainer_args
from slime.backends.fsdp_utils import backend
from slime.backends.fsdp_utils import model as model_module
from slime.backends.trainer.micro_batch import build
from slime.backends.trainer.schedule import Schedule

CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "whole weights": {},
    "padded": {"pack_sequences": False},
    "LoRA": {"use_lora": True},
    "LoRA as one function": {"use_lora": True, "lora_kernel": "fused"},
    "checkpointing": {"gradient_checkpointing": True, "kept_attention_layers": 1},
    "some frozen": {"freeze_params_name_list": ["embed_tokens", "q_proj"]},
}


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{find_available_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def by_fsdp(args: Any, path: Path, build_model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same model as one shard of FSDP2, as of several ranks."""
    with monkeypatch.context() as patch:
        answers = iter([1])  # one process reads the checkpoint; then it is sharded as if there were more
        patch.setattr(model_module.dist, "get_world_size", lambda *_: next(answers, 2))
        patch.setattr(model_module, "init_device_mesh", lambda *_: dist.device_mesh.init_device_mesh("cpu", (1,)))
        return build_model(args, str(path), device=CPU)


def batches(packed: bool) -> list[Any]:
    first, second = [[7, 8, 9, 10, 4], [3] * 11], [[5, 600, 2], [9] * 6]
    return [build(tokens, [2, 2], packed=packed, device=CPU) for tokens in (first, second)]


def set_adapters(policy: Any) -> None:
    for name, parameter in policy.named_parameters():
        if ".lora_" in name:
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            with torch.no_grad():
                local.copy_(torch.randn(local.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def outcome(model: Any, packed: bool, values: bool = False) -> dict[str, Tensor]:
    """Outputs of two micro-batches and the gradients of their sum."""
    outputs = []
    for batch in batches(packed):
        out = model(batch) if values else model(batch, temperature=1.0, chunk_size=7)[0]
        (out * torch.linspace(-1, 1, len(out))).sum().backward()
        outputs.append(out.detach())
    gradients = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return {"out": torch.cat(outputs), **gradients}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tied", [False, True])
def test_values_and_gradients_are_fsdps_bits(
    name: str, tied: bool, tiny_random_model: Path, tiny_random_tied_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_random_tied_model if tied else tiny_random_model
    args = trainer_args(path, train_dtype="bfloat16", **CASES[name])
    alone = model_module.build_policy(args, str(path), device=CPU)
    sharded = by_fsdp(args, path, model_module.build_policy, monkeypatch)
    assert any(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    for model in (alone, sharded):
        set_adapters(model)
    before = {key: (id(parameter), parameter.dtype) for key, parameter in alone.named_parameters()}
    expected, found = (outcome(model, args.pack_sequences) for model in (sharded, alone))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
        assert found[key].dtype == value.dtype
    assert {key: (id(parameter), parameter.dtype) for key, parameter in alone.named_parameters()} == before


def test_a_critics_values_are_fsdps_bits(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = trainer_args(tiny_random_model, train_dtype="bfloat16")
    alone = backend.build_critic(args, str(tiny_random_model), device=CPU)
    sharded = by_fsdp(args, tiny_random_model, backend.build_critic, monkeypatch)
    for model in (alone, sharded):
        for name, parameter in model.named_parameters():
            if name.startswith("head"):
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                torch.nn.init.constant_(local, 0.01)
    expected, found = (outcome(model, True, values=True) for model in (sharded, alone))
    assert found["out"].dtype == torch.float32
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_pass_that_fails_gives_the_parameters_back(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = trainer_args(tiny_random_model, train_dtype="bfloat16")
    policy = model_module.build_policy(args, str(tiny_random_model), device=CPU)
    before = {name: id(parameter) for name, parameter in policy.named_parameters()}
    monkeypatch.setattr(policy.hf.base_model.layers[1].mlp, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outcome(policy, True)
    assert {name: id(parameter) for name, parameter in policy.named_parameters()} == before


@pytest.mark.parametrize("size", [0.01, 30.0])
def test_a_step_that_clips_inside_the_kernel_is_the_step_that_clips_before(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for inside in (False, True):
        monkeypatch.setattr(backend, "kernel_clips", lambda _, inside=inside: inside)
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 5)
        args = trainer_args("none", clip_grad=1.0, weight_decay=0.1, lr=1e-2)
        optimizer, schedule = backend.build_optimizer(args, model), Schedule.of_run(args)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter) * size
            norm, _, taken = backend.apply_gradients(model, optimizer, schedule, args.clip_grad)
            assert taken
            assert (norm > args.clip_grad) == (size > 1)
            assert getattr(optimizer, "grad_scale", None) is None
        model.weight.grad, model.bias.grad = torch.full_like(model.weight, torch.nan), torch.ones_like(model.bias)
        before = model.weight.clone()
        assert not backend.apply_gradients(model, optimizer, schedule, args.clip_grad)[2]
        assert torch.equal(model.weight, before)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    if size < 1:
        assert torch.equal(*weights)
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-7)


def test_a_cpu_clips_before_the_step() -> None:
    assert not backend.kernel_clips(torch.ones(2))


def test_a_checkpoint_of_fsdp_opens_without_it_and_the_other_way_round(
    tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = trainer_args(tiny_random_model, train_dtype="bfloat16")
    alone = model_module.build_policy(args, str(tiny_random_model), device=CPU)
    sharded = by_fsdp(args, tiny_random_model, model_module.build_policy, monkeypatch)
    for number, (source, target) in enumerate(((sharded, alone), (alone, sharded))):
        optimizers = [backend.build_optimizer(args, model) for model in (source, target)]
        outcome(source, True)
        backend.apply_gradients(source, optimizers[0], Schedule.of_run(args), 1.0)
        folder = backend.save_checkpoint(tmp_path, number, source, optimizers[0], {"lora": False, "world_size": 1})
        backend.load_checkpoint(folder, target, optimizers[1], wants_lora=False)
        for one, other in zip(source.parameters(), target.parameters(), strict=True):
            assert torch.equal(whole(one.detach()), whole(other.detach()))
            moments = [
                optimizer.state[parameter]["exp_avg"]
                for optimizer, parameter in zip(optimizers, (one, other), strict=True)
            ]
            assert torch.equal(*map(whole, moments))
