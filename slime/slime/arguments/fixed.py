"""Flags of other training cores whose stated meaning always holds in this one.

Guarantee: each may be given with the one value that is true here, and any other value is refused with the reason. So old
command lines go on working, and none of these is accepted and ignored.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments


@dataclass(frozen=True)
class Fixed:
    """A flag with one possible value.

    Attributes:
        flag: as it is typed.
        value: what it says; True makes it a switch.
        why: how this core does what the flag says.
        instead: what another value would need; empty for a switch.
    """

    flag: str
    value: Any
    why: str
    instead: str = ""

    @property
    def attribute(self) -> str:
        """Name of the attribute that holds the value."""
        return self.flag.lstrip("-").replace("-", "_")


_AGREE = "the logprobs of one policy must agree between passes"

FIXED = (
    Fixed(
        "--megatron-to-hf-mode",
        "bridge",
        "weights start from and go to Hugging Face folders",
        "weights start from and go to Hugging Face folders, without a converter of Megatron's",
    ),
    Fixed("--balance-data", True, "samples are dealt to ranks so that their tokens balance"),
    Fixed("--attention-softmax-in-fp32", True, "every attention kernel here accumulates its softmax in float32"),
    Fixed("--accumulate-allreduce-grads-in-fp32", True, "gradients are float32 and reduced in float32"),
    Fixed("--attention-dropout", 0.0, f"no dropout: {_AGREE}", f"dropout is not offered, because {_AGREE}"),
    Fixed("--hidden-dropout", 0.0, f"no dropout: {_AGREE}", f"dropout is not offered, because {_AGREE}"),
    Fixed("--fsdp-cpu-backend", "gloo", "collectives on host memory", "collectives on host memory use gloo"),
    Fixed(
        "--rollout-data-transport", "object-store", "batches travel through Ray's object store", "nixl is not offered"
    ),
)


def add_fixed_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags in a group of their own."""
    group = parser.add_argument_group("always so (for command lines of other cores)")
    for fixed in FIXED:
        if fixed.value is True:
            group.add_argument(fixed.flag, action="store_true", default=True, help=fixed.why)
        else:
            text = f"{fixed.value}: {fixed.why}"
            group.add_argument(fixed.flag, type=type(fixed.value), default=fixed.value, metavar="V", help=text)


def check_fixed(args: Arguments) -> list[str]:
    """Return a line per flag that was given another value."""
    return [
        f"{fixed.flag} {value}: {fixed.instead or fixed.why}; use {fixed.value}"
        for fixed in FIXED
        if (value := getattr(args, fixed.attribute)) != fixed.value
    ]
