"""Log probabilities from hidden states, block by block, are those of float64, in the memory of a block."""

from __future__ import annotations

import collections
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from groundwork.exceptions import ConfigError
from slime.backends.fsdp_utils.model import head_pairs
from slime.logprobs import response_rows
from slime.logprobs.response_rows import ResponseRows, log_probs_of_head
from slime.utils.head_memory import GPU_SLICE_BYTES, block_width, chunk_rows, head_bytes

ROWS, WIDTH, VOCABULARY, K = 13, 8, 50, 3


def case(seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head, ids, and random weights of log probabilities and entropies; one row is nearly certain."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(n, WIDTH, generator=generator) for n in (ROWS, VOCABULARY))
    hidden[0] = weight[7] * 40
    ids = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:K] for _ in range(ROWS)])
    ids[0, 0] = 7
    return hidden, weight, ids, torch.randn(ROWS, K, generator=generator), torch.randn(ROWS, generator=generator)


def outcome(
    chunk: int, temperature: float, with_entropy: bool, dtype: torch.dtype = torch.float32, seed: int = 1
) -> list[Tensor]:
    """Log probabilities, entropies and both gradients."""
    hidden, weight, ids, by_id, by_row = case(seed)
    leaves = [value.to(dtype).requires_grad_() for value in (hidden, weight)]
    found, entropy = log_probs_of_head(
        [(leaves[0], leaves[1])], ids, temperature=temperature, chunk=chunk, with_entropy=with_entropy
    )
    total = (found * by_id).sum() + ((entropy * by_row).sum() if with_entropy else 0.0)
    return [found, entropy, *torch.autograd.grad(total, leaves)]


def exact(temperature: float, with_entropy: bool, dtype: torch.dtype = torch.float32, seed: int = 1) -> list[Tensor]:
    """The same in float64, from values of ``dtype``."""
    hidden, weight, ids, by_id, by_row = case(seed)
    leaves = [value.to(dtype).double().requires_grad_() for value in (hidden, weight)]
    table = torch.log_softmax(leaves[0] @ leaves[1].T / temperature, dim=-1)
    found, entropy = table.gather(-1, ids), -(table.exp() * table).sum(-1)
    total = (found * by_id).sum() + ((entropy * by_row).sum() if with_entropy else 0.0)
    return [found, entropy if with_entropy else torch.zeros(ROWS), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_values_and_gradients_are_those_of_float64(
    chunk: int, temperature: float, with_entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_rows, "CPU_SLICE_BYTES", 4 * block_width(ROWS, VOCABULARY, chunk, even=False) * 5)
    for found, right in zip(outcome(chunk, temperature, with_entropy), exact(temperature, with_entropy), strict=True):
        size = max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(found.double() / size, right.double() / size, atol=1e-5, rtol=1e-5)


def test_one_token_a_row_has_a_flat_result() -> None:
    hidden, weight, ids, *_ = case()
    both, _ = log_probs_of_head([(hidden, weight)], ids, temperature=1.0, chunk=4)
    flat, _ = log_probs_of_head([(hidden, weight)], ids[:, 1], temperature=1.0, chunk=4)
    assert torch.equal(flat, both[:, 1])


@pytest.mark.parametrize("outside", [-1, VOCABULARY])
def test_an_id_outside_the_vocabulary_is_named(outside: int) -> None:
    hidden, weight, ids, *_ = case()
    ids[3, 1] = outside
    with pytest.raises(ValueError, match=f"token ids .* do not fit a vocabulary of {VOCABULARY} tokens"):
        log_probs_of_head([(hidden, weight)], ids, temperature=1.0, chunk=4)


def test_a_known_range_is_checked_without_a_look_at_the_ids() -> None:
    hidden, weight, ids, *_ = case()
    with pytest.raises(ValueError, match=f"token ids 0 to {VOCABULARY} do not fit"):
        log_probs_of_head([(hidden, weight)], ids, temperature=1.0, chunk=4, id_range=(0, VOCABULARY))
    with Operations() as found:
        log_probs_of_head([(hidden, weight)], ids, temperature=1.0, chunk=4, id_range=(0, VOCABULARY - 1))
    assert not found.counts["_local_scalar_dense"]


def test_rows_that_pad_the_vocabulary_have_no_part() -> None:
    hidden, weight, ids, by_id, _ = case()
    padded = torch.cat([weight, torch.full((14, WIDTH), 9.0)]).requires_grad_()
    found, _ = log_probs_of_head([(hidden, padded)], ids, temperature=1.0, chunk=4, vocab_size=VOCABULARY)
    torch.testing.assert_close(found, torch.log_softmax(hidden @ weight.T, -1).gather(-1, ids), atol=1e-5, rtol=1e-5)
    [gradient] = torch.autograd.grad((found * by_id).sum(), padded)
    assert gradient[:VOCABULARY].any()
    assert not gradient[VOCABULARY:].any()


def test_no_rows_give_nothing_and_a_gradient_of_zero() -> None:
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    hidden = torch.randn(0, WIDTH, requires_grad=True)
    for total in (
        log_probs_of_head([(hidden, weight)], torch.zeros(0, K).long(), temperature=0.5, chunk=4)[0].sum(),
        ResponseRows([(hidden, weight)], 4).nothing(),
    ):
        gradients = torch.autograd.grad(total, [hidden, weight])
        assert gradients[0].shape == hidden.shape
        assert not gradients[1].any()


def test_a_second_backward_pass_gives_the_same() -> None:
    hidden, weight, ids, *_ = case()
    leaf = weight.requires_grad_()
    total = log_probs_of_head([(hidden, leaf)], ids, temperature=0.7, chunk=4)[0].sum()
    [first] = torch.autograd.grad(total, leaf, retain_graph=True)
    [second] = torch.autograd.grad(total, leaf)
    assert torch.equal(first, second)


def error_of_head(chunk: int, seed: int) -> float:
    """Largest error of the head's bfloat16 gradient over its largest entry, for 256 rows whose gradients all add up."""
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.rand(256, WIDTH, generator=generator) + 0.5).bfloat16()
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.1).bfloat16()
    ids = torch.full((256,), 3)

    def gradient(dtype: torch.dtype) -> Tensor:
        leaf = weight.to(dtype).requires_grad_()
        if dtype == torch.float64:
            loss = torch.log_softmax(hidden.double() @ leaf.T, -1)[:, 3].sum()
        else:
            loss = log_probs_of_head([(hidden, leaf)], ids, temperature=1.0, chunk=chunk)[0].sum()
        return torch.autograd.grad(loss, leaf)[0].double()

    right = gradient(torch.float64)
    return float((gradient(torch.bfloat16) - right).abs().max() / right.abs().max())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_blocks_do_not_make_the_heads_gradient_worse(seed: int) -> None:
    """One rounding to bfloat16 is 2^-9; a sum of 256 chunks in bfloat16 is off by 2^-6 here."""
    errors = {chunk: error_of_head(chunk, seed) for chunk in (256, 16, 1)}
    assert max(errors.values()) < 0.004, errors
    assert max(errors.values()) <= 1.5 * errors[256], errors


