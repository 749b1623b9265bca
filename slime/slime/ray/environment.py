"""Which variables of a shell travel to other machines: a list of names, so that no key or token leaves by accident."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slime.exceptions import ConfigurationError

# Of the run: read by plugins, libraries and the training runtime on every machine.
FORWARDED = frozenset(
    {
        *("PYTHONPATH", "OMP_NUM_THREADS", "TQDM_DISABLE", "ROLLOUT_LOG_LEVEL"),
        *("HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "SGLANG_USE_CPU_ENGINE"),
        *("OPENCLAW_EVAL_MODE", "OPENCLAW_COMBINE_W_RL", "OPENCLAW_COMBINE_W_OPD", "ENV_SERVER_URL"),
        *(
            "NCCL_DEBUG",
            "NCCL_SOCKET_IFNAME",
            "NCCL_IB_HCA",
            "NCCL_IB_DISABLE",
            "NCCL_IB_GID_INDEX",
            "NCCL_NVLS_ENABLE",
        ),
        *("NCCL_P2P_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_TIMEOUT", "GLOO_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT"),
    }
)
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
    return {name: value for name, value in environment.items() if name in FORWARDED or name in wanted}


def of_node(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of a machine's ``environment`` Ray and its workers there start with."""
    return {
        name: value
        for name, value in environment.items()
        if name in FORWARDED or name in _LOCAL or name.startswith(_RAY)
    }
