"""A reference model that follows the policy: ``--ref-update-interval``.

Guarantee: after every interval the reference has the policy's weights, rounded to its own precision. A checkpoint
contains the reference, so a resumed run uses the same one.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from slime.backends.fsdp_utils.optimizer import free_whole_parameters

logger = logging.getLogger(__name__)

FOLDER = "reference"


def is_due(rollout_id: int, interval: int | None) -> bool:
    """Return whether the reference copies the policy's weights after ``rollout_id``."""
    return interval is not None and (rollout_id + 1) % interval == 0


@torch.no_grad()
def follow(reference: nn.Module, policy: nn.Module) -> None:
    """Copy every parameter of ``policy``; both have the same sharding, so ranks need not communicate."""
    for model in (reference, policy):
        free_whole_parameters(model)
    sources = dict(policy.named_parameters())
    for name, parameter in reference.named_parameters():
        _local(parameter).copy_(_local(sources[name]))


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def save(reference: nn.Module, checkpoint: Path) -> None:
    """Write the reference to a checkpoint's folder; collective."""
    dcp_save({"model": get_model_state_dict(reference)}, checkpoint_id=str(checkpoint / FOLDER))


def load(reference: nn.Module, checkpoint: Path) -> None:
    """Restore a checkpoint's reference; without one keep --ref-load's and log a warning. Collective."""
    if not (checkpoint / FOLDER).is_dir():
        logger.warning("%s holds no reference; using --ref-load's until the next update", checkpoint)
        return
    state = {"model": get_model_state_dict(reference)}
    dcp_load(state, checkpoint_id=str(checkpoint / FOLDER))
    set_model_state_dict(reference, state["model"])
