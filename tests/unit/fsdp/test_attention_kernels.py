"""Which attention kernel a pack gets, what it is given, and that samples of a pack do not see each other."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from groundwork.exceptions import ConfigError
from lab.testkit.trainer import trainer_args
from slime.arguments.parser import parse_args
from slime.backends.fsdp_utils import attention
from slime.backends.fsdp_utils import model as model_module
from slime.backends.fsdp_utils.attention import MEASURED, PACKED, attention_arguments, fastest_kernel, resolve_attention
from slime.backends.trainer.micro_batch import build
from tests.helpers.arguments import refusal

CPU = torch.device("cpu")
LENGTHS = [5, 1, 9]
HEADS, KEY_HEADS, SIZE = 4, 2, 8


class Calls(list[dict[str, Any]]):
    """Stands for torch's kernel of variable lengths, which needs a GPU: its signature, by one matrix per sample in float32."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, **more: Any
    ) -> Tensor:  # fmt: skip
        self.append({"ends": cu_seq_q, "longest": max_q, **more})
        assert cu_seq_q is cu_seq_k
        assert max_q == max_k
        assert cu_seq_q.dtype == torch.int32
        outputs = []
        for start, end in zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False):
            q, k, v = (tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value))
            assert more["window_size"] == (-1, 0)  # causal
            out = scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=more["scale"], enable_gqa=more["enable_gqa"]
            )
            outputs.append(out[0].transpose(0, 1))
        return torch.cat(outputs)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    result = Calls()
    monkeypatch.setattr(varlen, "varlen_attn", result)
    return result


