"""GPUs and machines of a plan: which role has which GPU, whether it fits, how other machines join, and what this one lacks.

Guarantees: a list of GPUs that a run cannot honour is an error that says what to write instead. A dry run prints the memory
check that a start makes, with the same arguments; on a machine without GPUs it assumes the profile's. What would end a start
in a traceback a minute later is one line here. Nothing is changed, but that a folder is made and removed where the run wants
to write.
"""

from __future__ import annotations

import netrc
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from groundwork.command_line import as_list
from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.launch.flags import NOT_TYPED, VARIABLE_OF_FLAG
from openclaw.launch.methods import recommended
from openclaw.launch.plan import Plan
from openclaw.launch.profiles import Profile
from openclaw.launch.task import TaskConfig, head_address
from openclaw.launch.variables import Resolved, parse_gpus
from openclaw.models.places import broken_model
from openclaw.runtime.process import PORT_PATIENCE_SECONDS, reserve_port
from openclaw.runtime.where import shown_path
from slime.args import Arguments, required
from slime.arguments.algorithm import critic_gpus
from slime.arguments.cluster import OWN_CLUSTER, gpus_of_machine, missing_devices, missing_secret
from slime.arguments.dry_run import MISSING_PATH, missing_prompt_file, of_machine
from slime.arguments.memory_budget import Budget, budget_of
from slime.arguments.memory_budget.budget import Fix, as_flags
from slime.arguments.memory_budget.gpu import gpu_memory
from slime.arguments.validate import usable_gpus, visible_gpus

GPU_ROLES = ("actor", "rollout", "prm")
# The fewest GPUs that a kind of script needs, and how its name ends; the first that fits counts.
GPUS_OF_LARGEST = 8
SCRIPTS_BY_GPUS = ((4, "3_4b_*_lora.sh"), (1, "_24gb.sh"), (0, "tiny_cpu.sh"))


def what_fits(folder: Path, gpus: int) -> str:
    """Return what to type on a machine with this many GPUs: a script of the run's folder for it, or of the usual method's."""
    if gpus >= GPUS_OF_LARGEST:
        return "lower NUM_GPUS, ACTOR_GPUS, ROLLOUT_GPUS or PRM_GPUS"
    ending = next(ending for least, ending in SCRIPTS_BY_GPUS if gpus >= least)
    own = sorted(folder.glob(f"run_*{ending}"))
    script = (own or sorted(recommended().folder.glob(f"run_*{ending}")))[0]
    return f"run the script for {gpus or 'no'} GPU{'s' * (gpus != 1)}: bash {shown_path(script)}"


