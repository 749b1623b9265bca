"""Add LoRA adapters to the policy, and switch them off.

The adapters live in the modules (injected with PEFT). The base weights are frozen and never change, not even by
merging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from slime.args import Arguments
from slime.backends.trainer.lora import lora_config

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

ADAPTER = "default"


def add_adapters(args: Arguments, model: nn.Module) -> None:
    """Freeze ``model`` and inject trainable float32 adapters; raise for an unknown target module."""
    from peft import inject_adapter_in_model

    model.requires_grad_(False)
    inject_adapter_in_model(lora_config(args), model, adapter_name=ADAPTER)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Return the layers with an adapter, by module name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Run the block with the frozen base model: the reference policy of a LoRA run."""
    layers = list(lora_layers(model).values())
    for layer in layers:
        layer._disable_adapters = True  # the public switch also changes requires_grad, which FSDP must not see
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
