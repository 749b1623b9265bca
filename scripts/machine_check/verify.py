"""Check a finished CUDA environment from inside: it imports, torch is a CUDA build and reaches the GPUs.

Runs with the environment's own Python.
"""

from __future__ import annotations

import importlib

from machine_check.checks import MIN_DRIVER
from machine_check.facts import read_driver

MODULES = ("torch", "sglang", "sglang_router", "ray", "transformers", "peft", "megatron.core", "fastapi")


def failures(with_gpu: bool) -> list[str]:
    """Return what is wrong, one line each; ``with_gpu`` asks torch for its devices too."""
    results: list[str] = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:
            results.append(f"cannot import {name}: {error}; delete .venv and run scripts/setup.sh gpu again")
    if results:
        return results
    import torch

    if torch.version.cuda is None:
        return [f"torch {torch.__version__} is not a CUDA build; delete .venv and run scripts/setup.sh gpu again"]
    if with_gpu and not torch.cuda.is_available():
        driver = read_driver()
        seen = driver.failure or f"driver {driver.version}"
        return [
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no usable GPU with {seen}; "
            f"it needs driver {MIN_DRIVER} or newer and a GPU in CUDA_VISIBLE_DEVICES"
        ]
    return []


def summary() -> str:
    """Return one line about torch and the GPUs it sees."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {len(names)} GPUs {sorted(set(names))}"