def split_for(folder: Path, gpus: int) -> str:
    """Return what to type where the roles want more GPUs than there are: a script, or variables that split these GPUs."""
    if gpus >= GPUS_OF_LARGEST:
        return "lower ACTOR_GPUS, ROLLOUT_GPUS or PRM_GPUS, or raise NUM_GPUS"
    fits = what_fits(folder, gpus)
    if gpus < len(GPU_ROLES):
        return fits
    actor = gpus // 2
    rollout, judge = -(-(gpus - actor) // 2), (gpus - actor) // 2
    sizes = f"TP={2 - rollout % 2} PRM_TP={2 - judge % 2}"
    return f"{fits}, or split them with ACTOR_GPUS={actor} ROLLOUT_GPUS={rollout} PRM_GPUS={judge} {sizes}"


class RoleGpus(NamedTuple):
    """GPUs of the roles: how many each has, the listed numbers in the order actor, rollout, judge, and what was decided.

    ``ids`` is None if the user gave counts.
    """

    counts: dict[str, int]
    ids: tuple[int, ...] | None
    notes: tuple[str, ...] = ()


def gpus_of_roles(variables: Mapping[str, Resolved], *, judge: bool = True) -> RoleGpus:
    """Return the GPUs of each role. Without ``judge`` the judge has no GPU, whatever its variable says.

    If the others have lists and the judge's variable is unset, the judge gets the last GPUs of those that serve: half of them,
    rounded down to whole engines.

    Raises:
        ConfigError: only some roles have a list, two roles share a GPU, or the numbers do not ascend.
    """
    entries = [variables[f"{role}_gpus"] for role in GPU_ROLES]
    parsed = [parse_gpus(entry.variable.name, str(entry.value)) for entry in entries]
    counts = {role: count for role, (count, _) in zip(GPU_ROLES, parsed, strict=True)}
    actor, rollout, prm = (numbers for _, numbers in parsed)
    notes: tuple[str, ...] = ()
    if not judge:
        counts["prm"] = 0
        prm = () if actor is not None else None
    elif actor is not None and rollout is not None and prm is None and entries[2].source in NOT_TYPED:
        rollout, prm = _share_with_judge(rollout, variables)
        counts |= {"rollout": len(rollout), "prm": len(prm)}
        last = ",".join(map(str, prm))
        notes = (f"the judge gets GPU {last}, the last of {entries[1].source}, because PRM_GPUS is unset",)
    if actor is None and rollout is None and prm is None:
        return RoleGpus(counts, None)
    if actor is None or rollout is None or prm is None:
        given = ", ".join(f"{entry.variable.name}={entry.value}" for entry in entries)
        raise ConfigError(
            f"{given} mixes counts and lists; write all three as counts or all three as lists (one GPU: 7,)"
        )
    ids = (*actor, *rollout, *prm)
    if len(set(ids)) != len(ids):
        raise ConfigError("ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS share a GPU; list different GPUs for each role")
    if list(ids) != sorted(ids):
        raise ConfigError(
            "the listed GPUs are not in ascending order; give ACTOR_GPUS the lowest numbers, then ROLLOUT_GPUS, then PRM_GPUS"
        )
    return RoleGpus(counts, ids, notes)


def _share_with_judge(
    numbers: tuple[int, ...], variables: Mapping[str, Resolved]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the GPUs that serve the policy and those of the judge: at most half, in whole engines of both."""
    entry, size = variables["rollout_gpus"], int(str(variables["tp"].value))
    of_judge = int(str(variables["prm_tp"].value))
    for count in range(len(numbers) // 2 // of_judge * of_judge, 0, -of_judge):
        if (len(numbers) - count) % size == 0:
            return numbers[:-count], numbers[-count:]
    raise ConfigError(
        f"{entry.source}={entry.value} has no GPU to spare for the judge with TP={size} PRM_TP={of_judge}; list the judge's "
        "in PRM_GPUS, or lower TP and PRM_TP"
    )


def check_listed(args: Arguments) -> None:
    """Raise ConfigError if a run with lists of GPUs has a critic or joins an existing cluster."""
    if critic_gpus(args):
        raise ConfigError(
            "lists of GPUs leave no GPU for a critic; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts"
        )
    if args.ray_address:
        raise ConfigError(
            f"lists of GPUs need a cluster that the run starts itself, but this run joins {args.ray_address}, which assigns GPUs; "
            f"write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts, or add --ray-address {OWN_CLUSTER}"
        )


def as_variables(change: Fix) -> str:
    """Return the fix to type: ``MAX_TOKENS_PER_GPU=8192``, or a flag if no variable sets it."""
    name, value = change.values[0]
    variable = VARIABLE_OF_FLAG.get(name.replace("_", "-"))
    if variable is None:
        return as_flags(change)
    return f"{variable}={1 if value in (True, 'full') else value}"  # full: of recomputing activations


def plan_budget(profile: Profile, args: Arguments, gpu_ids: Sequence[int] | None, problems: Sequence[str]) -> Budget:
    """Return the budget of ``args``; empty without a placement, or if ``problems`` go beyond this machine."""
    if not all(of_machine(problem) for problem in problems):
        return Budget(())
    memory = gpu_memory(args, f"profile {profile.name}", profile.gpu_memory_gb)
    names = tuple(dict.fromkeys(gpu_ids)) if gpu_ids else None
    try:
        return budget_of(args, memory, names=names, spell=as_variables)
    except ConfigError:
        return Budget(())


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_nodes(
    variables: Mapping[str, Resolved], gpu_ids: tuple[int, ...] | None, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return what has no effect, one line each.

    Raises:
        ConfigError: the machines of a run could not find or trust each other, or the run seems to have several machines.
    """
    values = {field: variables[field].value for field in ("nnodes", "node_rank", "master_addr", "node_addr")}
    count, rank, head = int(str(values["nnodes"])), int(str(values["node_rank"])), values["master_addr"]
    if count == 1:
        alone = head in LOOPBACK or variables["nnodes"].source not in NOT_TYPED
        given = {"NODE_RANK": rank, "MASTER_ADDR": None if alone else head, "NODE_ADDR": values["node_addr"]}
        words = [f"{name}={value}" for name, value in given.items() if value]
        if words:
            raise ConfigError(f"{' '.join(words)} is for several machines; set NNODES to their number, or unset it")
        return unused_address(variables)
    problems = []
    if rank >= count:
        problems.append(f"NODE_RANK={rank} with NNODES={count}; machines are numbered 0 to {count - 1}")
    if not head or head in LOOPBACK:
        problems.append(f"NNODES={count} needs MASTER_ADDR, the address at which the others reach the head")
    if gpu_ids is not None:
        problems.append("lists of GPUs are for one machine; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts")
    if problem := missing_secret(environment):
        problems.append(problem)
    if problems:
        raise ConfigError(as_list("several machines", problems))
    return ()


def unused_address(variables: Mapping[str, Resolved]) -> tuple[str, ...]:
    """Return a line about the head's address if the user set one for a run on one machine."""
    entries = [variables[field] for field in ("master_addr", "master_port")]
    words = [f"{entry.variable.name}={entry.value}" for entry in entries if entry.source not in NOT_TYPED]
    return (f"{' '.join(words)} has no effect on one machine, which no other joins",) if words else ()


def check_rank(args: Arguments, variables: Mapping[str, Resolved]) -> tuple[str, ...]:
    """Return what has no effect in a run on a task, one line each.

    Raises:
        ConfigError: this machine is none of those that play and train a task, or has no head to join.
    """
    values = {field: variables[field].value for field in ("node_rank", "master_addr", "master_port")}
    machines, rank = args.num_nodes, int(str(values["node_rank"]))
    if not rank:
        return unused_address(variables) if machines == 1 else ()
    if machines == 1:
        raise ConfigError(f"NODE_RANK={rank} is for several machines; set NNODES to their number, or unset it")
    if rank >= machines:
        raise ConfigError(
            f"NODE_RANK={rank}, but this run has machines 0 to {machines - 1}; correct one of NNODES, NODE_RANK"
        )
    if not values["master_addr"] and args.head_address == head_address(values):
        raise ConfigError(f"NODE_RANK={rank} needs MASTER_ADDR, the address at which the others reach the head")
    return ()


def node_command(args: Arguments, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the command of a machine other than the head; it honours flags given after the script's name."""
    own = ("--node-address", str(values["node_addr"])) if values["node_addr"] else ()
    return (
        *(sys.executable, "-m", "slime.ray.worker_node"),
        *(
            "--head-address",
            required("--head-address", args.head_address),
            "--num-gpus",
            str(args.num_gpus_per_node),
            "--device",
            args.device,
        ),
        *("--timeout", f"{args.node_timeout:g}"),
        *("--log", str(Path(args.run_dir) / "logs" / f"ray-node-{values['node_rank']}.log"), *own),
    )


ON_CPU = ", or add --device cpu"
"""What a program of the trainer advises where CUDA does not work; a plan for GPUs would be unusably slow."""
WANDB_HOST = "api.wandb.ai"
WANDB_KEYS = ("WANDB_API_KEY", "WANDB_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def machine_problems(plan: Plan) -> list[str]:
    """Return why this machine, as it is now, cannot run the plan, other than for its GPUs; one line each."""
    if plan.variables["node_rank"].value:
        return []  # the head has the models, the folders and the keys
    return [*_models(plan), *_folders(plan.args), *_tracker(plan.args, plan.environment)]


def missing_rows(plan: Plan) -> list[str]:
    """Return a line if the rows of tasks that a run is given are not on this machine; those that it writes itself come later."""
    own, args = plan.own, plan.args
    if not isinstance(own, TaskConfig) or plan.variables["node_rank"].value:
        return []
    written = own.prompt_data is None and args.prompt_data == str(own.file("train", Path(args.run_dir)))
    return [] if written else missing_prompt_file(args)


def _models(plan: Plan) -> Iterator[str]:
    """Yield a line for each folder that is not a model; a missing folder is a problem of the flags."""
    args, service = plan.args, plan.profile.service
    paths = {"HF_CKPT": args.hf_checkpoint, "REF_LOAD": args.ref_load if args.kl_loss_coef and not service else None}
    if (isinstance(plan.own, TaskConfig) or plan.own.asks_judge) and not service:
        paths["PRM_MODEL_PATH"] = args.prm_model_path
    seen: set[str] = set()
    for variable, path in paths.items():
        if not path or path in seen or not Path(path).exists():
            continue
        seen.add(path)
        if why := broken_model(Path(path), tokenizer=variable != "REF_LOAD", weights=not service):
            source = plan.variables[variable.lower()].source
            yield f"{source if source in os.environ else variable}={path} is not a model: {why}"


def _folders(args: Arguments) -> Iterator[str]:
    """Yield a line for each folder that a run could not write."""
    for variable, folder in (("SAVE_CKPT", args.save), ("RUN_DIR", args.run_dir)):
        if not folder:
            continue
        whole = Path(folder).absolute()
        there = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
        try:
            os.rmdir(tempfile.mkdtemp(prefix=".write-test-", dir=there))
        except OSError as error:
            far = there == Path(there.anchor)  # another machine may have a disk there
            why = f"{MISSING_PATH} can be made below {there}" if far else f"cannot write {there}"
            yield f"{variable}={folder}: {why} ({error.strerror}); name another folder"


def _tracker(args: Arguments, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line if a run would log to Weights & Biases without a key."""
    if not args.use_wandb or args.wandb_mode != "online":
        return
    if args.wandb_key or any(environment.get(name) for name in WANDB_KEYS):
        return
    url = args.wandb_host or environment.get("WANDB_BASE_URL") or f"https://{WANDB_HOST}"
    if not _in_netrc(urlsplit(url).hostname or url, environment):
        yield (
            "USE_WANDB=1 without a key of Weights & Biases; set WANDB_API_KEY, type `wandb login`, or log to a folder with "
            "--wandb-mode offline"
        )


def _in_netrc(host: str, environment: Mapping[str, str]) -> bool:
    """Return whether ``wandb login`` left a key for a host."""
    home = Path(environment.get("HOME") or Path.home())
    for file in (environment.get("NETRC"), home / ".netrc", home / "_netrc"):
        try:
            if file and netrc.netrc(str(file)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            continue
    return False


def device_warnings(plan: Plan) -> list[str]:
    """Return why the GPUs of this machine cannot run a plan, one line each, with the script that fits them."""
    problems = missing_devices(plan.args, plan.environment)
    fits = f", or {what_fits(plan.folder, 0)}"
    return [problem.replace(ON_CPU, fits) for problem in problems]


def check_gpus(plan: Plan) -> None:
    """Raise ConfigError if the machine lacks GPUs or CUDA does not work; skip the check in an existing cluster."""
    if plan.args.device != "cuda" or plan.args.ray_address:
        return
    if plan.gpu_ids is not None and not plan.args.share_gpu:
        result, needed = visible_gpus(), max(plan.gpu_ids) + 1
    else:
        result, needed = usable_gpus(plan.environment), gpus_of_machine(plan.args)
    if result < needed:
        raise ConfigError(
            f"this run needs {needed} GPUs, but the machine has {result}; {what_fits(plan.folder, result)}"
        )
    if problems := missing_devices(plan.args, plan.environment):
        raise ConfigError(as_list("this machine cannot run it", problems))


def port_of_run(plan: Plan) -> AbstractContextManager[object]:
    """Reserve the gateway's port for the program that this process becomes; a run that resumes waits for its predecessor to end.

    Raises:
        OSError: another process listens on the port, or is starting and will.
    """
    if plan.variables["node_rank"].value or plan.runtime is None:
        return nullcontext()  # the gateway runs on the head, and a task has none
    source = plan.runtime_sources["PORT"]
    setting = source if source in RuntimeVariables.declared("port").names else "PORT"
    patience = PORT_PATIENCE_SECONDS if plan.args.resume else 0.0
    reserved = reserve_port(plan.runtime.host, plan.runtime.port, patience, setting=setting)
    reserved.set_inheritable(True)
    return reserved
