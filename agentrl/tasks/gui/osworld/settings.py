"""The variables of tasks in OSWorld's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundwork.variables import EnvironmentConfig, variable


@dataclass(frozen=True, kw_only=True)
class VmSettings(EnvironmentConfig):
    """Values of the variables; see their help."""

    provider: Literal["docker", "command"] = variable(
        "GUI_PROVIDER_NAME", "docker", "what starts machines: QEMU in a container, or GUI_VM_COMMAND"
    )
    engine: Literal["docker", "podman"] = variable("GUI_VM_ENGINE", "docker", "program that runs containers")
    image: str = variable("GUI_VM_IMAGE", "happysixd/osworld-docker", "image with QEMU, for docker")
    disk: str | None = variable("GUI_PATH_TO_VM", None, "disk of the machine, a qcow2 file, for docker")
    command: str | None = variable("GUI_VM_COMMAND", None, "program that starts, reverts and ends machines of a cloud")
    memory_mib: int = variable("GUI_VM_MEMORY_MIB", 4096, "memory of a machine", minimum=1024)
    cpus: int = variable("GUI_VM_CPUS", 4, "cores of a machine", minimum=1)
    boot_seconds: float = variable("GUI_VM_BOOT_SECONDS", 300.0, "seconds until a machine's server answers", above=0.0)
    task_dir: str | None = variable(
        "GUI_TEST_CONFIG_BASE_DIR", None, "folder with examples/DOMAIN/ID.json", aliases=("GUI_TASK_DIR",)
    )
    train_meta: str | None = variable("GUI_TRAIN_META_PATH", None, "file with the ids to train on, by domain")
    eval_meta: str | None = variable("GUI_EVAL_META_PATH", None, "file with the ids to evaluate on, by domain")
    cache_dir: str | None = variable("GUI_CACHE_DIR", None, "folder with the files that tasks download")
    password: str | None = variable(
        "GUI_CLIENT_PASSWORD",
        None,
        "password of the machine's user, which stands for {CLIENT_PASSWORD} in commands of tasks",
        secret=True,
    )
