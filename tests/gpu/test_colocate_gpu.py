"""Memory of a GPU that trainer and engine give each other: how much leaves, and that nothing changes by it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.weight_receiver import local_handle
from lab.testkit import tiny_random, trainer
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import CACHE, WEIGHTS, SGLangEngine
from slime.backends.trainer.host_memory import HostMemory
from slime.weight_sync.pushes import make_weight_sync
from tests.helpers import megatron_ranks, trainer_ranks
from tests.helpers.weight_receivers import rank_zero

GPU = torch.device("cuda", 0)
MIB = 1 << 20
WORKSPACES = 64 * MIB
"""What kernels keep for themselves."""


@pytest.fixture(scope="module")
def larger_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred MB, so that figures are about the model."""
    return tiny_random.build(tmp_path_factory.mktemp("model") / "larger", hidden_size=1024, num_layers=8)


def parameters_of(model: Path) -> int:
    return sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())


def test_memory_leaves_and_comes_back_bit_for_bit() -> None:
    host = HostMemory(GPU)
    some = [torch.randn(64 * MIB // 4, device=GPU), torch.randn(1000, device=GPU).bfloat16()]
    before = [tensor.cpu() for tensor in some]
    zeros = torch.zeros(64 * MIB // 4, device=GPU)
    start, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(2):
        assert host.take(some, [zeros]) >= 128 * MIB
        assert torch.cuda.memory_allocated() <= start - 128 * MIB
        assert torch.cuda.memory_reserved() <= reserved - 128 * MIB
        assert all(torch.equal(host.value(tensor).cpu(), value) for tensor, value in zip(some, before, strict=True))
        host.give_back()
        assert torch.cuda.memory_allocated() == start
        assert all(torch.equal(tensor.cpu(), value) for tensor, value in zip(some, before, strict=True))
        assert not zeros.any()
    host.close()


@pytest.mark.parametrize("changes", [{}, {"use_kl_loss": True, "kl_loss_coef": 0.1}, {"use_lora": True}])
def test_nothing_of_fsdp_is_left_on_the_gpu(larger_model: Path, changes: dict[str, Any]) -> None:
    """The moments of AdamW with it; steps and pushed weights are those of a trainer that stays."""
    outcomes = []
    for leaves in (False, True):
        common = {"device": "cuda", "train_dtype": "bfloat16", "deterministic_mode": True}
        args = trainer.trainer_args(larger_model, **common, **changes)
        gc.collect()  # the actor before this one holds itself in cycles
        start = torch.cuda.memory_allocated()
        actor, _ = trainer_ranks.start_actor(args)
        try:
            for step in range(3):
                actor.train(step, trainer.shards(args, trainer.train_data(seed=step), 1)[0])
                if leaves:
                    held = torch.cuda.memory_allocated() - start
                    assert held > (2 if changes.get("use_lora") else 12) * parameters_of(larger_model)
                    actor.offload()
                    assert torch.cuda.memory_allocated() - start < WORKSPACES
                    for _, tensor in actor.backend.weights():
                        assert torch.cuda.memory_allocated() - start < WORKSPACES + 20 * tensor.nbytes
                pushed = {name: value.cpu() for name, value in actor.backend.weights()}
                if leaves:
                    actor.onload()
            outcomes.append((trainer_ranks.full_parameters(actor), pushed))
        finally:
            actor.shutdown()
        del actor
    for stayed, left in zip(*outcomes, strict=True):
        assert all(torch.equal(value, left[name]) for name, value in stayed.items())


def test_nothing_of_megatron_is_left_on_the_gpu(tiny_random_tied_model: Path, tmp_path: Path) -> None:
    """`megatron_ranks` asserts that no tensor has memory while the rank is away; the weights are those of one that stays."""
    pytest.importorskip("transformer_engine", reason="needs Transformer Engine")
    found = []
    for leaves in (False, True):
        changes = {"device": "cuda", "transformer_impl": "transformer_engine", "train_dtype": "bfloat16"}
        plan = {"changes": changes | {"save": str(tmp_path / f"save-{leaves}")}, "rollouts": [0, 1], "leaves": leaves}
        file = tmp_path / f"{leaves}.pt"
        trainer.on_ranks(1, megatron_ranks.run_actors, [plan], str(tiny_random_tied_model), str(file))
        found.append(torch.load(file, weights_only=False, map_location="cpu")[0]["after"])
    stayed, left = found
    assert all(torch.equal(value, left[name]) for name, value in stayed.items())


def test_an_engine_gives_its_memory_and_answers_as_before(larger_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_memory_saver", reason="needs SGLang with CUDA")
    own = {"device": "cuda", "colocate": True, "offload_rollout": True, "update_weight_transport": "shared"}
    args = Arguments(
        **own,
        run_dir=str(tmp_path),
        hf_checkpoint=str(larger_model),
        rollout_num_gpus=1,
        update_weight_mode="full",
        train_dtype="float32",
        distributed_timeout_minutes=2,
        sglang_mem_fraction_static=0.3,
        sglang_dtype="float32",
    )
    vars(args).update(sglang_attention_backend="triton")
    body = {"input_ids": list(range(20)), "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    engine = SGLangEngine(args, EngineSpec("policy", 0, 1, (0,)))
    free, total = torch.cuda.mem_get_info()
    try:
        engine.start()

        def answer() -> list[int]:
            reply = httpx.post(f"{engine.url()}/generate", json=body, timeout=120, trust_env=False)
            return reply.json()["output_ids"]

        expected = answer()
        awake, _ = torch.cuda.mem_get_info()
        taken = free - awake
        assert taken > 0.2 * total
        weights = {name: value.cuda() for name, value in load_file(larger_model / "model.safetensors").items()}
        sync = make_weight_sync(args, device=GPU, address="127.0.0.1")
        with rank_zero():
            sync.connect([local_handle(engine)])
            for version in ("1", "2"):
                engine.sleep()
                asleep, _ = torch.cuda.mem_get_info()
                assert asleep - awake > 0.8 * taken - 2048 * MIB, "contexts and kernels stay"
                engine.wake(WEIGHTS)
                between, _ = torch.cuda.mem_get_info()
                assert between - awake > 0.5 * taken, "the cache is away during the push"
                sync.push(iter(weights.items()), version)
                engine.wake(CACHE)
                assert answer() == expected
            sync.close()
    finally:
        engine.stop()
