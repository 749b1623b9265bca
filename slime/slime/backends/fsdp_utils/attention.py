"""Attention inside each sample of a packed sequence, by the kernel that ``--attn-implementation`` names.

A pack of samples of ``n_i`` tokens costs ``sum n_i^2`` instead of ``(sum n_i)^2`` and needs no mask: either each sample is its own
causal call (``sdpa``, ``cudnn``), or one call gets the samples' ends (``varlen``, flash attention). ``auto`` takes the kernel
that was fastest in the nearest row of `MEASURED`. The choice depends on the pack's lengths alone, so the pass for old log
probabilities and the training pass of a micro-batch use the same kernel, and their ratio starts at 1.

Our kernels are registered with transformers under the names in `PACKED`, which get no mask.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundwork.exceptions import ConfigError
from slime.backends.trainer.micro_batch import to_device

Result = tuple[Tensor, None]
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """Milliseconds of one layer's attention, forward and backward, in bfloat16.

    Attributes:
        batch: heads of size 128 and samples.
        work: query heads times the mean squared length of a sample.
        sdpa: what PyTorch picks, one call per sample.
        cudnn: cuDNN's kernel, one call per sample.
        varlen: one call for all samples.
    """

    batch: str
    work: float
    sdpa: float
    cudnn: float
    varlen: float

    @property
    def fastest(self) -> str:
        """Return the name of the fastest kernel."""
        return min(("sdpa", "cudnn", "varlen"), key=lambda name: getattr(self, name))


MEASURED = (
    Row("16 heads, 20 samples, 21,239 tokens", 3.5e7, sdpa=5.13, cudnn=4.12, varlen=3.31),
    Row("16 heads, 8 samples of 2,048", 6.7e7, sdpa=2.77, cudnn=3.04, varlen=2.65),
    Row("32 heads, 20 samples, 21,239 tokens", 7.0e7, sdpa=6.09, cudnn=5.50, varlen=5.94),
    Row("32 heads, 8 samples of 2,048", 1.34e8, sdpa=3.76, cudnn=3.67, varlen=4.40),
    Row("16 heads, 2 samples of 8,192", 1.07e9, sdpa=4.27, cudnn=4.43, varlen=7.08),
    Row("32 heads, 2 samples of 8,192", 2.15e9, sdpa=8.04, cudnn=8.39, varlen=13.52),
)
"""One H100 80 GB, 2026-11-27. ``python -m benchmarks.attention --device cuda --json FILE`` makes the rows of another card."""


def fastest_kernel(heads: int, lengths: Sequence[int]) -> str:
    """Return the kernel of the nearest row of `MEASURED` for samples of ``lengths`` tokens."""
    work = work_of(heads, lengths)
    return min(MEASURED, key=lambda row: abs(math.log(work / row.work))).fastest


def work_of(heads: int, lengths: Sequence[int]) -> float:
    """Return query heads times the mean squared length."""
    return heads * sum(length * length for length in lengths) / len(lengths)


def by_sample(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sequence_lengths: list[int] | None = None,
    **kwargs: Any,
) -> Result:
    """Return ``[1, T, H, D]`` for ``query`` ``[1, H, T, D]``, one call per sample; ``sequence_lengths`` sum to T."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    lengths = _given(module, sequence_lengths)
    kwargs["is_causal"] = True
    pieces = [tensor.split(lengths, dim=2) for tensor in (query, key, value)]
    outputs = [
        sdpa_attention_forward(module, q, k, v, attention_mask, **kwargs)[0] for q, k, v in zip(*pieces, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def by_cudnn(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Result:
    """Return `by_sample` by cuDNN's kernel; raise RuntimeError if it cannot."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return by_sample(module, query, key, value, *args, **kwargs)


CUDNN_HEAD = 256
CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def by_cudnn_if_it_can(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> Result:
    """Return `by_sample` by cuDNN's kernel, or by PyTorch's next one where cuDNN refuses a head or determinism."""
    with sdpa_kernel(CUDNN_FIRST, set_priority=True):
        return by_sample(module, query, *args, **kwargs)


def by_ends(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sample_ends: Tensor | None = None,
    longest_sample: int | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> Result:
    """Return ``[1, T, H, D]`` for ``query`` ``[1, H, T, D]`` by one call; ``sample_ends`` ``[N + 1]`` int32 begin with 0."""
    from torch.nn.attention import varlen

    ends, longest = _given(module, sample_ends), _given(module, longest_sample)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    grouped = q.size(1) != k.size(1)
    where = (ends, ends, longest, longest)
    out = varlen.varlen_attn(q, k, v, *where, scale=scaling, window_size=(-1, 0), enable_gqa=grouped)
    assert isinstance(out, Tensor)
    return out.unsqueeze(0), None


def by_measurement(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> Result:
    """Return the attention by `fastest_kernel`."""
    name = fastest_kernel(query.size(1), _given(module, kwargs.get("sequence_lengths")))
    unused = ("sequence_lengths",) if name == "varlen" else ("sample_ends", "longest_sample")
    kernel = by_cudnn_if_it_can if name == "cudnn" else KERNELS[name]
    return kernel(module, query, *args, **{key: kwargs[key] for key in kwargs if key not in unused})


def _given(module: nn.Module, argument: T | None) -> T:
    if argument is None:
        raise ValueError(
            f"{type(module).__name__} does not pass keyword arguments to its attention: use --no-pack-sequences"
        )
    return argument


KERNELS: dict[str, Callable[..., Result]] = {
    "sdpa": by_sample,
    "cudnn": by_cudnn,
    "varlen": by_ends,
    "auto": by_measurement,
}
"""What computes a packed sequence, by the value of ``--attn-implementation``."""
PACKED = {name: f"packed_{name}" for name in KERNELS}
"""Their names in transformers."""
_MODULES = {
    "varlen": "torch.nn.attention.varlen",
    "auto": "torch.nn.attention.varlen",
    "flash_attention_2": "flash_attn",
    "flash_attention_4": "flash_attn.cute",
}


def register_kernels() -> None:
    """Register the kernels of `PACKED` with transformers; idempotent."""
    from transformers import AttentionInterface

    for name, kernel in KERNELS.items():
        AttentionInterface.register(PACKED[name], kernel)


def check_heads_of_cudnn(config: Any) -> None:
    """Raise ConfigError if no cuDNN has a kernel for the heads of a text model with ``config``.

    It takes multiples of 8 up to `CUDNN_HEAD`; older cards and versions have a lower limit.
    """
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size > CUDNN_HEAD or size % 8:
        raise ConfigError(f"--attn-implementation cudnn is not for heads of size {size}; use auto")


def resolve_attention(implementation: str, packed: bool, layer_types: list[str] | None) -> str:
    """Return the attention implementation to build the model with.

    A kernel of a packed model without sliding windows becomes ours of `PACKED`. Others stay: flash attention gets cumulative
    lengths, and the rest build a block-diagonal mask from restarting positions.

    Raises:
        ConfigError: the kernel cannot be imported, or not for such a model.
    """
    if module := _MODULES.get(implementation):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"--attn-implementation {implementation}: {error}; use sdpa") from error
    sliding = any("sliding" in kind for kind in layer_types or [])
    if implementation not in PACKED:
        return implementation
    if packed and not sliding:
        register_kernels()
        return PACKED[implementation]
    if implementation != "sdpa":
        raise ConfigError(
            f"--attn-implementation {implementation} is for packed samples without sliding windows; use sdpa"
        )
    return implementation


def attention_arguments(implementation: str, sequence_lengths: list[int], device: torch.device) -> dict[str, Any]:
    """Return the keyword arguments that tell ``implementation`` where the samples of a pack begin."""
    by_lengths = {"sequence_lengths": sequence_lengths}
    if implementation in (PACKED["sdpa"], PACKED["cudnn"]):
        return by_lengths
    if implementation not in PACKED.values() and not implementation.startswith("flash_attention"):
        return {}
    (ends,) = to_device([torch.tensor([0, *sequence_lengths]).cumsum(0).to(torch.int32)], device)
    longest = max(sequence_lengths)
    by_end: dict[str, Any] = {"sample_ends": ends, "longest_sample": longest}
    if implementation == PACKED["varlen"]:
        return by_end  # and no list, which a compiled layer would take for a constant
    if implementation == PACKED["auto"]:
        return by_lengths | by_end
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
