"""The environment of a training rank and of an engine: what the run sets, with which value, and why.

Guarantees: pure, without torch and Ray, so a dry run prints what a run does. Communicator variables that ranks and
engines share (``SHARED``) have one value on both sides: the user's, an SGLang flag's, or the default here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.arguments.trainer import sends_gpu_handles

CUMEM, NVLS, MNNVL = "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE"
SHARED = (CUMEM, NVLS, MNNVL)
"""Variables that SGLang sets in its process by default; a rank with other values cannot exchange handles with it."""
NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
"""If 1, Ray shows every rank all GPUs of the machine, and all ranks would use the first."""
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Torch reads the first one that is set; every version of torch knows the first name."""
THREADS = "OMP_NUM_THREADS"
MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""JSON of the `ray job submit` configuration; Ray sets it for the driver."""
EXPANDABLE = "expandable_segments"
# cuBLAS and flash attention read these on first use.
DETERMINISTIC_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}
_SYMMETRIC, _SHARDED, _NVLS = (
    "sglang_enable_symm_mem",
    "sglang_enable_kv_cache_sharding",
    "sglang_enable_nccl_nvls",
)


@dataclass(frozen=True)
class Setting:
    """An environment variable, as a dry run shows it.

    Attributes:
        name: name of the variable.
        value: its value; None if the run leaves it unset.
        processes: which processes get it, ``ranks`` or ``ranks and engines``.
        source: where the value comes from: ``env``, a flag, or ``default`` with an optional reason.
    """

    name: str
    value: str | None
    processes: str
    source: str


def of_user(args: Arguments, environment: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """Return the user's value of a variable and its source; None if the user did not set it.

    ``--train-env-vars`` wins over the environment. `ray job submit` starts its driver with one thread; this is Ray's
    choice unless the job's ``env_vars`` name it.
    """
    given = args.train_env_vars or {}
    if name in given:
        return str(given[name]), "--train-env-vars"
    if name not in environment or (name == THREADS and _threads_are_rays(environment)):
        return None
    return environment[name], "env"


def _threads_are_rays(environment: Mapping[str, str]) -> bool:
    return JOB_VARIABLE in environment and THREADS not in variables_of_job(environment)


def variables_of_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the ``env_vars`` of `ray job submit`; Ray sets them for all actors and rejects duplicates."""
    job = json.loads(environment.get(JOB_VARIABLE) or "{}")
    return (job.get("runtime_env") or {}).get("env_vars") or {}


def _given(args: Arguments, *attributes: str) -> str | None:
    """Return the first of these flags that was given."""
    return next((flag_of(name) for name in attributes if getattr(args, name)), None)


def _forced(args: Arguments) -> dict[str, str | None]:
    """Return, for each variable, the given SGLang flag that forces it to 1 in the engine, or None."""
    return {CUMEM: _given(args, _SYMMETRIC), NVLS: _given(args, _SYMMETRIC, _NVLS)}


def shared_settings(args: Arguments, environment: Mapping[str, str]) -> list[Setting]:
    """Return the communicator variables that ranks and engines share; none on a CPU."""
    if args.device != "cuda":
        return []
    both = "ranks and engines"
    results = []
    forced = _forced(args)
    wanted = {CUMEM: _given(args, _SHARDED), NVLS: None}
    for name in (CUMEM, NVLS):
        user = of_user(args, environment, name)
        if flag := forced[name]:
            results.append(Setting(name, "1", both, flag))
        elif user:
            results.append(Setting(name, user[0], both, user[1]))
        else:
            flag = wanted[name]
            results.append(Setting(name, "1" if flag else "0", both, flag or "default, as in SGLang"))
    user = of_user(args, environment, MNNVL)
    if user:
        results.append(Setting(MNNVL, user[0], both, user[1]))
    elif results[0].value == "0" and _engines_span_machines(args):
        results.append(Setting(MNNVL, "0", both, f"default, because {CUMEM} is 0"))
    return results


def _engines_span_machines(args: Arguments) -> bool:
    largest = max(getattr(args, f"{role}_num_gpus_per_engine") for role in ("rollout", "prm"))
    return largest > (args.num_gpus_per_node or largest)


def check_shared(args: Arguments, environment: Mapping[str, str]) -> list[str]:
    """Return one line per variable that an engine would overwrite, so that the two sides would disagree."""
    problems = []
    for name, flag in _forced(args).items() if args.device == "cuda" else ():
        user = of_user(args, environment, name)
        if flag and user and user[0] != "1":
            problems.append(f"{name}={user[0]}: {flag} makes SGLang set it to 1; unset {name}, or remove {flag}")
    return problems


