"""Compares a plan with this machine: models, folders, keys, GPUs, the gateway's port.

Guarantees: what would end a start in a traceback a minute later is one line here, with what to type. Nothing is changed,
but that a folder is made and removed where the run wants to write.
"""

from __future__ import annotations

import netrc
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from groundwork.command_line import as_list
from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.launch.gpus import what_fits
from openclaw.launch.plan import Plan
from openclaw.launch.task import TaskConfig
from openclaw.models.places import broken_model
from openclaw.runtime.process import PORT_PATIENCE_SECONDS, reserve_port
from slime.args import Arguments
from slime.arguments.cluster import gpus_of_machine, missing_devices
from slime.arguments.dry_run import MISSING_PATH, missing_prompt_file
from slime.arguments.validate import usable_gpus, visible_gpus

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
    args = plan.args
    paths = {"HF_CKPT": args.hf_checkpoint, "REF_LOAD": args.ref_load if args.kl_loss_coef else None}
    if isinstance(plan.own, TaskConfig) or plan.own.asks_judge:
        paths["PRM_MODEL_PATH"] = args.prm_model_path
    seen: set[str] = set()
    for variable, path in paths.items():
        if not path or path in seen or not Path(path).exists():
            continue
        seen.add(path)
        own_tokenizer = variable == "REF_LOAD" or (variable == "HF_CKPT" and plan.runtime and plan.runtime.tokenizer)
        if why := broken_model(Path(path), tokenizer=not own_tokenizer):
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
