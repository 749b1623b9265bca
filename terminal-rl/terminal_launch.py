"""Starts a training run on terminal tasks: a pool on this machine, unless one is named, and the trainer.

Guarantees: the trainer's own parser checks the whole plan before anything starts; ``--dry-run`` shows it. Flags after the
script's name win. What was started ends with this process, and with the run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from older_variables import CLIENT, refuse

from agentrl.exceptions import InfraError
from agentrl.pool_process import train_beside_pool, trainer_environment
from agentrl.tasks.terminal.prompts import write_rows
from agentrl.tasks.terminal.source import TaskSource
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable
from openclaw.launch.known_names import check_names
from slime.arguments.model_shape import shape_flags
from slime.arguments.yaml_files import SCRIPT_WORDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROG = "terminal-rl"
TRAINER = ROOT / "slime" / "train_async.py"
ENVIRONMENT = "agentrl.tasks.terminal.environment.TerminalEnvironment"


@dataclass(frozen=True, kw_only=True)
class LaunchVariables(EnvironmentConfig):
    """Values of the variables; see their help."""

    env_type: str = variable("ENV_TYPE", "terminal", "kind of environment", choices=("terminal",))
    parallel_envs: int = variable("PARALLEL_ENVS", 32, "most episodes at a time", minimum=1)
    max_steps: int | None = variable("MAX_STEPS", None, "most replies of an episode; default: max_iteration", minimum=1)
    server_url: str | None = variable(
        "ENV_SERVER_URL", None, "pool or router to use instead of one here", aliases=("AGENTRL_POOL_URL",)
    )
    sandbox: str = variable(
        "SANDBOX", "bubblewrap", "provider of a pool here", choices=("bubblewrap", "docker", "podman")
    )
    sandbox_image: str | None = variable("SANDBOX_IMAGE", None, "image of docker and podman where a task names none")
    hf_ckpt: str | None = variable(
        "HF_CKPT", None, "checkpoint to train; default: the script's model", aliases=("MODEL_CKPT",)
    )
    ref_load: str | None = variable("REF_LOAD", None, "reference weights; default: the checkpoint")
    save_ckpt: str | None = variable("SAVE_CKPT", None, "where checkpoints go; default: the run's folder")
    resume_load: str | None = variable("RESUME_LOAD", None, "checkpoint folder to go on from")
    prompt_data: str | None = variable("ROLLOUT_PROMPT_DATA", None, "rows of tasks; default: written for TASK_TYPE")
    eval_data: str | None = variable("EVAL_PROMPT_DATA", None, "rows of tasks for evaluation; default: held-out ones")
    eval_interval: int | None = variable(
        "EVAL_INTERVAL", None, "rollouts between evaluations; default: none", minimum=1
    )
    num_nodes: int = variable("NNODES", 1, "machines", minimum=1, aliases=("NUM_NODES",))
    node_rank: int = variable("NODE_RANK", 0, "number of this machine", minimum=0, aliases=("MLP_ROLE_INDEX",))
    master_addr: str | None = variable("MASTER_ADDR", None, "address of machine 0; default: this machine's name")
    master_port: int = variable("MASTER_PORT", 6379, "its port for Ray", minimum=1, maximum=65535)
    gpus_per_node: int = variable("NUM_GPUS", 8, "GPUs of a machine", minimum=1, aliases=("NUM_GPUS_PER_NODE",))
    actor_gpus: int = variable("ACTOR_GPUS", 4, "GPUs that train", minimum=1, aliases=("ACTOR_GPUS_PER_NODE",))
    rollout_gpus: int = variable("ROLLOUT_GPUS", 4, "GPUs that sample", minimum=1, aliases=("ROLLOUT_GPUS_TOTAL",))
    engine_gpus: int = variable("ROLLOUT_NUM_GPUS_PER_ENGINE", 2, "GPUs of an engine", minimum=1)
    prm_url: str | None = variable(
        "PRM_SGLANG_URL", None, "judge that runs already, instead of engines of the run's own"
    )
    prm_gpus: int = variable("PRM_GPUS", 8, "GPUs that judge", minimum=1, aliases=("PRM_GPUS_TOTAL",))
    prm_engine_gpus: int = variable("PRM_GPUS_PER_ENGINE", 1, "GPUs of a judge's engine", minimum=1)
    prm_model: str | None = variable("PRM_MODEL_PATH", None, "judge; default: the checkpoint")
    prm_m: int = variable("PRM_M", 1, "votes on a step", minimum=1)
    prm_step_coef: float = variable("PRM_STEP_COEF", 1.0, "weight of a step's score")
    prm_temperature: float = variable("PRM_TEMPERATURE", 0.0, "of the judge", minimum=0.0)
    prm_max_new_tokens: int = variable("PRM_MAX_NEW_TOKENS", 4096, "most tokens of a verdict", minimum=1)
    run_dir: str | None = variable("RUN_DIR", None, "folder of the run; default: runs/ and the script's name")
    use_wandb: bool = variable("USE_WANDB", False, "track with W&B; the key is WANDB_API_KEY or WANDB_KEY")


def trainer_words(v: LaunchVariables, model: str, name: str, judge: bool, run_dir: Path) -> list[str]:
    """Return the trainer's flags.

    Raises:
        ConfigError: there is no such model shape.
    """
    checkpoint = v.hf_ckpt or str(ROOT / "models" / model.replace("qwen", "Qwen"))
    words: list[object] = [*shape_flags(model), "--hf-checkpoint", checkpoint, "--ref-load", v.ref_load or checkpoint]
    words += ["--run-dir", run_dir, "--save", v.save_ckpt or run_dir / "checkpoints", "--save-interval", 3]
    words += ["--load", v.resume_load] if v.resume_load else []
    words += ["--num-gpus-per-node", v.gpus_per_node, "--actor-num-nodes", 1, "--actor-num-gpus-per-node", v.actor_gpus]
    words += ["--train-backend", "fsdp"]
    words += ["--rollout-num-gpus", v.rollout_gpus, "--rollout-num-gpus-per-engine", v.engine_gpus]
    if v.num_nodes > 1:
        words += ["--num-nodes", v.num_nodes, "--head-address", head_address(v)]
    words += ["--custom-generate-function-path", "generate.generate"]
    words += ["--custom-rollout-log-function-path", "rollout_log.rollout_log"]
    words += [
        "--prompt-data",
        v.prompt_data or run_dir / "train.jsonl",
        "--input-key",
        "task",
        "--metadata-key",
        "metadata",
    ]
    words += ["--reward-key", "score", "--rollout-shuffle", "--balance-data", "--dynamic-history"]
    words += [
        "--num-rollout",
        2000,
        "--rollout-batch-size",
        16,
        "--n-samples-per-prompt",
        8,
        "--num-steps-per-rollout",
        2,
    ]
    words += ["--rollout-max-response-len", 8192, "--rollout-max-context-len", 16384, "--rollout-temperature", 1]
    if v.eval_interval:
        words += [
            "--eval-prompt-data",
            "terminal",
            v.eval_data or run_dir / "eval.jsonl",
            "--eval-interval",
            v.eval_interval,
        ]
        words += ["--eval-reward-key", "accuracy", "--eval-max-context-len", 32768, "--eval-max-response-len", 16384]
    words += ["--advantage-estimator", "step_wise" if judge else "grpo"]
    words += ["--use-kl-loss", "--kl-loss-coef", 0.01, "--kl-loss-type", "k3"]
    words += ["--optimizer", "adam", "--lr", 1e-6, "--lr-decay-style", "constant", "--weight-decay", 0.1]
    words += ["--adam-beta1", 0.9, "--adam-beta2", 0.98, "--gradient-checkpointing"]
    words += ["--use-dynamic-batch-size", "--max-tokens-per-gpu", 16384, "--log-probs-chunk-size", 1024]
    words += ["--sglang-mem-fraction-static", 0.6]
    if judge:
        own = ["--prm-enable", "--prm-num-gpus", v.prm_gpus, "--prm-num-gpus-per-engine", v.prm_engine_gpus]
        words += ["--prm-sglang-url", v.prm_url] if v.prm_url else own
        words += ["--prm-model-path", v.prm_model or checkpoint, "--prm-m", v.prm_m, "--prm-step-coef", v.prm_step_coef]
        words += ["--prm-temperature", v.prm_temperature, "--prm-max-new-tokens", v.prm_max_new_tokens]
    words += ["--use-wandb", "--wandb-project", "slime", "--wandb-group", name] if v.use_wandb else []
    return [str(word) for word in words]


def head_address(v: LaunchVariables) -> str:
    """Return the address at which the other machines reach machine 0."""
    return f"{v.master_addr or socket.gethostname()}:{v.master_port}"


def pool_words(v: LaunchVariables, run_dir: Path) -> list[str]:
    """Return the arguments of the pool."""
    words = ["--env", ENVIRONMENT, "--slots", str(v.parallel_envs), "--sandbox", v.sandbox]
    words += ["--sandbox-image", v.sandbox_image] if v.sandbox_image else []
    return [*words, "--ledger", str(run_dir / "pool.sqlite")]


def child_environment(v: LaunchVariables) -> dict[str, str]:
    """Return the trainer's environment."""
    child = trainer_environment(HERE, wandb=v.use_wandb)
    if v.max_steps is not None:
        child["AGENTRL_MAX_TURNS"] = str(v.max_steps)
    return child