def rank_settings(
    args: Arguments, environment: Mapping[str, str], *, cores: int | None = None, ranks: int | None = None
) -> list[Setting]:
    """Return the variables of a training rank other than its rank numbers.

    Args:
        args: arguments of the run.
        environment: environment of the driver.
        cores: cores that the rank's machine gives its processes; None if not known yet.
        ranks: training ranks on that machine.
    """
    if args.device != "cuda":
        return [Setting(THREADS, "1", "ranks", "default on a CPU")]
    results = [*shared_settings(args, environment), _allocator(args, environment)]
    for threads in (_threads(args, environment, cores, ranks), _connections(args, environment)):
        results += [threads] if threads else []
    return results


def _allocator(args: Arguments, environment: Mapping[str, str]) -> Setting:
    for name in ALLOCATOR:
        if user := of_user(args, environment, name):
            return Setting(name, user[0], "ranks", user[1])
    if sends_gpu_handles(args):
        # The receiver would need ptrace rights on the sender (pidfd_getfd), which containers and Ubuntu deny.
        return Setting(ALLOCATOR[0], None, "ranks", "default, because this transport sends CUDA IPC handles")
    return Setting(ALLOCATOR[0], f"{EXPANDABLE}:True", "ranks", "default")


def _threads(args: Arguments, environment: Mapping[str, str], cores: int | None, ranks: int | None) -> Setting | None:
    """Return the thread count of a rank whose optimizer runs on the CPU; Ray gives every other rank one thread."""
    flag = _given(args, "fsdp_cpu_offload", "optimizer_cpu_offload")
    if not flag:
        return None
    if user := of_user(args, environment, THREADS):
        return Setting(THREADS, user[0], "ranks", user[1])
    value = str(max(1, cores // max(1, ranks))) if cores and ranks else "cores / ranks"
    return Setting(THREADS, value, "ranks", f"{flag}: cores of the machine / its ranks")


def _connections(args: Arguments, environment: Mapping[str, str]) -> Setting | None:
    """Return the hardware queues of a tensor-parallel rank; Megatron-core needs 1 to overlap communication."""
    if args.train_backend != "megatron" or args.tensor_model_parallel_size < 2:
        return None
    user = of_user(args, environment, MAX_CONNECTIONS)
    value, source = user or ("1", "default, because --tensor-model-parallel-size is above 1")
    return Setting(MAX_CONNECTIONS, value, "ranks", source)


def rank_environment(
    args: Arguments,
    environment: Mapping[str, str],
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    cores: int | None = None,
    ranks: int | None = None,
) -> dict[str, str]:
    """Return the variables that a training rank starts with, besides its machine's.

    Args:
        args: arguments of the run.
        environment: environment of the driver.
        rank: rank within its role.
        world_size: number of ranks of the role.
        local_rank: rank on its machine; 0 on CUDA, because Ray shows a rank only its own GPU.
        cores: see :func:`rank_settings`.
        ranks: see :func:`rank_settings`.
    """
    cuda = args.device == "cuda"
    variables = {
        "WORLD_SIZE": str(world_size),
        "RANK": str(rank),
        "LOCAL_RANK": "0" if cuda else str(local_rank),
        "TQDM_DISABLE": "1",
        **({NOSET: "0"} if cuda else {}),
    }
    settings = rank_settings(args, environment, cores=cores, ranks=ranks)
    variables |= {setting.name: setting.value for setting in settings if setting.value is not None}
    if args.deterministic_mode:
        variables |= DETERMINISTIC_ENVIRONMENT
    return variables | {name: str(value) for name, value in args.train_env_vars.items()}


def engine_variables(args: Arguments, environment: Mapping[str, str], *, gives_memory_away: bool) -> dict[str, str]:
    """Return the variables that the run sets for an engine on CUDA; empty on a CPU.

    Args:
        args: arguments of the run.
        environment: environment of the engine's machine, with the driver's forwarded variables.
        gives_memory_away: whether a memory saver manages the engine's memory; it forbids expandable segments.
    """
    results = {
        setting.name: setting.value for setting in shared_settings(args, environment) if setting.value is not None
    }
    if gives_memory_away:
        results |= {name: without_expandable(environment[name]) for name in ALLOCATOR if name in environment}
    return results


def without_expandable(settings: str) -> str:
    """Return settings of torch's allocator (``a:1,b:[x:1,y:2]``) without expandable segments."""
    parts, depth = [""], 0
    for letter in settings:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return ",".join(part for part in parts if part.partition(":")[0].strip() != EXPANDABLE)


def environment_lines(args: Arguments, environment: Mapping[str, str]) -> list[str]:
    """Return one line per variable for a dry run: name, value, processes, source."""
    settings = rank_settings(args, environment)
    rows = [(entry.name, entry.value or "(unset)", entry.processes, entry.source) for entry in settings]
    return [f"{name:<28} {value:<26} {processes:<18} {source}" for name, value, processes, source in rows]
