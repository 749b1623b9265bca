"""Start a training run from Python.

Guarantees: the run is the ordinary train script, with its checks, its own Ray cluster and its clean stop. Only the
process started here is ever ended: on an exception the run is first asked to stop. It never outlives the process that
started it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.process import spawn
from slime.arguments.model_shape import SLIME_FOLDER, shape_flags

STOP_SECONDS = 600.0
"""Seconds a run may take to stop, including a checkpoint, before it is killed."""


@dataclass
class ExecuteTrainConfig:
    """Settings that differ between machines.

    Attributes:
        num_nodes: machines of the run; more than one needs ``--head-address`` or ``--ray-address`` among the arguments.
        extra_env_vars: variables of the run, as a mapping or as text ``A=1 B=2``.
    """

    num_nodes: int = 1
    extra_env_vars: Mapping[str, Any] | str = field(default_factory=dict)


def execute_train(
    train_args: str,
    num_gpus_per_node: int,
    megatron_model_type: str | None,
    train_script: str = "train.py",
    before_ray_job_submit: Callable[[], Any] | None = None,
    extra_env_vars: Mapping[str, Any] | None = None,
    config: ExecuteTrainConfig | None = None,
) -> None:
    """Start a training run and return once it has succeeded.

    Args:
        train_args: flags in shell syntax; they override the flags derived from the other arguments.
        num_gpus_per_node: GPUs of each machine.
        megatron_model_type: file in ``slime/scripts/models`` whose shape is checked against the checkpoint, or None.
        train_script: file in the ``slime`` folder, or an absolute path.
        before_ray_job_submit: called after all checks, right before the run starts.
        extra_env_vars: variables of the run; they override those of ``config``.
        config: settings of the machine.

    Raises:
        ConfigError: the script, the model shape or the variables are invalid.
        subprocess.CalledProcessError: the run failed.
    """
    config = config or ExecuteTrainConfig()
    variables = {**_variables(config.extra_env_vars), **_variables(extra_env_vars or {})}
    environment = {**os.environ, **variables}
    inherited = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(SLIME_FOLDER), *inherited]))
    script = SLIME_FOLDER / train_script
    if not script.is_file():
        raise ConfigError(f"there is no train script {script}; use train.py, train_async.py or an absolute path")
    flags = [*shape_flags(megatron_model_type, environment), "--num-gpus-per-node", str(num_gpus_per_node)]
    if config.num_nodes > 1:
        flags += ["--num-nodes", str(config.num_nodes)]
    command = [sys.executable, str(script), *flags, *shlex.split(train_args)]
    if before_ray_job_submit is not None:
        before_ray_job_submit()
    run = spawn(command, env=environment, name=script.name)
    try:
        status = run.wait()
    except BaseException:
        run.stop(STOP_SECONDS)
        raise
    run.kill()
    if status:
        raise subprocess.CalledProcessError(status, command)


def _variables(given: Mapping[str, Any] | str) -> dict[str, str]:
    """Return the variables as a dict of text; raise ConfigError for text that is not ``A=1 B=2``."""
    if not isinstance(given, str):
        return {name: str(value) for name, value in given.items()}
    pairs = [word.partition("=") for word in shlex.split(given)]
    wrong = [name for name, sign, _ in pairs if not (name and sign)]
    if wrong:
        raise ConfigError(f"extra_env_vars: {wrong[0]!r} is not an assignment; write NAME=VALUE")
    return {name: value for name, _, value in pairs}
