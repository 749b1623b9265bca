"""What is trained: parameters that name patterns select, or LoRA adapters.

Guarantee: every pattern of ``--only-train-params-name-list`` and ``--freeze-params-name-list`` must match a parameter and at
least one parameter must stay trainable, else it is an error. LoRA's configuration, merged weights, and adapter folders in
PEFT's format are the same for every back end.
"""

from __future__ import annotations

import logging
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.checkpoints.checkpoint_folder import fresh_folder, replace_folder
from slime.exceptions import CheckpointError

PATTERNS = ("only_train_params_name_list", "freeze_params_name_list")


def choose_trainable(args: Arguments, model: nn.Module) -> None:
    """Freeze the parameters of ``model`` whose Hugging Face names the patterns (``re.search``) exclude."""
    only = args.only_train_params_name_list
    patterns = only or args.freeze_params_name_list
    if not patterns:
        return
    names = [name for name, _ in model.named_parameters()]
    flag = "--only-train-params-name-list" if only else "--freeze-params-name-list"
    matched = _matches(flag, patterns, names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_((name in matched) == bool(only))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{flag} {' '.join(patterns)} leaves nothing to train")


def check_same_parameters(args: Arguments, meta: dict[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint was written with other patterns, because its optimizer does not fit."""
    for name in PATTERNS:
        then, now = meta.get(name), getattr(args, name)
        if (then or None) != (now or None):
            flag = flag_of(name)
            raise CheckpointError(
                f"the checkpoint was written {f'with {flag} ' + ' '.join(then) if then else f'without {flag}'}; "
                "use the same patterns, or start from its weights: --load the folder of --save-hf"
            )


def _matches(flag: str, patterns: Sequence[str], names: Sequence[str]) -> set[str]:
    matches: set[str] = set()
    for pattern in patterns:
        try:
            matching = {name for name in names if re.search(pattern, name)}
        except re.error as error:
            raise ConfigError(f"{flag} {pattern}: not a regular expression: {error}") from error
        if not matching:
            raise ConfigError(f"{flag} {pattern} matches no parameter; names look like {names[0]}")
        matches |= matching
    return matches


logger = logging.getLogger(__name__)

DEFAULT_TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


def target_modules(args: Arguments) -> list[str]:
    """Return the names of the linear layers that get an adapter."""
    targets = args.lora_target_modules or DEFAULT_TARGETS
    return targets if isinstance(targets, list) else [name.strip() for name in targets.split(",")]


def lora_config(args: Arguments):
    """Return the ``peft.LoraConfig`` of ``args.lora_rank``, ``lora_alpha``, ``lora_dropout`` and ``lora_target_modules``."""
    from peft import LoraConfig

    return LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=target_modules(args),
        bias="none",
        task_type="CAUSAL_LM",
    )


def first_lora_a(shape: Sequence[int], seed: int, name: str) -> Tensor:
    """Return the first values of a layer's A, ``[rank, inputs]`` its ``shape``, as PEFT draws them; ``seed`` and the layer's ``name`` alone decide."""
    generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
    return nn.init.kaiming_uniform_(torch.empty(*shape), a=math.sqrt(5), generator=generator)


def shape_of_adapters(args: Arguments) -> dict[str, Any] | None:
    """Return the adapter metadata of a checkpoint; None without LoRA."""
    if not args.use_lora:
        return None
    return {"rank": args.lora_rank, "alpha": args.lora_alpha, "target_modules": sorted(target_modules(args))}


def check_same_adapters(args: Arguments, meta: dict[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint's adapters differ from the run's in rank, scale or target modules.

    The tensors alone do not reveal it: another alpha would rescale the learned update.
    """
    then, now = meta.get("adapters"), shape_of_adapters(args)
    if not then or not now or then == now:
        return
    changed = [name for name in now if then[name] != now[name]]
    flags = " ".join(f"--lora-{name.replace('_', '-')} {_as_typed(then[name])}" for name in changed)
    raise CheckpointError(f"the checkpoint was written with {flags}; use the same flags")


def _as_typed(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def merged_weight(base: Tensor, lora_a: Tensor, lora_b: Tensor, scaling: float) -> Tensor:
    """Return ``W + scaling * B A`` in float32 (Hu et al. 2021) as a new tensor."""
    return torch.addmm(base.float(), lora_b.float(), lora_a.float(), alpha=scaling)


class MergedChange:
    """Measure how much of the adapters' change is left when merged weights are rounded.

    With ``D`` the change in float32 and ``R`` what it is after rounding, the share is ``<R, D> / <D, D>`` over all weights. A
    change of much less than half a unit in the last place of the base weight is lost: bfloat16 has 8 bits, so the first
    updates of a run may not show in merged weights at all, though the adapter has them.
    """

    SMALL = 0.9

    def __init__(self) -> None:
        self._whole: list[Tensor] = []
        self._left: list[Tensor] = []

    def rounded(self, base: Tensor, merged: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``merged`` (float32) as ``dtype`` and count what is left of its difference from ``base``."""
        result = merged.to(dtype)
        change, base = merged - base.float(), base.float()
        self._whole.append(change.square().sum())
        self._left.append((change * (result.float() - base)).sum())
        return result

    @property
    def share(self) -> float:
        """Return what is left, 1 without any change."""
        whole = sum(float(value) for value in self._whole)
        return sum(float(value) for value in self._left) / whole if whole > 0.0 else 1.0

    def warning(self, dtype: torch.dtype) -> str | None:
        """Return a line that says what was lost and what to do; None if at most a tenth was."""
        if self.share >= self.SMALL:
            return None
        return (
            f"merged weights in {str(dtype).removeprefix('torch.')} keep {max(self.share, 0.0):.0%} of what the adapter "
            "changed; serve the adapter itself, or merge in float32 (merge_lora.py --dtype float32)"
        )

    def log(self, dtype: torch.dtype) -> None:
        """Log the warning, if there is one, on the first rank."""
        first = not dist.is_initialized() or dist.get_rank() == 0
        if first and (lost := self.warning(dtype)):
            logger.warning(lost)


def write_adapter(args: Arguments, tensors: dict[str, Tensor], path: Path) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` as ``PeftModel.from_pretrained`` reads them.

    The folder appears whole, by rename, or not at all. ``tensors`` have PEFT's names and are on the CPU.
    """
    temporary = fresh_folder(path)
    put_adapter(args, tensors, temporary)
    replace_folder(temporary, path)


def put_adapter(args: Arguments, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write what :func:`write_adapter` does into the existing ``folder``."""
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = lora_config(args)
    config.base_model_name_or_path = str(args.hf_checkpoint)
    config.inference_mode = True
    config.save_pretrained(str(folder))
