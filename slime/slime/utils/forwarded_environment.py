"""Which variables of a shell travel to other machines: names and prefixes, so that no key or token leaves by accident.

Guarantees: the head's value holds on every machine, except for what names a machine's own hardware (``OF_MACHINE``), where
a machine that has a value keeps it. A name that sounds like a secret never travels by its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slime.exceptions import ConfigurationError
from slime.tracking.redact import is_secret

# Of the run: read by plugins, libraries and the training runtime on every machine.
FORWARDED = frozenset(
    {
        *("PYTHONPATH", "OMP_NUM_THREADS", "TQDM_DISABLE", "ROLLOUT_LOG_LEVEL"),
        *("HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "SGLANG_USE_CPU_ENGINE"),
        *("OPENCLAW_EVAL_MODE", "ENV_SERVER_URL"),
    }
)
FORWARD_VARIABLE = "SLIME_FORWARD_ENV"
"""Names of further variables, with spaces between; a launcher sets it to those of its method."""
PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "OFI_NCCL_", "RDMAV_", "IBV_")
"""Of communication libraries and their transports: all their variables travel."""
OF_MACHINE = frozenset(
    {
        *("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"),
        *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE"),
    }
)
"""Interfaces, adapters and topology: they differ from machine to machine, so a machine's own value wins over the head's."""
_KEPT = "SLIME_OF_MACHINE_"
# Of the machine itself: what programs need to run there.
_LOCAL = frozenset(
    {
        *("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        *("NVIDIA_DRIVER_CAPABILITIES", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"),
    }
)
# Ray's own: who may join, and how it is tuned.
_RAY = "RAY_"


def forwarded(environment: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Return what the actors of a run get of the driver's ``environment``, on whatever machine they run.

    Args:
        environment: of the driver.
        more: other names to forward (``--forward-env``).

    Raises:
        ConfigurationError: for a name of ``more`` that is not set.
    """
    wanted = list(more)
    missing = [name for name in wanted if name not in environment]
    if missing:
        raise ConfigurationError(f"--forward-env {' '.join(missing)}: not set here; export it, or leave it out")
    wanted += environment.get(FORWARD_VARIABLE, "").split()
    return {name: value for name, value in environment.items() if travels(name) or name in wanted}


def travels(name: str) -> bool:
    """Return whether a variable of the driver goes to all machines without being asked for."""
    return name in FORWARDED or (name.startswith(PREFIXES) and not is_secret(name))


def of_node(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of a machine's ``environment`` Ray and its workers there start with.

    The head's values replace those of the same name in Ray's workers, so a machine's own ``OF_MACHINE`` travel a second
    time under a name of their own; :func:`own_of_machine` reads them.
    """
    kept = {_KEPT + name: environment[name] for name in OF_MACHINE if name in environment}
    return kept | {
        name: value for name, value in environment.items() if travels(name) or name in _LOCAL or name.startswith(_RAY)
    }


def own_of_machine(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the ``OF_MACHINE`` that this machine has values of its own for; for a rank or an engine to start with."""
    return {name: environment[_KEPT + name] for name in OF_MACHINE if _KEPT + name in environment}
