"""Compiled layers: the gradients of eager ones, one graph for all layers and lengths; and what ``--fused-kernels`` refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from groundwork.exceptions import ConfigError
from lab.testkit.trainer import trainer_args
from slime.backends.fsdp_utils import model as model_module
from slime.backends.fsdp_utils.backend import FSDPPolicy, by_cache
from slime.backends.fsdp_utils.layers import LIGER_MODELS, compile_layers, use_liger
from slime.backends.trainer.micro_batch import build
from slime.backends.trainer.probing import Continuation, Rounds
from slime.logprobs.response_rows import ResponseRows
from tests.helpers.arguments import refusal

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
PACKS = ([13, 5, 22], [4, 9], [30, 2, 2, 7])


def by_mask(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, *_: Any, scale: float, enable_gqa: bool, **__: Any) -> Tensor:  # fmt: skip
    """Stand in for torch's attention of variable lengths, which needs a GPU, with operations that a compiler can trace."""
    places = torch.arange(q.size(0))
    sample = torch.searchsorted(ends.long(), places, right=True)
    seen = (sample[:, None] == sample[None]) & (places[:, None] >= places[None])
    heads = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    out = scaled_dot_product_attention(*heads, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
    return out[0].transpose(0, 1)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module.dist, "get_world_size", lambda *_: 1)
    monkeypatch.setattr(varlen, "varlen_attn", by_mask)
    torch._dynamo.reset()


def policy_of(model: Path, backend: Any = None, **changes: Any) -> Any:
    """Return a policy whose layers are compiled with ``backend``, if one is given."""
    args = trainer_args(model, attn_implementation="varlen", **changes)
    policy = model_module.build_policy(args, str(model), device=CPU)
    layers = policy.hf.base_model.layers
    for name, parameter in policy.named_parameters():
        if ".lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1
    if backend is not None:
        compile_layers(layers, backend)
    return policy


def gradients(policy: Any, lengths: list[int]) -> dict[str, Tensor]:
    policy.zero_grad()
    tokens = [[(7 * place + 3) % 600 for place in range(length)] for length in lengths]
    batch = build(tokens, [length // 2 for length in lengths], packed=True, device=CPU)
    log_probs, _ = policy(batch, temperature=1.0, chunk_size=7)
    log_probs.sum().backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}


def with_eager_gradients(model: Path, **changes: Any) -> tuple[CompileCounterWithBackend, Any]:
    """Return a compiled policy that has shown the gradients of an eager one, and the counter of its graphs."""
    counter = CompileCounterWithBackend("aot_eager")
    eager, compiled = policy_of(model, **changes), policy_of(model, counter, **changes)
    assert len(compiled.hf.base_model.layers) == 2
    for lengths in PACKS:
        expected, found = gradients(eager, lengths), gradients(compiled, lengths)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
        # One for both layers, and for other numbers of tokens and samples; a frozen embedding gives the first layer its own.
        assert counter.frame_count == (2 if "use_lora" in changes else 1)
    assert not torch._dynamo.utils.counters["graph_break"]
    return counter, compiled


@pytest.mark.parametrize(
    "changes",
    [{"use_lora": True, "lora_kernel": "fused"}, {"gradient_checkpointing": True, "unchecked_layers": 1}],
    ids=["LoRA", "checkpointing"],
)
def test_compiled_layers_have_eager_gradients_and_share_one_graph(
    tiny_random_model: Path, changes: dict[str, Any]
) -> None:
    with_eager_gradients(tiny_random_model, **changes)


def test_a_pass_without_gradients_has_one_graph_more(tiny_random_model: Path) -> None:
    counter, policy = with_eager_gradients(tiny_random_model)
    policy.eval()
    for lengths in PACKS:
        with torch.no_grad():
            batch = build([[5] * length for length in lengths], [1] * len(lengths), packed=True, device=CPU)
            policy(batch, temperature=1.0, chunk_size=7)
    assert counter.frame_count == 2


def test_the_flag_compiles_every_layer(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(model_module, "compile_layers", compiled.extend)
    policy = policy_of(tiny_random_model, fused_kernels="compile")
    assert compiled == list(policy.hf.base_model.layers)


def test_liger_without_the_package_or_for_another_model_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it was not installed: with the package, `use_liger` changes transformers for the rest of the process."""
    for module in ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.monkey_patch"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("LIGER_KERNEL_IMPL_ROPE", "")
    for kind, line in (
        ("qwen3", "--fused-kernels liger: import of liger_kernel"),
        ("llama", "but the model is a llama; use none"),
    ):
        with pytest.raises(ConfigError) as raised:
            use_liger(kind)
        assert line in str(raised.value)
    assert LIGER_MODELS == ("qwen2", "qwen3")


def test_greedy_replies_compile_nothing(tiny_random_model: Path) -> None:
    """Layers with a cache run as they are written, at any number of layers, and the training pass stays compiled."""
    counter = CompileCounterWithBackend("eager")
    policy = policy_of(tiny_random_model, counter, fused_kernels="none")
    eager = policy_of(tiny_random_model)
    replies = []
    for model, fused in ((policy, "compile"), (eager, "none")):
        actor: Any = SimpleNamespace(
            model=model, _args=trainer_args(tiny_random_model, fused_kernels=fused), _device=CPU
        )
        batch = [Continuation(number, list(range(5, 9 + number)), 3) for number in range(2)]
        FSDPPolicy.greedy(actor, [batch], Rounds(frozenset(), CPU, None))
        replies.append([each.reply for each in batch])
    assert replies[0] == replies[1]
    assert all(len(reply) == 3 for reply in replies[0])
    assert counter.frame_count == 0
    gradients(policy, PACKS[0])
    assert counter.frame_count == 1


def test_greedy_replies_use_the_kernel_of_the_policy(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[Any] = []

    def rows(*args: Any, kernel: Any = None, **kwargs: Any) -> ResponseRows:
        kernels.append(kernel)
        return ResponseRows(*args, kernel=kernel, **kwargs)

    monkeypatch.setattr(model_module, "ResponseRows", rows)
    policy = policy_of(tiny_random_model, logprob_kernel="torch")
    by_cache(policy, [Continuation(0, [5, 6], 2)], Rounds(frozenset(), CPU, None), CPU, 7)
    assert kernels == ["torch", "torch"]


def test_what_cannot_work_is_refused_with_a_line(
    tiny_random_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime.arguments.trainer._is_installed", lambda _: False)
    words = ["--hf-checkpoint", str(tiny_random_model), "--rollout-batch-size", "1", "--num-rollout", "1"]
    words += ["--disable-rollout-global-dataset", "--train-backend", "fsdp", "--debug-train-only"]
    words += ["--load-debug-rollout-data", "x", "--fused-kernels"]
    gpu = ["--device", "cuda", "--gpu-memory-gb", "80"]
    for more, line in (
        (["liger", "--device", "cpu"], "--fused-kernels liger needs a GPU; use none"),
        (["compile", "--device", "cpu"], "--fused-kernels compile needs a GPU; use none"),
        (["liger", *gpu], "--fused-kernels liger: liger-kernel is not installed on this machine"),
        (["compile", *gpu], "--fused-kernels compile would compile anew for each pack with --attn-implementation sdpa; use"),
        (
            ["compile", *gpu, "--attn-implementation", "varlen", "--gradient-checkpointing", "--kept-attention-layers", "1"],
            "--kept-attention-layers has no effect in layers of --fused-kernels compile",
        ),
    ):  # fmt: skip
        assert line in refusal(capsys, [*words, *more])