class Operations(TorchDispatchMode):
    """Counts operations by name and remembers the largest number of elements of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize("top", [1, 50])
def test_a_long_reply_never_has_its_whole_logits(top: int) -> None:
    rows, vocabulary, chunk = 2048, 5000, 64
    hidden, weight = torch.randn(rows, WIDTH, requires_grad=True), torch.randn(vocabulary, WIDTH, requires_grad=True)
    with Operations() as found:
        log_probs_of_head([(hidden, weight)], torch.zeros(rows, top).long(), temperature=0.7, chunk=chunk)[
            0
        ].sum().backward()
    assert found.largest <= chunk * vocabulary


@pytest.mark.parametrize(("chunk", "blocks"), [(13, 1), (5, 3), (4, 4)])
def test_every_block_but_the_last_is_computed_again_for_its_gradient(chunk: int, blocks: int) -> None:
    with Operations() as forward, torch.no_grad():
        hidden, weight, ids, *_ = case()
        without = log_probs_of_head([(hidden, weight)], ids, temperature=0.7, chunk=chunk)
    assert forward.counts["mm"] == blocks
    with Operations() as both:
        with_gradient = outcome(chunk, 0.7, True)
    products = both.counts["mm"] + both.counts["addmm_"]
    assert products == 3 * blocks + blocks - 1
    assert all(torch.equal(one, other) for one, other in zip(without, with_gradient, strict=False))


def test_frozen_weights_get_no_gradient_product() -> None:
    hidden, weight, ids, *_ = case()
    leaf = hidden.requires_grad_()
    with Operations() as found:
        log_probs_of_head([(leaf, weight)], ids, temperature=1.0, chunk=100)[0].sum().backward()
    assert found.counts["mm"] + found.counts["addmm_"] == 2


def test_a_block_has_the_numbers_of_a_chunk_of_rows() -> None:
    for even in (False, True):
        assert [block_width(*size, even=even) for size in ((13, 50, 13), (13, 50, 1000), (0, 50, 1))] == [50, 50, 50]
        assert block_width(10**6, 100, 1, even=even) == 1
        assert block_width(4, 0, 1, even=even) == 0
    assert block_width(13, 50, 4, even=False) == 15
    assert block_width(32_768, 151_936, 1024, even=False) == 4736
    assert chunk_rows(17, 1000) == 17
    assert chunk_rows(-1, 151_936) * 151_936 * 4 <= 256 * 2**20
    assert chunk_rows(0, 10**12) == 1


@pytest.mark.parametrize(
    ("rows", "columns", "chunk", "width"),
    [(1024, 151_936, 128, 16_896), (10_922, 151_936, 1024, 13_824), (13, 50, 4, 13), (13, 50, 13, 50)],
)
def test_even_blocks_are_as_many_and_hold_no_more(rows: int, columns: int, chunk: int, width: int) -> None:
    widest, even = (block_width(rows, columns, chunk, even=even) for even in (False, True))
    assert even == width <= widest
    assert -(-columns // even) == -(-columns // widest)
    last = columns - (-(-columns // even) - 1) * even
    assert last > 0.8 * even


def test_a_gpu_adds_to_the_float32_sum_without_rounding() -> None:
    """Tensors without values take the path of a GPU: one product into the sum, and no bfloat16 product beside it."""
    for dtype, expected in ((torch.bfloat16, "dtype_out"), (torch.float32, "default")):
        table, weight = (torch.empty(size, dtype=dtype, device="meta") for size in ((5, 6), (6, 4)))
        total = torch.empty(5, 4, device="meta")
        with Overloads() as found:
            response_rows._add_gradients(table, slice(0, 6), (table,), (weight,), [total], [None])
        assert [name for name in found.names if "mm" in name] == [
            f"addmm{'' if dtype == torch.bfloat16 else '_'}.{expected}"
        ]


class Overloads(TorchDispatchMode):
    """Remembers the operations and their overloads, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(f"{func.overloadpacket.__name__}.{func._overloadname}")
        return func(*args, **(kwargs or {}))


