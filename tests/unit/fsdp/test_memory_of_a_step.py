"""The memory budget of a training rank against torch's own count of this back end's tensors, and against autograd's."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from slime.args import Arguments
from slime.arguments.memory_budget import trainer as budget
from slime.arguments.memory_budget.shape import Shape
from slime.arguments.memory_budget.trainer import saved_bytes
from slime.backends.fsdp_utils import model as model_module
from slime.backends.fsdp_utils.attention import PACKED, register_kernels
from slime.backends.fsdp_utils.backend import build_optimizer, start_moments
from slime.backends.fsdp_utils.layers import compile_layers, set_checkpointing
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.one_rank import compute_in
from slime.backends.trainer.micro_batch import MicroBatch, build
from slime.logprobs import response_rows

pytestmark = pytest.mark.slow

RANKS, TOKENS, CHUNK = 4, 2048, 128
SHAPE = Shape(
    layers=2, hidden=256, ffn=1024, heads=4, kv_heads=2, head_dim=64, vocab=8192, tied=True, full_layers=2, qk_norm=True
)


def hf_model(shape: Shape, dtype: torch.dtype) -> Any:
    kind = Qwen3Config if shape.qk_norm else Qwen2Config
    more = {"head_dim": shape.head_dim} if shape.qk_norm else {}
    config = kind(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        **more,
    )
    register_kernels()
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=PACKED["sdpa"])


def arguments(**changes: Any) -> Any:
    values = {
        "train_backend": "fsdp",
        "train_dtype": "bfloat16",
        "gradient_checkpointing": True,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": TOKENS,
        "rollout_max_context_len": TOKENS,
        "log_probs_chunk_size": CHUNK,
        "logprob_kernel": "torch",
        "lora_rank": 16,
        "use_critic": False,
    }
    return Arguments(**(values | changes))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A group of ranks of which only this one exists."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (RANKS,))
        monkeypatch.setattr(model_module, "init_device_mesh", lambda *_: mesh)
        monkeypatch.setattr(response_rows, "CPU_SLICE_BYTES", response_rows.GPU_SLICE_BYTES)
        yield RANKS
    finally:
        dist.destroy_process_group()


def tracked_peak(args: Any, shape: Shape) -> float:
    """Bytes at the peak of a step without an optimizer, as torch's tracker counts them on tensors without memory."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    batch = build([[1] * TOKENS], [TOKENS // 2], packed=True, device=torch.device("cpu"))
    with fake:
        tensors = {
            name: fake.from_tensor(value) for name, value in vars(batch).items() if isinstance(value, torch.Tensor)
        }
        inputs: MicroBatch = replace(batch, **tensors)  # type: ignore[arg-type]
        hf = hf_model(shape, torch.float32)
        set_checkpointing(args, hf, model_module.text_layers(hf.base_model))
        policy = model_module._shard(
            args, PolicyModel(hf, PACKED["sdpa"]), torch.device("cpu"), trainable=True, head=None
        )
        tracker = FSDPMemTracker(policy)
        tracker.track_inputs((inputs.input_ids,))
        with tracker:
            log_probs, _ = policy(inputs, temperature=1.0, chunk_size=args.log_probs_chunk_size)
            log_probs.sum().backward()
        peak = tracker.get_tracker_snapshot("peak")
    return float(max(sizes["Total"] for sizes in peak.values()))


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, replace(SHAPE, tied=False)),
        ({}, replace(SHAPE, hidden=512, heads=8, kv_heads=4, ffn=1536, vocab=4096)),
        ({"log_probs_chunk_size": 1024}, replace(SHAPE, vocab=32768)),
    ],
    ids=["untied", "wide", "logits"],
)
def test_a_rank_needs_what_torch_tracks(ranks: int, changes: dict[str, Any], shape: Shape) -> None:
    args = arguments(**changes)
    need = budget.trainer_need(args, shape, ranks)
    absent = ("runtime", "gradients and moments", "push buffers")  # of the first backward pass
    computed = sum(part.size for part in need.parts if part.name not in absent)
    assert computed == pytest.approx(tracked_peak(args, shape), rel=0.12)


@pytest.mark.parametrize(
    ("fewer", "more"),
    [
        ({"kept_attention_layers": 2}, {"kept_attention_layers": 6}),
        ({"unchecked_layers": 2}, {"unchecked_layers": 5}),
        ({"unchecked_layers": 2}, {"unchecked_layers": 2, "kept_attention_layers": 4}),
    ],
    ids=["attention kept", "unchecked", "attention kept beside unchecked layers"],
)
def test_each_further_layer_costs_what_torch_tracks(ranks: int, fewer: dict[str, int], more: dict[str, int]) -> None:
    shape = replace(SHAPE, layers=6)
    planned, tracked = [], []
    for changes in (fewer, more):
        args = arguments(**changes)
        planned.append(budget.trainer_need(args, shape, ranks).total)
        tracked.append(tracked_peak(args, shape))
    assert planned[1] - planned[0] == pytest.approx(tracked[1] - tracked[0], rel=0.01)


