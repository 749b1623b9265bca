"""The steps of tool training under the names of guides: describe the tools, collect an episode, compute its loss, train.

`train_toolcall_agent` is ``run_toolcall_rl.sh`` with a model and a tools configuration: rollouts, rewards and updates are those of a run.
`compute_toolcall_loss` is for ``--loss-type custom_loss --custom-loss-function-path toolcall_training.compute_toolcall_loss``, to change it in a copy.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from toolcall_agent import Endpoint, Trajectory, collect_toolcall_trajectory

from agentrl.tasks.toolcall.config import read_config
from agentrl.tasks.toolcall.prompts import format_tool_descriptions
from agentrl.tasks.toolcall.settings import ToolSettings
from slime.algorithms.losses.custom import from_response_rows
from slime.algorithms.losses.policy_loss import policy_loss_of_logits
from slime.args import Arguments
from slime.utils.streams import TrainBatch

__all__ = [
    "Endpoint",
    "Trajectory",
    "collect_toolcall_trajectory",
    "compute_toolcall_loss",
    "format_tool_descriptions",
    "train_toolcall_agent",
]

SCRIPT = Path(__file__).resolve().with_name("run_toolcall_rl.sh")


def train_toolcall_agent(model: str | Path, tools_config_path: str | Path, *flags: str) -> int:
    """Train a model to use tools; return when the run has ended, with its exit status.

    Args:
        model: folder of the checkpoint; a name without a folder is one in ``models/``, as for the script.
        tools_config_path: file of `agentrl.tasks.toolcall.config`.
        flags: of the script, such as ``--dry-run`` or ``--num-rollout 10``; a Qwen3-4B on 8 GPUs is the default.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    config = Path(tools_config_path).absolute()
    read_config(config, ToolSettings.from_env().allowed_urls)
    child = {**os.environ, "HF_CKPT": str(model), "TOOLS_CONFIG": str(config)}
    return subprocess.call(["bash", str(SCRIPT), *flags], env=child)


@from_response_rows
def compute_toolcall_loss(
    args: Arguments, batch: TrainBatch, logits: Any, sum_of_sample_mean: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of tool episodes and its detached metrics: the built-in policy loss, on what the policy wrote.

    What tools answered has loss mask 0, so it has no gradient.

    Args:
        args: of the run.
        batch: per-sample lists of 1-D tensors over response tokens.
        logits: of the micro-batch, ``[1, T, V]``, or its response rows.
        sum_of_sample_mean: reduces one value per response token to the sum of sample means.
    """
    return policy_loss_of_logits(args, batch, logits, sum_of_sample_mean)
