"""A LoRA adapter in PEFT's format, as other programs read it.

Guarantees: the folder appears whole, by rename, or not at all. Rank 0 writes; gathering is collective.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from safetensors.torch import save_file

from slime.backends.fsdp_utils import lora
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.weights import adapter_weights
from slime.backends.trainer.checkpoint_folder import fresh_folder, replace_folder
from slime.backends.trainer.together import on_rank_zero


def export_adapter(args: Namespace, policy: PolicyModel, path: Path, *, device: torch.device) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them."""
    tensors = adapter_weights(policy, device=device)

    def write() -> None:
        temporary = fresh_folder(path)
        save_file(tensors, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
        config = lora.lora_config(args)
        config.base_model_name_or_path = str(args.hf_checkpoint)
        config.inference_mode = True
        config.save_pretrained(str(temporary))
        replace_folder(temporary, path)

    on_rank_zero(write)