class Living(TorchDispatchMode):
    """Count the bytes of memory that operations made and that still exist.

    Attributes:
        now: bytes at the moment.
        peak: the most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self._sizes:
                self._sizes[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._drop, storage._cdata)
        self.peak = max(self.peak, self.now)
        return out

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


@pytest.mark.parametrize("tokens", [16, 256, 1024], ids="{} tokens".format)
def test_one_rank_needs_what_lives_in_its_second_micro_batch(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few tokens a layer's gradients, in bfloat16 and float32 beside those of the first, outweigh its activations."""
    monkeypatch.setattr(response_rows, "CPU_SLICE_BYTES", response_rows.GPU_SLICE_BYTES)
    # Real products in bfloat16, which take minutes on a processor without them if they are larger.
    shape = replace(SHAPE, layers=4, full_layers=4, hidden=256, heads=4, kv_heads=1, ffn=512, vocab=512)
    args = arguments(max_tokens_per_gpu=tokens, rollout_max_context_len=tokens)
    batch = build([[1] * tokens], [tokens // 2], packed=True, device=torch.device("cpu"))
    hf = hf_model(shape, torch.float32)
    layers = model_module.text_layers(hf.base_model)
    set_checkpointing(args, hf, layers)
    policy = PolicyModel(hf, PACKED["sdpa"]).train()
    compute_in(policy, torch.bfloat16, layers)
    living = Living()
    with living:
        for _ in range(2):
            policy(batch, temperature=1.0, chunk_size=CHUNK)[0].sum().backward()
    parts = {part.name: part.size for part in budget.trainer_need(args, shape, 1).parts}
    of_gradients = parts["gradients and moments"] / 3
    made = sum(parts[name] for name in ("gathered", "activations", "head grads")) + of_gradients
    assert living.peak <= made <= 1.12 * living.peak


def test_the_optimizer_and_the_weights_are_sixteen_bytes_a_parameter() -> None:
    hf = hf_model(SHAPE, torch.float32)
    args = arguments()
    optimizer = build_optimizer(args, hf)
    start_moments(optimizer)
    states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    weights = sum(parameter.nbytes for parameter in hf.parameters())
    parts = {part.name: part.size for part in budget.trainer_need(args, SHAPE, 1).parts}
    assert parts["weights"] == weights
    assert parts["gradients and moments"] == weights + sum(value.nbytes for value in states)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("changes", [{}, {"hidden": 128, "ffn": 320}, {"heads": 8, "kv_heads": 8}])
def test_a_layer_saves_what_autograd_keeps(adapters: bool, qk_norm: bool, changes: dict[str, int]) -> None:
    tokens, rank = 32, 4
    changes = {"layers": 3, "hidden": 64, "ffn": 192, "heads": 4, "kv_heads": 2, **changes}
    shape = replace(SHAPE, vocab=64, qk_norm=qk_norm, **changes)
    shape = replace(shape, head_dim=16 if qk_norm else shape.hidden // shape.heads)
    found = {layers: kept_bytes(replace(shape, layers=layers), tokens, rank if adapters else 0) for layers in (1, 3)}
    of_layer = (found[3] - found[1]) / 2 / tokens
    assert saved_bytes(shape, lora_rank=rank if adapters else 0) == pytest.approx(of_layer, rel=0.01)


def test_a_compiled_layer_saves_what_the_memory_plan_counts() -> None:
    """By the partitioner that the compiler of a GPU has too."""
    tokens = 32
    shape = replace(SHAPE, vocab=64, hidden=64, ffn=192, heads=4, kv_heads=2, head_dim=16)
    found = {n: kept_bytes(replace(shape, layers=n), tokens, 0, compiler="aot_eager_decomp_partition") for n in (1, 3)}
    assert saved_bytes(shape, liger=True) == pytest.approx((found[3] - found[1]) / 2 / tokens, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "fewer"),
    [({"fused_kernels": "compile"}, True), ({"fused_kernels": "liger"}, True), ({"fused_kernels": "none"}, False)],
    ids=str,
)
def test_joined_kernels_save_less(changes: dict[str, Any], fewer: bool) -> None:
    def need(**more: Any) -> float:
        return budget.trainer_need(arguments(gradient_checkpointing=False, **more), SHAPE, 1).total

    assert (need(**changes) < need()) is fewer
    assert need(use_lora=True, fused_kernels="compile") == need(use_lora=True)


def kept_bytes(shape: Shape, tokens: int, lora_rank: int, compiler: str | None = None) -> int:
    """Bytes that autograd keeps of a forward pass, each memory once, without the weights; ``compiler``: of compiled layers."""
    hf = hf_model(shape, torch.bfloat16)
    if compiler is not None:
        torch._dynamo.reset()
        compile_layers(model_module.text_layers(hf.base_model), compiler)
    if lora_rank:
        model_module.add_adapters(arguments(use_lora=True, lora_rank=lora_rank), hf)
        for parameter in hf.parameters():  # FSDP casts adapters to the compute dtype
            parameter.data = parameter.data.bfloat16()
    weights = {parameter.untyped_storage()._cdata for parameter in hf.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hf.base_model(
            input_ids=torch.zeros(1, tokens, dtype=torch.int64),
            position_ids=torch.arange(tokens)[None],
            use_cache=False,
            sequence_lengths=[tokens],
        )
    return sum(storage.nbytes() for storage in kept.values())