def heads_of_a_pack(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(1, heads, sum(LENGTHS), SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def by_matrix(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of the pack by one matrix with a mask of blocks: softmax of ``q k^T s`` over earlier tokens of the sample."""
    sample = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    seen = (sample[:, None] == sample[None]) & torch.ones(len(sample), len(sample)).tril().bool()
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, dim=1) for tensor in (key, value))
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("name", ["sdpa", "varlen", "auto"])
def test_a_kernel_is_attention_inside_each_sample(name: str, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "fastest_kernel", lambda heads, lengths: "varlen")
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True, training=True)
    tensors, others = heads_of_a_pack(), heads_of_a_pack()
    more = attention_arguments(PACKED[name], LENGTHS, CPU)
    out, nothing = attention.KERNELS[name](module, *tensors, None, scaling=0.3, dropout=0.0, **more)
    expected = by_matrix(*others, 0.3)
    assert nothing is None
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad((out * weights).sum(), tensors)
    for gradient, wanted in zip(found, torch.autograd.grad((expected * weights).sum(), others), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)
    assert len(calls) == (name != "sdpa")  # one call for all samples


def test_one_call_gets_the_samples_ends(calls: Calls) -> None:
    module: Any = SimpleNamespace(num_key_value_groups=2)
    attention.by_ends(
        module, *heads_of_a_pack(), None, scaling=0.5, **attention_arguments(PACKED["varlen"], LENGTHS, CPU)
    )
    (call,) = calls
    assert call.pop("ends").tolist() == [0, 5, 6, 15]
    assert call == {"longest": 9, "scale": 0.5, "window_size": (-1, 0), "enable_gqa": True}


def test_cudnns_kernel_alone_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = []

    def seen(*_: Any, **__: Any) -> tuple[Tensor, None]:
        flags = torch.backends.cuda
        allowed.append(
            (
                flags.cudnn_sdp_enabled(),
                flags.flash_sdp_enabled(),
                flags.mem_efficient_sdp_enabled(),
                flags.math_sdp_enabled(),
            )
        )
        return torch.zeros(1), None

    monkeypatch.setattr(attention, "by_sample", seen)
    attention.by_cudnn(SimpleNamespace(), *heads_of_a_pack())  # type: ignore[arg-type]
    assert allowed == [(True, False, False, False)]
    monkeypatch.setattr(attention, "fastest_kernel", lambda heads, lengths: "cudnn")
    query, key, value = heads_of_a_pack()
    attention.by_measurement(SimpleNamespace(), query, key, value, None, sequence_lengths=LENGTHS)  # type: ignore[arg-type]
    assert allowed[1:] == [(True, True, True, True)]


def test_auto_computes_what_cudnn_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no cuDNN, so the next kernel computes, where the kernel by its name is an error."""
    monkeypatch.setattr(attention, "fastest_kernel", lambda heads, lengths: "cudnn")
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True, training=True)
    tensors, more = heads_of_a_pack(), {"scaling": 0.3, "dropout": 0.0}
    given = attention_arguments(PACKED["auto"], LENGTHS, CPU)
    out, _ = attention.by_measurement(module, *tensors, None, **more, **given)
    torch.testing.assert_close(out, by_matrix(*tensors, 0.3), rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError):
        attention.by_cudnn(module, *tensors, None, **more, sequence_lengths=LENGTHS)


def test_cudnn_is_refused_for_heads_that_it_has_no_kernel_for(
    tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(**fields: int | None) -> Any:
        return SimpleNamespace(**{"head_dim": None, "hidden_size": 64, "num_attention_heads": 4} | fields)

    for good in ({}, {"head_dim": 256}, {"hidden_size": 96}):
        attention.check_heads_of_cudnn(heads(**good))
    for bad, size in (({"head_dim": 512}, 512), ({"hidden_size": 80}, 20)):
        with pytest.raises(ConfigError, match=f"cudnn is not for heads of size {size}; use auto"):
            attention.check_heads_of_cudnn(heads(**bad))
    monkeypatch.setattr(model_module.dist, "get_world_size", lambda *_: 1)
    monkeypatch.setattr(attention, "CUDNN_HEAD", 0)
    args = trainer_args(tiny_random_model, attn_implementation="cudnn")
    with pytest.raises(ConfigError, match="cudnn is not for heads"):
        model_module.build_policy(args, str(tiny_random_model), device=CPU)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.batch)
def test_auto_takes_what_was_fastest_at_each_measured_shape(row: attention.Row) -> None:
    heads = int(row.batch.split()[0])
    length = round((row.work / heads) ** 0.5)
    assert fastest_kernel(heads, [length] * 4) == row.fastest


def test_auto_calls_many_short_samples_at_once_and_long_ones_alone() -> None:
    assert fastest_kernel(16, [64] * 100) == "varlen"
    assert fastest_kernel(32, [1024, 2048, 4096, 512]) == "cudnn"
    assert fastest_kernel(32, [32768]) == "sdpa"
    assert tuple(sorted(MEASURED, key=lambda row: row.work)) == MEASURED


def test_a_model_of_one_call_per_pack_has_the_log_probs_of_one_call_per_sample(
    tiny_random_model: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module.dist, "get_world_size", lambda *_: 1)
    batch = build([[7, 8, 9, 10], [3] * 11], [2, 5], packed=True, device=CPU)
    found = {}
    for name in ("sdpa", "varlen"):
        args = trainer_args(tiny_random_model, attn_implementation=name)
        policy = model_module.build_policy(args, str(tiny_random_model), device=CPU)
        assert policy.implementation == PACKED[name]
        found[name], _ = policy(batch, temperature=1.0, chunk_size=7)
    assert len(calls) == 2  # layers
    torch.testing.assert_close(found["varlen"], found["sdpa"], rtol=1e-5, atol=1e-5)


def test_a_kernel_that_cannot_be_imported_is_one_line_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)  # as if it was not installed
    with pytest.raises(ConfigError, match=r"^--attn-implementation flash_attention_4: .*; use sdpa$"):
        resolve_attention("flash_attention_4", True, None)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", ModuleType("flash_attn.cute"))
    assert resolve_attention("flash_attention_4", True, None) == "flash_attention_4"
    with pytest.raises(ConfigError, match="varlen is for packed samples without sliding windows; use sdpa"):
        resolve_attention("varlen", True, ["sliding_attention"])


def test_what_cannot_work_is_refused_with_a_line(
    tiny_random_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime.arguments.trainer._is_installed", lambda _: False)
    words = ["--hf-checkpoint", str(tiny_random_model), "--rollout-batch-size", "1", "--num-rollout", "1"]
    words += [
        "--disable-rollout-global-dataset",
        "--train-backend",
        "fsdp",
        "--debug-train-only",
        "--load-debug-rollout-data",
        "x",
    ]
    gpu = [*words, "--device", "cuda", "--gpu-memory-gb", "80"]
    for more, line in (
        ([*words, "--device", "cpu", "--attn-implementation", "auto"], "--attn-implementation auto needs a GPU; use sdpa"),
        ([*gpu, "--attn-implementation", "cudnn", "--train-dtype", "float32"], "cudnn computes in bfloat16 only"),
        ([*gpu, "--attn-implementation", "cudnn", "--deterministic-mode"], "cudnn is not deterministic; remove --deterministic-mode"),
        ([*gpu, "--attn-implementation", "varlen", "--no-pack-sequences"], "varlen is for packed samples"),
        ([*gpu, "--attn-implementation", "flash_attention_4"], "flash-attn-4 is not installed on this machine"),
    ):  # fmt: skip
        assert line in refusal(capsys, more)
    assert parse_args([*gpu, "--attn-implementation", "auto", "--deterministic-mode"]).attn_implementation == "auto"
    monkeypatch.setattr("slime.arguments.trainer._is_installed", lambda _: True)
    assert parse_args([*gpu, "--attn-implementation", "flash_attention_4"]).attn_implementation == "flash_attention_4"