def test_a_gpu_takes_triton_and_a_cpu_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [response_rows.kernel_on(device, "torch") for device in (cpu, cuda)] == ["torch", "torch"]
    assert response_rows.kernel_on(cpu) == "torch"
    with pytest.raises(ConfigError, match=r"^--logprob-kernel triton needs a GPU; use torch$"):
        response_rows.kernel_on(cpu, "triton")
    for choice in (None, "triton"):
        with pytest.raises(ConfigError, match=r"needs the package triton .* or use --logprob-kernel torch"):
            response_rows.kernel_on(cuda, choice)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "triton" else None)
    assert [response_rows.kernel_on(cuda, choice) for choice in (None, "triton", "torch")] == [
        "triton",
        "triton",
        "torch",
    ]


def test_the_chosen_kernel_computes_each_block_of_either_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernels are called; what they compute is tested in Triton's interpreter."""
    calls: collections.Counter[str] = collections.Counter()
    kernels = ModuleType("slime.logprobs.walk_kernels")

    def count(name: str) -> Any:
        return lambda table, ids, *_, first, **options: calls.update([(name, first, tuple(table.shape))])

    for name in ("add_block", "to_gradient"):
        setattr(kernels, name, count(name))
    monkeypatch.setitem(sys.modules, "slime.logprobs.walk_kernels", kernels)
    monkeypatch.setattr("slime.logprobs.walk_kernels", kernels, raising=False)
    hidden, weight, ids, *_ = case()
    rows = ResponseRows([(hidden, weight.requires_grad_())], 5, kernel="triton")
    rows.log_probs(ids, temperature=1.0)[0].sum().backward()
    blocks = [(0, (ROWS, 19)), (19, (ROWS, 19)), (38, (ROWS, 12))]
    assert calls == {(name, *block): 1 for name in ("add_block", "to_gradient") for block in blocks}


def test_the_budget_is_that_of_a_block_and_the_rows() -> None:
    found = head_bytes(32_768, 2560, 151_936, chunk=1024, ids=50)
    block, gradients = 2 * 32_768 * 4608, 6 * 32_768 * 2560
    assert block + gradients < found < block + gradients + 320 * 2**20
    assert found - head_bytes(32_768, 2560, 151_936, chunk=1024, ids=50, triton=True) == 2 * GPU_SLICE_BYTES
    assert head_bytes(100, 2560, 151_936, chunk=1024) < 2 * 100 * 151_936 + 260 * 2**20


def lora_head() -> Any:
    """A linear layer with a bias and an adapter with random values."""
    from peft import LoraConfig, inject_adapter_in_model

    model = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(WIDTH, VOCABULARY)})
    inject_adapter_in_model(LoraConfig(r=2, lora_alpha=6, target_modules=["lm_head"]), model)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model["lm_head"]


@pytest.mark.parametrize("disabled", [True, False])
def test_a_head_with_bias_and_adapter_is_its_module(disabled: bool) -> None:
    lm_head = lora_head()
    lm_head._disable_adapters = disabled
    hidden, _, ids, by_id, _ = case()
    parameters = [p for name, p in lm_head.named_parameters() if "lora_" not in name or not disabled]
    for parameter in parameters:
        parameter.requires_grad_(True)
    outcomes = []
    for ours in (True, False):
        rows = hidden.clone().requires_grad_()
        if ours:
            found, _ = ResponseRows(head_pairs(lm_head, rows), 4).log_probs(ids, temperature=0.7)
        else:
            found = torch.log_softmax(lm_head(rows) / 0.7, -1).gather(-1, ids)
        outcomes.append([found, *torch.autograd.grad((found * by_id).sum(), [rows, *parameters])])
    for mine, right in zip(*outcomes, strict=True):
        size = max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(mine / size, right / size, atol=1e-5, rtol=1e-4)


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(TypeError, match="the LM head is a Sequential"):
        head_pairs(torch.nn.Sequential(), torch.zeros(1, WIDTH))
