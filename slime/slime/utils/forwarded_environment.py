"""Which shell variables are forwarded to other machines: names and prefixes, so that no key or token leaks by accident.

Guarantees: the head's value applies on every machine, except for variables that name a machine's own hardware
(``OF_MACHINE``), where the machine's own value wins. A name that looks like a secret is never forwarded by its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from groundwork.exceptions import ConfigError
from slime.tracking.redact import is_secret
from slime.utils.kernel_caches import FOLDERS, VARIABLE

# Variables of the run, read by plugins, libraries and the training runtime on every machine.
FORWARDED = frozenset(
    {
        *("PYTHONPATH", "OMP_NUM_THREADS", "TQDM_DISABLE", "ROLLOUT_LOG_LEVEL"),
        *("HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "SGLANG_USE_CPU_ENGINE"),
        *("OPENCLAW_EVAL_MODE", "ENV_SERVER_URL"),
    }
)
FORWARD_VARIABLE = "SLIME_FORWARD_ENV"
"""Space-separated names of further variables; a launcher sets it to those of its method."""
PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "OFI_NCCL_", "RDMAV_", "IBV_")
"""Communication libraries and their transports: all their variables are forwarded."""
OF_MACHINE = frozenset(
    {
        *("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"),
        *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE"),
    }
)
"""Interfaces, adapters and topology, which differ between machines: a machine's own value overrides the head's."""
_KEPT = "SLIME_OF_MACHINE_"
# Variables of the machine that programs need to run there.
_LOCAL = frozenset(
    {
        *("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        *("NVIDIA_DRIVER_CAPABILITIES", "XDG_CACHE_HOME", VARIABLE, *FOLDERS),
    }
)
# Ray's own: authentication and tuning.
_RAY = "RAY_"


def forwarded(environment: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Return the part of the driver's ``environment`` that the run's actors get on every machine.

    Args:
        environment: environment of the driver.
        more: further names to forward (``--forward-env``).

    Raises:
        ConfigError: a name in ``more`` is not set.
    """
    wanted = list(more)
    missing = [name for name in wanted if name not in environment]
    if missing:
        raise ConfigError(f"--forward-env {' '.join(missing)}: not set here; export it, or remove it")
    wanted += environment.get(FORWARD_VARIABLE, "").split()
    return {name: value for name, value in environment.items() if travels(name) or name in wanted}


def travels(name: str) -> bool:
    """Return whether a driver variable is forwarded to all machines by default."""
    return name in FORWARDED or (name.startswith(PREFIXES) and not is_secret(name))


def of_node(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a machine's ``environment`` that Ray and its workers there get.

    Ray's workers get the head's values for equal names. A machine's own ``OF_MACHINE`` values are therefore also passed
    under a second name; :func:`own_of_machine` reads them.
    """
    kept = {_KEPT + name: environment[name] for name in OF_MACHINE if name in environment}
    return kept | {
        name: value for name, value in environment.items() if travels(name) or name in _LOCAL or name.startswith(_RAY)
    }


def own_of_machine(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this machine's own ``OF_MACHINE`` values, for a rank or an engine to start with."""
    return {name: environment[_KEPT + name] for name in OF_MACHINE if _KEPT + name in environment}
