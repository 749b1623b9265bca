"""What the programs of services share (`openclaw-tinker/run.py`, `openclaw-fireworks/run.py`): options that become the launcher's.

Each option sets a variable or a flag of the launcher (`openclaw.launch`), which the process becomes; every other option goes to it
unchanged.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundwork.command_line import CommandLine
from openclaw.launch.__main__ import main as launch
from openclaw.models.places import COMMAND, tokenizer_of

ROOT = Path(__file__).resolve().parents[1]
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


class ServiceProgram:
    """The command line of a program of one service; add the service's own options to ``parser``."""

    def __init__(self, profile: str, model: str, description: str) -> None:
        """``profile``: of the launcher; ``model``: that is trained without ``--model-name``."""
        self._profile = profile
        self.parser = parser = CommandLine(prog="run.py", description=description)
        parser.add_argument("--method", choices=METHODS, default="combine", help="how it learns (default: %(default)s)")
        parser.add_argument("--model-name", default=model, help="as the service names it (default: %(default)s)")
        parser.add_argument(
            "--tokenizer", type=Path, help="folder with its tokenizer (default: models/tokenizers/NAME)"
        )
        parser.add_argument(
            "--teacher-model-name",
            help="model of the service that teaches and judges; PRM_MODEL_PATH has its tokenizer (default: the policy teaches itself "
            "with the hint, its base judges)",
        )
        parser.add_argument(
            "--loss-fn", choices=("ppo", "importance_sampling", "cispo"), default="ppo", help="the service's loss"
        )
        parser.add_argument("--train-epochs", type=int, default=1, help="how often it trains a batch (default: 1)")
        parser.add_argument("--resume-from-ckpt", help="a run's checkpoints to go on from, or a state tinker://...")
        parser.add_argument("--eval-mode", action="store_true", help="serve and record, and neither judge nor train")
        parser.add_argument("--api-key", help="refused: a command line is no place for a key; export SGLANG_API_KEY")
        for flag, (variable, text) in VARIABLES.items():
            parser.add_argument(flag, metavar="V", help=f"{text}; also {variable}")

    def parse(self, argv: Sequence[str] | None) -> tuple[Namespace, list[str]]:
        """Return the options, and the words that go to the launcher unchanged; what cannot be is a line on stderr."""
        options, extra = self.parser.parse_known_args(argv)
        if options.api_key is not None:
            self.parser.error(
                "--api-key: others could read it from the list of processes; type: export SGLANG_API_KEY=KEY"
            )
        if options.method != "combine" and (options.w_opd is not None or options.w_rl is not None):
            self.parser.error(
                f"--w-opd and --w-rl are weights of combine; leave them out with --method {options.method}"
            )
        return options, extra

    def become(self, options: Namespace, extra: Sequence[str], tokenizer: str, environment: Mapping[str, str]) -> None:
        """Do what the launcher does: become the run's driver, or show the plan.

        ``tokenizer``: name of the model whose tokenizer it is; ``environment``: of the launcher.
        """
        variables = self.variables(options, tokenizer, environment)
        named = options.tokenizer is not None or "HF_CKPT" in environment
        if not named and "--dry-run" not in extra and not Path(variables["HF_CKPT"]).is_dir():
            self.parser.error(f"no tokenizer of {tokenizer} here; type: {COMMAND} {tokenizer} --tokenizer")
        paths = os.pathsep.join([str(ROOT), str(ROOT / "slime"), *filter(None, [environment.get("PYTHONPATH")])])
        merged = {**environment, **variables, "PYTHONPATH": paths}
        os.environ.clear()
        os.environ.update(merged)
        launch([*self.words(options), *extra])

    def words(self, options: Namespace) -> list[str]:
        """Return the launcher's flags."""
        words = ["--method", options.method, "--profile", self._profile, "--tinker-model", options.model_name]
        words += ["--tinker-loss", options.loss_fn, "--tinker-epochs", str(options.train_epochs)]
        if options.teacher_model_name:
            words += ["--tinker-judge-model", options.teacher_model_name]
        if (start := options.resume_from_ckpt) and start.startswith("tinker://"):
            words += ["--tinker-start", start]
        return words

    @staticmethod
    def variables(options: Namespace, tokenizer: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the launcher's variables; see `become`."""
        values = {name: getattr(options, flag[2:].replace("-", "_")) for flag, (name, _) in VARIABLES.items()}
        given = {name: str(value) for name, value in values.items() if value is not None}
        given["HF_CKPT"] = environment.get("HF_CKPT") or str(options.tokenizer or tokenizer_of(tokenizer))
        if options.teacher_model_name:
            given["OPENCLAW_OPD_TEACHER"] = "prm"
            given["PRM_MODEL_PATH"] = environment.get("PRM_MODEL_PATH") or str(tokenizer_of(options.teacher_model_name))
        if options.eval_mode:
            given["OPENCLAW_EVAL_MODE"] = "1"
        if options.wandb_project:
            given["USE_WANDB"] = "1"
        start = options.resume_from_ckpt
        if start and not start.startswith("tinker://"):
            given |= {"SAVE_CKPT": start, "RESUME": "1"}
        return given
