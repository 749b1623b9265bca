"""A base in NF4 on a GPU: trainer and engine beside each other, the memory of both directions, and a step that learns."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.figures import record_figure
from benchmarks.parity_parts.errors import FACTOR, Errors
from lab.testkit.trainer import trainer_args
from slime.arguments.memory_budget.shape import shape_of_folder
from slime.backends.fsdp_utils.model import build_policy
from slime.backends.trainer.micro_batch import build
from slime.utils.nf4 import Nf4Linear, whole
from tests.helpers.gpu_engine import GPU, engine_on_gpu, run_on_gpu
from tests.helpers.needed import needs
from tests.helpers.nf4_parity import NF4, scores
from tests.helpers.weight_receivers import rank_zero

pytestmark = needs("bitsandbytes", "peft")


def test_the_gpu_quantises_like_a_cpu() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 384, bias=False, dtype=torch.bfloat16)
    cpu, gpu = (Nf4Linear(layer, device) for device in (torch.device("cpu"), GPU))
    one, other = (whole(found.weight, found.shape, torch.float32).cpu() for found in (cpu, gpu))
    differing = float((one != other).double().mean())
    record_figure("nf4/values that differ between CPU and GPU", differing, "share", limit=1e-3)
    assert differing < 1e-3  # a value in the middle of two numbers may go to either


def test_a_step_learns_in_the_memory_that_the_plan_counts(small_qwen: Path) -> None:
    shape = shape_of_folder(str(small_qwen))
    assert shape is not None
    args = trainer_args(
        small_qwen, device="cuda", train_dtype="bfloat16", lora_kernel="fused", use_lora=True, base_quantization="nf4"
    )
    with rank_zero():
        before = torch.cuda.memory_allocated()
        policy = build_policy(args, str(small_qwen), device=GPU)
        held = torch.cuda.memory_allocated() - before
        planned = shape.bytes_in_nf4(2) + 4 * shape.adapters(args.lora_rank)
        record_figure("nf4/0.6B/weights", held / 2**20, "MiB", limit=1.05 * planned / 2**20)
        assert held < 1.05 * planned
        batch = build([[7, 8, 9, 10, 4], [3] * 11], [4, 10], packed=True, device=GPU)
        optimizer = torch.optim.AdamW([value for value in policy.parameters() if value.requires_grad], lr=1e-3)
        losses = []
        for _ in range(15):
            loss = -policy(batch, temperature=1.0, chunk_size=64)[0].mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@needs("sglang")
def test_the_engine_has_the_trainers_base_and_adapter(small_qwen: Path, tmp_path: Path) -> None:
    with engine_on_gpu(args := run_on_gpu(small_qwen, tmp_path, **NF4)) as engine:
        found = scores(args, engine, GPU)
    for name, each in found.items():
        own, asked = Errors.of(each.trainer - each.exact), Errors.of(each.engine - each.exact)
        record_figure(f"nf4/{name}/trainer's error, mean", own.mean, "nats")
        record_figure(f"nf4/{name}/engine's error, mean", asked.mean, "nats", limit=FACTOR * own.mean)
        assert asked.within(own), f"{name}: engine {asked}, trainer {own}"
