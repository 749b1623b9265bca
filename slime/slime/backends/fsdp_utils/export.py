"""A LoRA adapter in PEFT's format, as other programs read it.

Guarantees: the folder appears whole, by rename, or not at all. Rank 0 writes; gathering is collective.
"""

from __future__ import annotations

from pathlib import Path

import torch

from slime.args import Arguments
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.weights import adapter_weights
from slime.backends.trainer.lora import write_adapter
from slime.backends.trainer.together import on_rank_zero


def export_adapter(args: Arguments, policy: PolicyModel, path: Path, *, device: torch.device) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them."""
    tensors = adapter_weights(policy, device=device)
    on_rank_zero(lambda: write_adapter(args, tensors, path))
