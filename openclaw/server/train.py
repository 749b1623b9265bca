"""Trains a method on the turns of a folder, then exits: the third of the processes serve, collect, train.

Guarantees: this is the ordinary run of `openclaw.launch`, with judge and checkpoints. On a folder of collected turns it
trains the folder's ledger, which may grow meanwhile, and ends when no turn is left to judge and too few samples are left
for a batch, or on Ctrl-C, and saves first. A run's folder, a ledger that a run has trained, and logs are only read: they
are the new run's ``DATA_PATH``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from groundwork.command_line import CommandLine, existing_folder
from groundwork.exceptions import ConfigError
from groundwork.process import ChildProcess, StopRequested, spawn, watch_lifeline
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.launch.guides import words_of_texts
from openclaw.launch.logs import add_log_options, log_words
from openclaw.launch.methods import methods_of, recommended
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from openclaw.launch.variables import LaunchVariables, parse_gpus
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import counted
from openclaw.offline.reading import read_logs
from openclaw.runs.folder import open_run
from openclaw.runtime.where import LEDGER_NAME, find_ledger, own_import_paths, shown_path
from openclaw.server.collect import recorded_model
from openclaw.server.options import lengths_of
from slime.arguments.validate import visible_gpus

MIN_GPUS = 3
POLL_SECONDS = 1.0
LOOKS = 3
"""Number of consecutive idle checks before the run ends, because work may follow a verdict and its samples."""
END_SECONDS = 600.0
CORRECTED = ("--max-weight-staleness", "1", "--stale-samples", "correct")
"""From the second step on, recorded turns are older than the weights; the loss weighs them instead of dropping them."""
DRY_RUN = "--dry-run"
HF_FOLDER = "hf-{rollout_id}"
RUN_NAME = "run"
DEFAULTS = {RuntimeVariables.declared("port"): "0", LaunchVariables.declared("num_rollout"): "100000000"}
"""What a job without them gets: any free port, and no bound on its steps."""


@dataclass(frozen=True)
class Job:
    """One training: the launcher's arguments and variables.

    Attributes:
        profile: of the machine.
        method: the method.
        variables: of the launcher.
        extra: flags of the trainer.
        own: the launcher's options about logs.
    """

    profile: str
    method: str
    variables: Mapping[str, str]
    extra: tuple[str, ...]
    own: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command to run."""
        return [
            sys.executable,
            "-m",
            "openclaw.launch",
            "--profile",
            self.profile,
            "--method",
            self.method,
            *self.own,
            *self.extra,
        ]


