"""``python terminal-rl/remote/pool_server.py``: lend out terminals of this machine, under the names of older set-ups.

The program is `agentrl.pool` with terminal tasks. Guarantee: a variable of a worker is honoured, or refused by name.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [path for path in (str(HERE.parent), str(ROOT), str(ROOT / "slime")) if path not in sys.path]

from agentrl.pool import main as pool  # noqa: E402 - found by the lines above
from agentrl.tasks.terminal.source import TaskSource  # noqa: E402
from groundwork.command_line import CommandLine  # noqa: E402
from groundwork.exceptions import ConfigError  # noqa: E402
from groundwork.variables import EnvironmentConfig, refuse_set, variable  # noqa: E402

PROG = "pool_server.py"
FILE = "it is said in the file of --custom-config-path, as"
OLDER: Mapping[str, str] = {
    "WORKER_RUN_IDLE_TTL": "AGENTRL_TTL_SECONDS of the trainer says how long a lease outlives it",
    "WORKER_MAX_CONCURRENT_CLOSES": "sandboxes close beside each other, each within CLOSE_SESSION_TIMEOUT",
    "ENSURE_IMAGE_TIMEOUT": f"{FILE} ensure_image_timeout",
    "RESET_SESSION_TIMEOUT": f"{FILE} reset_session_timeout",
    "EVAL_TIMEOUT": f"{FILE} eval_timeout",
    "COMPOSE_OVERRIDE_PATH": "a task runs in one container without compose; name its image in task.toml",
    "CONTAINER_MEMORY_LIMIT": "memory_mb in the [environment] of task.toml bounds a task",
}
"""Variables of older workers that are refused, each with what to use instead."""
ENVIRONMENT = "agentrl.tasks.terminal.environment.TerminalEnvironment"


@dataclass(frozen=True, kw_only=True)
class WorkerVariables(EnvironmentConfig):
    """Values of the variables; see their help."""

    host: str = variable("ENV_SERVER_BIND_HOST", "127.0.0.1", "address to listen on; others than this need AGENTRL_KEY")
    port: int = variable("ENV_SERVER_PORT", 18081, "port", minimum=1, maximum=65535)
    max_tasks: int = variable("WORKER_MAX_TASKS", 16, "tasks at a time", minimum=1)
    max_runs: int = variable("WORKER_MAX_RUNS_PER_TASK", 8, "episodes of a task; times the tasks: the slots", minimum=1)
    close_seconds: float = variable(
        "CLOSE_SESSION_TIMEOUT", 60.0, "seconds to close an environment; then its processes are killed", above=0.0
    )
    output_root: str | None = variable(
        "TBENCH_OUTPUT_ROOT", None, "folder of the ledger of processes; default: runs/terminal-pool"
    )
    image_source: str = variable(
        "TBENCH_DOCKER_IMAGE_SOURCE", "pull", "where images come from; build them before", choices=("pull",)
    )
    sandbox: str = variable("SANDBOX", "bubblewrap", "provider", choices=("bubblewrap", "docker", "podman"))
    sandbox_image: str | None = variable("SANDBOX_IMAGE", None, "image of docker and podman where a task names none")


def pool_words(v: WorkerVariables) -> list[str]:
    """Return the pool's arguments."""
    root = Path(v.output_root) if v.output_root else ROOT / "runs" / "terminal-pool"
    words = ["--env", ENVIRONMENT, "--slots", str(v.max_tasks * v.max_runs), "--sandbox", v.sandbox]
    words += ["--sandbox-image", v.sandbox_image] if v.sandbox_image else []
    words += ["--close-seconds", str(v.close_seconds), "--ledger", str(root.absolute() / "pool.sqlite")]
    return [*words, "--host", v.host, "--port", str(v.port)]


def build_parser() -> CommandLine:
    """Return the parser of the command line; what it does not know goes to the pool."""
    told = "; ".join(f"{item.name}: {item.help}" for item in (*WorkerVariables.variables(), *TaskSource.variables()))
    parser = CommandLine(
        prog=PROG,
        description="Lend out terminals of this machine. Other options go to python -m agentrl.pool, and win.",
        epilog=f"Variables: {told}.",
    )
    parser.add_argument("--dry-run", action="store_true", help="check tasks and variables, start nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options, extra = build_parser().parse_known_args(argv)
    try:
        refuse_set(OLDER)
        words = [*pool_words(WorkerVariables.from_env()), *extra]
        source = TaskSource.from_env()
        count = len(source.tasks())
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        print(f"tasks    {source.task_type}, {count}\npool     {shlex.join(['python', '-m', 'agentrl.pool', *words])}")
        print("dry run: the plan is valid, nothing was started")
        return 0
    os.makedirs(Path(words[words.index("--ledger") + 1]).parent, exist_ok=True)
    return pool(words)


if __name__ == "__main__":
    sys.exit(main())
