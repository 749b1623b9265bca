"""The command line and the environment of a vLLM engine, from the run's arguments.

Guarantee: pure; an engine starts with exactly :func:`server_command`. ``--sglang-`` flags that mean the same in vLLM are
translated (`slime.arguments.vllm`); the words of ``--vllm-options`` come last.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from slime.args import Arguments
from slime.arguments.placement import EngineSpec, tensor_parallel_size
from slime.arguments.vllm import FIXED_ON_CPU, MAX_RANKS, OPTIONS, installed_packages
from slime.backends.sglang_utils.server_args import HELD_PEOPLE, IN_BATCH_PEOPLE, command_line, model_path
from slime.backends.vllm_utils.worker import WeightLoading
from slime.weight_sync.people import people_folder

SERVER_MODULE = "slime.backends.vllm_utils.server"
BEHIND = "--"
"""Ends the translator's own options; the words after it are vLLM's."""
ADAPTERS_IN_BATCH, ADAPTERS_HELD = 4, 8
"""Adapters that a batch may have, the one of zeros among them, and those that vLLM keeps in main memory. It reads others again."""
OF_PEOPLE = {"sglang_max_loras_per_batch": IN_BATCH_PEOPLE, "sglang_max_loaded_loras": HELD_PEOPLE}
"""The same with an adapter per person: arguments, and their defaults."""
CPU_OPTIONS: dict[str, object] = {"dtype": "float32", "enforce_eager": True}
CPU_VARIABLES = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""Set unless the user did: GiB of the key/value cache, and threads that other processes' cores are not taken by."""


def server_command(args: Arguments, spec: EngineSpec, *, port: int, cpu: bool) -> list[str]:
    """Return the command of the translator, which starts vLLM with the words after ``--``."""
    adapters = spec.role == "policy" and args.update_weight_mode == "adapter"
    people = spec.role == "policy" and args.adapter_per_person
    in_batch, held = ADAPTERS_IN_BATCH, ADAPTERS_HELD
    if people:
        in_batch, held = (int(getattr(args, name) or default) for name, default in OF_PEOPLE.items())
    ranks = 1 if cpu else tensor_parallel_size(args, spec.num_gpus)
    model = model_path(args, spec.role)
    options: dict[str, object] = dict(CPU_OPTIONS) if cpu else {}
    for attribute, option in OPTIONS.items():
        value = getattr(args, attribute)
        if value is not None and not (cpu and attribute in FIXED_ON_CPU):
            options[option] = value
    if args.weight_update_mode == "in_place" and spec.role == "policy":
        # The prefix cache cannot be emptied while requests keep their prefix, but old prefixes must not serve new requests.
        options["no_enable_prefix_caching"] = True
    if adapters:
        options |= {
            "enable_lora": True,
            "max_lora_rank": next(rank for rank in MAX_RANKS if rank >= args.lora_rank),
            "max_loras": in_batch,
            # The shelf does not count the one of zeros.
            "max_cpu_loras": max(in_batch, held + 1) if people else held,
            # Otherwise vLLM wraps the output layer, and a scored prompt beside other requests ends it (log/vllm.md).
            "lora_target_modules": args.lora_target_modules,
        }
    options |= {
        "model": model,
        "served_model_name": "policy",
        "seed": args.seed + 1000 * (spec.role == "prm") + spec.index,
        "tensor_parallel_size": ranks,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": -1,
        "structured_outputs_config": '{"backend": "xgrammar"}',
        "worker_extension_cls": f"{WeightLoading.__module__}.{WeightLoading.__name__}",
        "enable_scale_out": True,
        "enable_prompt_tokens_details": True,
        "return_tokens_as_token_ids": True,
        "disable_uvicorn_access_log": True,
    }
    own: dict[str, object] = {"host": spec.host, "port": port, "model": model, "ranks": ranks}
    if adapters:
        own["adapters"] = args.lora_target_modules
    if people:
        own |= {"people": str(people_folder(args.run_dir).absolute()), "held_adapters": held}
    vllm = [args.vllm_python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [
        *(sys.executable, "-m", SERVER_MODULE),
        *command_line(own),
        *(BEHIND, *vllm, *command_line(options), *shlex.split(args.vllm_options or "")),
    ]


def vllm_environment(args: Arguments, base: Mapping[str, str], *, cpu: bool) -> dict[str, str]:
    """Return the environment of translator and vLLM; ``base``: that of an SGLang engine's process.

    vLLM's interpreter finds this package beside its own, and what ``scripts/setup_vllm.sh`` installed, if it is the run's.
    """
    # With a key vLLM would refuse the translator, which has none; only its owner reaches vLLM's socket.
    environment = {name: value for name, value in base.items() if name != "VLLM_API_KEY"}
    paths = [str(Path(__file__).resolve().parents[3])]
    packages = installed_packages()
    if args.vllm_python is None and packages is not None:
        paths.insert(0, str(packages))
    environment["SLIME_VLLM_PATH"] = os.pathsep.join(paths)
    environment |= {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_PLUGINS": "",
    }
    if cpu:
        environment = CPU_VARIABLES | environment
    return environment
