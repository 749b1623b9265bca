"""Folders that other programs read: a Hugging Face checkpoint, and a LoRA adapter in PEFT's format.

Guarantees: a folder appears whole, by rename, or not at all. Rank 0 writes; gathering is collective.
"""

from __future__ import annotations

import json
import os
import shutil
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from slime.backends.fsdp_utils import lora
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.weights import adapter_weights, full_weights

_SHARD_BYTES = 4 * 2**30
_COPIED = (".json", ".txt", ".jinja", ".model", ".py")


def replace_folder(temporary: Path, final: Path) -> None:
    """Put ``temporary`` in the place of ``final``; an existing one is set aside until the new one is there."""
    old = final.with_name(final.name + ".old")
    if old.exists():
        shutil.rmtree(old)
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    if old.exists():
        shutil.rmtree(old)


def fresh_folder(final: Path) -> Path:
    """Return an empty folder next to ``final`` to write into."""
    temporary = final.with_name(final.name + ".tmp")
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    return temporary


def export_hf(args: Namespace, policy: PolicyModel, path: Path, *, dtype: torch.dtype, device: torch.device) -> None:
    """Write a checkpoint folder with merged weights, configuration and tokenizer files of ``args.hf_checkpoint``."""
    writes = dist.get_rank() == 0
    temporary = fresh_folder(path) if writes else path
    shards: list[dict[str, torch.Tensor]] = [{}]
    index, size, total = {}, 0, 0
    for name, tensor in full_weights(policy, dtype=dtype, device=device):
        if not writes:
            continue
        if size and size + tensor.nbytes > _SHARD_BYTES:
            save_file(shards[-1], temporary / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
            shards[-1] = {}
            shards.append({})
            size = 0
        shards[-1][name] = tensor.cpu().contiguous()
        index[name] = len(shards)
        size += tensor.nbytes
        total += tensor.nbytes
    if not writes:
        return
    save_file(shards[-1], temporary / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
    _name_shards(temporary, index, len(shards), total)
    _copy_side_files(Path(args.hf_checkpoint), temporary, dtype)
    replace_folder(temporary, path)


def _name_shards(folder: Path, index: dict[str, int], count: int, total: int) -> None:
    if count == 1:
        os.replace(folder / "part-1.safetensors", folder / "model.safetensors")
        return
    names = {part: f"model-{part:05d}-of-{count:05d}.safetensors" for part in range(1, count + 1)}
    for part, name in names.items():
        os.replace(folder / f"part-{part}.safetensors", folder / name)
    content = {"metadata": {"total_size": total}, "weight_map": {key: names[part] for key, part in index.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2))


def _copy_side_files(source: Path, folder: Path, dtype: torch.dtype) -> None:
    for file in source.iterdir():
        if file.suffix in _COPIED and not file.name.endswith(".index.json"):
            shutil.copy2(file, folder / file.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def export_adapter(args: Namespace, policy: PolicyModel, path: Path, *, device: torch.device) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them."""
    tensors = adapter_weights(policy, device=device)
    if dist.get_rank() != 0:
        return
    temporary = fresh_folder(path)
    save_file(tensors, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
    config = lora.lora_config(args)
    config.base_model_name_or_path = str(args.hf_checkpoint)
    config.inference_mode = True
    config.save_pretrained(str(temporary))
    replace_folder(temporary, path)