def check_evaluation(v: LaunchVariables, source: TaskSource) -> None:
    """Refuse an evaluation on the tasks that are trained on.

    Raises:
        ConfigError: says what to set.
    """
    if v.eval_interval and v.eval_data is None and not source.has_splits:
        raise ConfigError(
            f"EVAL_INTERVAL={v.eval_interval}: TASK_TYPE={source.task_type} has no held-out tasks; set EVAL_PROMPT_DATA to rows "
            "of tasks that are not trained on, such as test.jsonl of convert_task_to_dataset.py, and ROLLOUT_PROMPT_DATA to train.jsonl"
        )


def write_prompts(v: LaunchVariables, run_dir: Path) -> None:
    """Write the rows of tasks that no variable names."""
    source = TaskSource.from_env()
    if v.prompt_data is None:
        print(f"{PROG}: {write_rows(source, source.ids('train'), run_dir / 'train.jsonl')} tasks", flush=True)
    if v.eval_interval and v.eval_data is None:
        write_rows(source, source.ids("heldout"), run_dir / "eval.jsonl")


def run(v: LaunchVariables, words: Sequence[str], run_dir: Path) -> int:
    """Start pool and trainer; return the trainer's exit status."""
    child = child_environment(v)
    if v.node_rank:
        command = ["-m", "slime.ray.worker_node", "--head-address", head_address(v)]
        command += ["--num-gpus", str(v.gpus_per_node), "--log", str(run_dir / "logs" / f"ray-node-{v.node_rank}.log")]
        return subprocess.call([sys.executable, *command], env=child)
    run_dir.mkdir(parents=True, exist_ok=True)
    write_prompts(v, run_dir)
    command = [sys.executable, str(TRAINER), *words]
    return train_beside_pool(command, child, v.server_url, pool_words(v, run_dir), run_dir)


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    told = "; ".join(f"{each.name}: {each.help}" for each in (*LaunchVariables.variables(), *TaskSource.variables()))
    parser = CommandLine(prog=PROG, description=(__doc__ or "").split("\n")[0], epilog=f"Variables: {told}.")
    parser.add_argument("--model", required=True, help="shape in slime/scripts/models")
    parser.add_argument("--name", required=True, help="of the run")
    parser.add_argument(
        "--step-judge", action="store_true", help="judge each step, with --advantage-estimator step_wise"
    )
    parser.add_argument("--dry-run", action="store_true", help="show and check the plan, start nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options, extra = build_parser().parse_known_args(argv)
    try:
        refuse(CLIENT)
        check_names(os.environ)
        v = LaunchVariables.from_env()
        source = TaskSource.from_env()
        check_evaluation(v, source)
        run_dir = Path(v.run_dir or ROOT / "runs" / options.name).absolute()
        own = trainer_words(v, options.model, options.name, options.step_judge, run_dir)
        os.environ[SCRIPT_WORDS] = str(len(own))
        words = [*own, *extra]
        if options.dry_run:
            pool = v.server_url or f"a pool here with {v.parallel_envs} slots, {v.sandbox}"
            print(f"tasks    {source.task_type}, {len(source.ids())}; environments from {pool}", flush=True)
            return subprocess.call([sys.executable, str(TRAINER), *words, "--dry-run"], env=child_environment(v))
        return run(v, words, run_dir)
    except (ConfigError, InfraError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    finally:
        os.environ.pop(SCRIPT_WORDS, None)


if __name__ == "__main__":
    sys.exit(main())
