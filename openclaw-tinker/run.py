#!/usr/bin/env python3
"""Learn from conversations with a model that a service of the Tinker interface trains and samples; see ``--help``.

The options are those that guides of Tinker name. Each sets a variable or a flag of the launcher (`openclaw.launch`), which this
process becomes; every other option goes to it unchanged.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "slime")]

from groundwork.command_line import CommandLine  # noqa: E402
from openclaw.models.places import COMMAND, tokenizer_of  # noqa: E402

USUAL = "Qwen/Qwen3-4B-Instruct-2507"
METHODS = ("rl", "opd", "combine")
VARIABLES = {
    "--lora-rank": ("LORA_RANK", "rank of the adapter (default: 32)"),
    "--learning-rate": ("LEARNING_RATE", "of the adapter (default: 1e-4)"),
    "--batch-size": ("BATCH_SIZE", "judged turns of a step (default: 4)"),
    "--max-steps": ("NUM_ROLLOUT", "steps until the run only serves (default: 1000)"),
    "--kl-loss-coef": ("KL_LOSS_COEF", "penalty on leaving the model as it was (default: 0)"),
    "--save-interval": ("SAVE_INTERVAL", "steps between saved states (default: 20)"),
    "--w-opd": ("OPENCLAW_COMBINE_W_OPD", "combine: weight of teacher minus student (default: 1)"),
    "--w-rl": ("OPENCLAW_COMBINE_W_RL", "combine: weight of the judge's score (default: 1)"),
    "--prm-m": ("PRM_M", "votes of the judge on a turn"),
    "--prm-temperature": ("PRM_TEMPERATURE", "of the judge (default: 0.6)"),
    "--prm-max-tokens": ("PRM_MAX_NEW_TOKENS", "most tokens of the judge's answer (default: 4096)"),
    "--proxy-host": ("HOST", "address of your API (default: 127.0.0.1; another one needs a key in SGLANG_API_KEY)"),
    "--proxy-port": ("PORT", "port of your API (default: 30000)"),
    "--served-model-name": ("SERVED_MODEL_NAME", "name of the model in your API"),
    "--record-dir": ("RUN_DIR", "folder of the ledger, logs and checkpoints"),
    "--wandb-project": ("WANDB_PROJECT", "send metrics to this project of Weights & Biases"),
}
"""The variable of each option that sets one, and its help."""


def build_parser() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog="run.py",
        description="Talk to a model, and a service of the Tinker interface trains it. The service is that of TINKER_BASE_URL, with "
        "the key in TINKER_API_KEY. Other options go to the launcher; --dry-run shows the plan.",
    )
    parser.add_argument("--method", choices=METHODS, default="combine", help="how it learns (default: %(default)s)")
    parser.add_argument("--model-name", default=USUAL, help="as the service names it (default: %(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="folder with its tokenizer (default: models/tokenizers/NAME)")
    parser.add_argument(
        "--teacher-model-name",
        help="model of the service that teaches and judges (default: the policy teaches itself with the hint, its base judges)",
    )
    parser.add_argument(
        "--loss-fn", choices=("ppo", "importance_sampling", "cispo"), default="ppo", help="the service's loss"
    )
    parser.add_argument("--train-epochs", type=int, default=1, help="how often it trains a batch (default: 1)")
    parser.add_argument("--resume-from-ckpt", help="a run's checkpoints to go on from, or a state tinker://...")
    parser.add_argument("--eval-mode", action="store_true", help="serve and judge, and train nothing")
    parser.add_argument("--gpus", help="refused: a service has the GPUs")
    parser.add_argument("--api-key", help="refused: a command line is no place for a key; export SGLANG_API_KEY")
    for flag, (variable, text) in VARIABLES.items():
        parser.add_argument(flag, metavar="V", help=f"{text}; also {variable}")
    return parser


def words_of(options: Namespace) -> list[str]:
    """Return the launcher's flags."""
    words = ["--method", options.method, "--profile", "tinker", "--tinker-model", options.model_name]
    words += ["--tinker-loss", options.loss_fn, "--tinker-epochs", str(options.train_epochs)]
    if options.teacher_model_name:
        words += ["--tinker-judge-model", options.teacher_model_name]
    if (start := options.resume_from_ckpt) and start.startswith("tinker://"):
        words += ["--tinker-start", start]
    return words


def variables_of(options: Namespace) -> dict[str, str]:
    """Return the launcher's variables."""
    values = {name: getattr(options, flag[2:].replace("-", "_")) for flag, (name, _) in VARIABLES.items()}
    given = {name: str(value) for name, value in values.items() if value is not None}
    given["HF_CKPT"] = os.environ.get("HF_CKPT") or str(options.tokenizer or tokenizer_of(options.model_name))
    if options.teacher_model_name:
        given["OPENCLAW_OPD_TEACHER"] = "prm"
    if options.eval_mode:
        given["OPENCLAW_EVAL_MODE"] = "1"
    if options.wandb_project:
        given["USE_WANDB"] = "1"
    start = options.resume_from_ckpt
    if start and not start.startswith("tinker://"):
        given |= {"SAVE_CKPT": start, "RESUME": "1"}
    return given


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Become the launcher."""
    parser = build_parser()
    options, extra = parser.parse_known_args(argv)
    if options.api_key is not None:
        parser.error("--api-key: others could read it from the list of processes; type: export SGLANG_API_KEY=KEY")
    if options.gpus is not None:
        parser.error("--gpus: a service has the GPUs; leave it out")
    if options.method != "combine" and (options.w_opd is not None or options.w_rl is not None):
        parser.error(f"--w-opd and --w-rl are weights of combine; leave them out with --method {options.method}")
    variables = variables_of(options)
    named = options.tokenizer is not None or "HF_CKPT" in os.environ
    if not named and "--dry-run" not in extra and not Path(variables["HF_CKPT"]).is_dir():
        parser.error(f"no tokenizer of {options.model_name} here; type: {COMMAND} {options.model_name} --tokenizer")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "slime"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **variables, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "openclaw.launch", *words_of(options), *extra]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