def gpu_variables(gpus: str) -> tuple[str, dict[str, str]]:
    """Return profile and placement for ``--gpus`` (``cpu``, a count or a list); half of the GPUs train.

    Raises:
        ConfigError: if there are too few.
    """
    if gpus == "cpu":
        return "tiny_cpu", {}
    count, ids = parse_gpus("--gpus", gpus)
    if count < MIN_GPUS:
        raise ConfigError(
            f"--gpus {gpus} is too few: trainer, policy and judge need a GPU each; name {MIN_GPUS} or more, or cpu"
        )
    serving = max(1, count // 4)
    counts = (count - 2 * serving, serving, serving)
    if ids is None:
        words = [str(number) for number in counts]
    else:
        ordered, words = sorted(ids), []
        for number in counts:
            words.append(",".join(map(str, ordered[:number])) + ("," if number == 1 else ""))
            ordered = ordered[number:]
    placement = dict(zip(("ACTOR_GPUS", "ROLLOUT_GPUS", "PRM_GPUS"), words, strict=True))
    return "gpu8", {"NUM_GPUS": str(count), "TP": str(serving), "PRM_TP": str(serving), **placement}


def make_job(arguments: argparse.Namespace, extra: Sequence[str], environment: Mapping[str, str]) -> Job:
    """Return the training job.

    Raises:
        ConfigError: if there are too few GPUs, or an option about logs on a folder of collected turns.
    """
    save, folder = arguments.checkpoint_dir.absolute(), arguments.rollout_dir.absolute()
    profile, placement = gpu_variables(arguments.gpus)
    collected = is_collected(folder, save)
    own = tuple(log_words(arguments))
    if collected and own:
        raise ConfigError(f"{own[0]} is about logs, and --rollout-dir {arguments.rollout_dir} holds collected turns")
    if not collected and arguments.keep_running:
        own = (*own, "--serve-when-done")
    source = {"OPENCLAW_LEDGER": str(folder / LEDGER_NAME)} if collected else {"DATA_PATH": str(folder)}
    variables = {
        **placement,
        **source,
        "SAVE_CKPT": str(save),
        "RUN_DIR": str(save / RUN_NAME),
        "PYTHONPATH": os.pathsep.join(own_import_paths()),
    }
    for variable, default in DEFAULTS.items():
        if not variable.is_set(environment):
            variables[variable.name] = default
    if model := arguments.model_path or model_of(arguments.rollout_dir, environment):
        variables |= LaunchVariables.declared("hf_ckpt").setting(model)
        if placement:  # the CPU's profile has its own lengths
            variables |= lengths_of_job(model, environment)
    flags = (*(CORRECTED if collected else ()), "--save-hf", str(save / HF_FOLDER), *extra)
    return Job(profile, method_names()[arguments.method], variables, flags, own)


def environment_of(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the run: those of the job instead of the caller's, under any of their names."""
    declared = (*LaunchVariables.variables(), *RuntimeVariables.variables())
    decided = {name for variable in declared if variable.name in job.variables for name in variable.names}
    return {name: value for name, value in environment.items() if name not in decided} | dict(job.variables)


def lengths_of_job(model: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the lengths that nobody set, as the model's context allows; a reply takes at most half of it."""
    lengths, reply = lengths_of(model, environment), LaunchVariables.declared("max_response_length")
    if "CONTEXT_LENGTH" in lengths and not reply.is_set(environment):
        half = int(lengths["CONTEXT_LENGTH"]) // 2
        lengths |= reply.setting(str(min(LaunchVariables.max_response_length, half)))
    return lengths


def model_of(folder: Path, environment: Mapping[str, str]) -> str | None:
    """Return the checkpoint that sampled the turns of a folder; None if a variable names one, or nobody knows.

    Raises:
        ConfigError: it is not on this machine.
    """
    if LaunchVariables.declared("hf_ckpt").is_set(environment):
        return None
    model = recorded_model(folder)
    if model is None and find_ledger(folder):
        model = open_run(folder).arguments.get("hf_checkpoint")
    if model and not Path(model).is_dir():
        raise ConfigError(
            f"the turns in {folder} were sampled by {model}, which is not a folder of this machine; "
            "name a copy of it with --model-path"
        )
    return model


def is_collected(folder: Path, save: Path) -> bool:
    """Return whether a folder holds the turns of a collector, or of an earlier job with these checkpoints.

    Any other ledger with steps is the record of a run, which a second training must not change.
    """
    if not (folder / LEDGER_NAME).is_file():
        return False
    if save == folder or (save / RUN_NAME).is_dir():
        return not (save / LEDGER_NAME).is_file() or save == folder
    with closing(Ledger(folder / LEDGER_NAME)) as ledger:
        return not ledger.views.step_records()


def method_names() -> dict[str, str]:
    """Return the method of each ``--method`` value: its own name, and its names in guides."""
    configs = [method.config for method in methods_of() if not method.variant]
    return {config.name: config.name for config in configs} | {
        config.guide_name: config.name for config in configs if config.guide_name
    }


def nothing_left(ledger: Ledger, batch_size: int) -> bool:
    """Return whether nothing is left to judge or train; asks in the order in which a turn moves, so that none slips by."""
    counts = ledger.views.counts()
    return (
        not counts["turns"].get("pending")
        and not ledger.judging.finished_sessions(1)
        and ledger.samples.ready_count() < batch_size
        and not ledger.samples.untrained_leases()
    )


def main(argv: Sequence[str] | None = None, prog: str = "train_async.py") -> int:
    """Train until no batch is left; return the run's exit status."""
    parser = CommandLine(
        prog=prog,
        description="Judge and train the turns that collect_rollouts.py stored in a folder, those of a finished run, or "
        "logs (instructions/offline_training.md). Other flags go to the trainer.",
    )
    add = parser.add_argument
    add(
        "--rollout-dir",
        required=True,
        type=existing_folder,
        metavar="D",
        help="folder that collect_rollouts.py writes, a run's folder, or a folder of logs",
    )
    add("--checkpoint-dir", required=True, type=Path, metavar="D", help="folder for checkpoints and logs")
    usual = recommended().config.name
    add("--method", choices=sorted(method_names()), default=usual, help="learning method (default: %(default)s)")
    add("--gpus", default="8", help="a count, a list 0,1,2,3, or cpu (default: %(default)s)")
    add(
        "--model-path",
        metavar="P",
        help="the checkpoint that was served (variable HF_CKPT; default: the one that the folder names)",
    )
    add("--keep-running", action="store_true", help="wait for further turns instead of exiting; with logs: serve")
    add_log_options(parser)
    arguments, extra = parser.parse_known_args(argv)
    watch_lifeline()
    try:
        job = make_job(arguments, extra, os.environ)
        environment = environment_of(job, os.environ)
        plan = make_plan(
            Recipe(job.method, None, PROFILES[job.profile]), [*words_of_texts(os.environ), *job.extra], environment
        )
        if "DATA_PATH" in job.variables:
            read_logs(arguments.rollout_dir)
            check_gpus(arguments.gpus, plan, job)
            return _run_to_its_end(job, environment)
        with closing(Ledger(job.variables["OPENCLAW_LEDGER"])) as ledger:
            return _train(job, environment, ledger, plan, arguments)
    except (ConfigError, LedgerError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2


def check_gpus(gpus: str, plan: Plan, job: Job) -> None:
    """Raise ConfigError if the machine lacks GPUs; the launcher would name a script, which does not train the folder."""
    if plan.args.device != "cuda" or plan.args.ray_address or DRY_RUN in job.extra:
        return
    needed = plan.gpus_needed if plan.gpu_ids is None else max(plan.gpu_ids) + 1
    if needed > (result := visible_gpus()):
        fits = str(result) if result >= MIN_GPUS else "cpu"
        raise ConfigError(f"--gpus {gpus}: the machine has {counted(result, 'GPU')}; write --gpus {fits}")


def too_few(ready: int, to_judge: int, batch_size: int, ledger: str) -> str:
    """Return why there is no batch, and what to type.

    Args:
        ready: samples.
        to_judge: turns and ended sessions that may give a sample each.
        batch_size: samples that a batch needs.
        ledger: the file.
    """
    why = f"{counted(ready, 'sample')} ready"
    if to_judge:
        why += f" and {to_judge} more at most, once a judge has read the rest"
    why += f", but a batch needs {batch_size}"
    if ready or to_judge:
        return (
            f"{why}; collect more turns (--keep-running waits for them), or set BATCH_SIZE={ready + to_judge} or less"
        )
    return f"{why}; see why turns gave none: openclaw-rl report {shown_path(ledger)}"


def left_to_judge(ledger: Ledger, most: int) -> int:
    """Return how many samples may still come, up to ``most``: one of each turn to judge and of each session to close."""
    return ledger.views.counts()["turns"].get("pending", 0) + len(ledger.judging.finished_sessions(most))


def _train(job: Job, environment: Mapping[str, str], ledger: Ledger, plan: Plan, arguments: argparse.Namespace) -> int:
    """Run the job until nothing is left to do.

    Raises:
        ConfigError: the machine lacks GPUs.
    """
    batch_size, keep_running = plan.args.rollout_batch_size, arguments.keep_running
    ready, to_judge = ledger.samples.ready_count(), left_to_judge(ledger, batch_size)
    if ready + to_judge < batch_size and not ledger.samples.untrained_leases():
        why = too_few(ready, to_judge, batch_size, str(ledger.path))
        if not keep_running:
            print(f"nothing to train: {why}")
            return 0
        print(f"waiting for turns: {why}", flush=True)
    check_gpus(arguments.gpus, plan, job)
    stop = StopRequested().install()
    child = spawn(job.command, env=environment, name="training")
    looks = 0
    while child.alive() and not stop.wait(POLL_SECONDS) and (keep_running or looks < LOOKS):
        looks = looks + 1 if nothing_left(ledger, batch_size) else 0
    status = _end(child)
    if status == 0 and DRY_RUN not in job.extra:
        steps = ledger.views.counts()["steps"]
        if steps:
            print(f"{counted(steps, 'step')} trained; checkpoints are in {environment['SAVE_CKPT']}", flush=True)
        else:
            why = too_few(ledger.samples.ready_count(), 0, batch_size, str(ledger.path))
            print(f"0 steps trained: {why}", flush=True)
    return stop.exit_code or status


def _run_to_its_end(job: Job, environment: Mapping[str, str]) -> int:
    """Run a job that ends by itself, unless a signal ends it."""
    stop = StopRequested().install()
    child = spawn(job.command, env=environment, name="training")
    while child.alive() and not stop.wait(POLL_SECONDS):
        pass
    status = _end(child)
    return stop.exit_code or status


def _end(child: ChildProcess) -> int:
    """Stop the run; it saves and ends its own processes."""
    if child.alive():
        os.kill(child.pid, signal.SIGTERM)
    try:
        return child.wait(END_SECONDS)
    finally:
        child.kill()
