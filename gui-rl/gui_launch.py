"""Starts a run on screen tasks: a pool on this machine, unless one is named, and the trainer, or only an evaluation.

Guarantees: the trainer's own parser checks the whole plan before anything starts; ``--dry-run`` shows it. Flags after the
script's name win. What was started ends with this process, and with the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gui_config import EVAL_REPLY_TOKENS, EVAL_TEMPERATURE

from agentrl.exceptions import InfraError
from agentrl.pool_process import train_beside_pool, trainer_environment
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.settings import GuiSettings
from agentrl.tasks.gui.source import GuiSource, write_rows
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable
from openclaw.launch.known_names import check_names
from slime.arguments.model_shape import shape_flags
from slime.arguments.yaml_files import SCRIPT_WORDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROG = "gui-rl"
TRAINER, EVALUATOR = (ROOT / "slime" / name for name in ("train_async.py", "eval_only.py"))


@dataclass(frozen=True, kw_only=True)
class LaunchVariables(EnvironmentConfig):
    """Values of the variables; see their help."""

    env_type: str = variable("ENV_TYPE", "gui", "kind of environment", choices=("gui",))
    parallel_envs: int = variable(
        "PARALLEL_ENVS", 16, "most episodes at a time", minimum=1, aliases=("GUI_POOL_MAX_ENVS",)
    )
    max_steps: int = variable(
        "MAX_GUI_STEPS",
        30,
        "most replies of an episode",
        minimum=1,
        aliases=("MAX_STEPS", "GUI_MAX_STEPS", "AGENTRL_MAX_TURNS"),
    )
    pictures: int = variable(
        "GUI_MAX_IMAGE_HISTORY_LENGTH",
        3,
        "newest pictures that the policy sees",
        minimum=1,
        aliases=("AGENTRL_KEEP_PICTURES",),
    )
    judge_pictures: int | None = variable(
        "GUI_MAX_REWARD_IMAGE_HISTORY_LENGTH",
        None,
        "pictures before a step that its judge sees; default: 1, or what AGENTRL_JUDGE_PICTURES says",
        minimum=0,
    )
    server_url: str | None = variable(
        "GUI_ENV_SERVER_URL",
        None,
        "pool or router to use instead of one here",
        aliases=("ENV_SERVER_URL", "AGENTRL_POOL_URL"),
    )
    hf_ckpt: str | None = variable(
        "HF_CKPT", None, "checkpoint to train; default: the script's model", aliases=("MODEL_PATH",)
    )
    ref_load: str | None = variable("REF_LOAD", None, "reference weights; default: the checkpoint")
    save_ckpt: str | None = variable("SAVE_CKPT", None, "where checkpoints go; default: the run's folder")
    resume_load: str | None = variable("RESUME_LOAD", None, "checkpoint folder to go on from", aliases=("RESUME_CKPT",))
    batch_size: int = variable("ROLLOUT_BATCH_SIZE", 8, "tasks of a rollout", minimum=1)
    samples: int = variable("N_SAMPLES_PER_PROMPT", 8, "episodes of a task", minimum=1)
    eval_interval: int | None = variable(
        "GUI_EVAL_INTERVAL", None, "rollouts between evaluations on held-out tasks; default: none", minimum=1
    )
    num_gpus: int = variable("NUM_GPUS", 8, "GPUs", minimum=1)
    actor_gpus: int = variable("ACTOR_GPUS", 4, "GPUs that train", minimum=1)
    rollout_gpus: int | None = variable(
        "ROLLOUT_GPUS", None, "GPUs that sample; default: 4, or 2 with a judge", minimum=1
    )
    engine_gpus: int = variable("ROLLOUT_NUM_GPUS_PER_ENGINE", 1, "GPUs of an engine", minimum=1)
    prm_gpus: int = variable("PRM_GPUS", 2, "GPUs that judge", minimum=1)
    prm_engine_gpus: int = variable("PRM_GPUS_PER_ENGINE", 1, "GPUs of a judge's engine", minimum=1)
    prm_model: str | None = variable("PRM_MODEL_PATH", None, "judge, a model with eyes; default: the checkpoint")
    prm_m: int = variable("PRM_M", 1, "votes on a step", minimum=1)
    prm_step_coef: float = variable("PRM_STEP_COEF", 1.0, "weight of a step's score")
    prm_temperature: float = variable("PRM_TEMPERATURE", 0.6, "of the judge", minimum=0.0)
    prm_max_new_tokens: int = variable("PRM_MAX_NEW_TOKENS", 4096, "most tokens of a verdict", minimum=1)
    run_dir: str | None = variable("RUN_DIR", None, "folder of the run; default: runs/ and the script's name")
    use_wandb: bool = variable("USE_WANDB", False, "track with W&B; the key is WANDB_API_KEY or WANDB_KEY")


def trainer_words(v: LaunchVariables, model: str, name: str, judge: bool, run_dir: Path) -> list[str]:
    """Return the trainer's flags.

    Raises:
        ConfigError: there is no such model shape.
    """
    checkpoint = _checkpoint(v, model)
    words: list[object] = [*shape_flags(model), "--hf-checkpoint", checkpoint, "--ref-load", v.ref_load or checkpoint]
    words += ["--run-dir", run_dir, "--save", v.save_ckpt or run_dir / "checkpoints", "--save-interval", 10]
    words += ["--load", v.resume_load] if v.resume_load else []
    words += ["--num-gpus-per-node", v.num_gpus, "--actor-num-nodes", 1, "--actor-num-gpus-per-node", v.actor_gpus]
    rollout_gpus = v.rollout_gpus or (2 if judge else 4)
    words += ["--rollout-num-gpus", rollout_gpus, "--rollout-num-gpus-per-engine", v.engine_gpus]
    words += ["--train-backend", "fsdp", "--gradient-checkpointing"]
    words += _plugin_words()
    words += ["--data-source-path", "gui_data_source.GuiMetaDataSource", "--prompt-data", run_dir / "gui_train.jsonl"]
    words += ["--rollout-shuffle", "--balance-data", "--dynamic-history"]
    words += ["--gui-max-steps", v.max_steps, "--gui-max-image-history-length", v.pictures]
    words += ["--num-rollout", 1000, "--rollout-batch-size", v.batch_size, "--n-samples-per-prompt", v.samples]
    words += ["--num-steps-per-rollout", 2, "--rollout-temperature", 1]
    words += ["--rollout-max-response-len", 1024, "--rollout-max-context-len", 16384]
    if v.eval_interval:
        words += [*_evaluation_words(v, run_dir), "--eval-interval", v.eval_interval]
    words += ["--advantage-estimator", "step_wise" if judge else "grpo"]
    words += ["--use-kl-loss", "--kl-loss-coef", 0.01, "--kl-loss-type", "k3"] if judge else []
    words += ["--optimizer", "adam", "--lr", 1e-6, "--lr-decay-style", "constant", "--weight-decay", 0.1]
    words += ["--adam-beta1", 0.9, "--adam-beta2", 0.98]
    words += ["--use-dynamic-batch-size", "--max-tokens-per-gpu", 16384, "--log-probs-chunk-size", 1024]
    words += ["--sglang-mem-fraction-static", 0.8]
    if judge:
        words += ["--prm-enable", "--prm-num-gpus", v.prm_gpus, "--prm-num-gpus-per-engine", v.prm_engine_gpus]
        words += ["--prm-model-path", v.prm_model or checkpoint, "--prm-m", v.prm_m, "--prm-step-coef", v.prm_step_coef]
        words += ["--prm-temperature", v.prm_temperature, "--prm-max-new-tokens", v.prm_max_new_tokens]
        if v.judge_pictures is not None:
            words += ["--gui-max-reward-image-history-length", v.judge_pictures]
    words += ["--use-wandb", "--wandb-project", "slime_gui", "--wandb-group", name] if v.use_wandb else []
    return [str(word) for word in words]


def evaluator_words(v: LaunchVariables, model: str, run_dir: Path) -> list[str]:
    """Return the flags of an evaluation without a trainer: all GPUs serve, ``scores.json`` in the run's folder has the result."""
    words: list[object] = ["--hf-checkpoint", _checkpoint(v, model), "--run-dir", run_dir]
    words += ["--json", run_dir / "scores.json", "--num-gpus-per-node", v.num_gpus]
    words += ["--rollout-num-gpus", v.rollout_gpus or v.num_gpus, "--rollout-num-gpus-per-engine", v.engine_gpus]
    words += ["--gui-max-image-history-length", v.pictures, "--sglang-mem-fraction-static", 0.8]
    return [str(word) for word in [*words, *_plugin_words(), *_evaluation_words(v, run_dir)]]


def _checkpoint(v: LaunchVariables, model: str) -> str:
    return v.hf_ckpt or str(ROOT / "models" / model.replace("qwen3-vl", "Qwen3-VL") / "")


def _plugin_words() -> list[object]:
    words: list[object] = ["--custom-generate-function-path", "generate_with_gui.generate"]
    words += ["--custom-rm-path", "generate_with_gui.reward_func"]
    return [*words, "--input-key", "prompt", "--metadata-key", "metadata", "--reward-key", "score"]


def _evaluation_words(v: LaunchVariables, run_dir: Path) -> list[object]:
    words: list[object] = ["--eval-prompt-data", "gui", run_dir / "gui_eval.jsonl"]
    words += ["--eval-function-path", "generate_with_gui.gui_generate_rollout", "--eval-reward-key", "acc"]
    words += ["--eval-temperature", EVAL_TEMPERATURE, "--n-samples-per-eval-prompt", 1]
    words += ["--eval-max-response-len", EVAL_REPLY_TOKENS]
    return [*words, "--eval-max-context-len", 16384, "--gui-eval-max-steps", v.max_steps]


def pool_words(v: LaunchVariables, source: GuiSource, run_dir: Path) -> list[str]:
    """Return the command of the pool."""
    words = ["--env", source.environment, "--slots", str(v.parallel_envs)]
    return [*words, "--ledger", str(run_dir / "pool.sqlite")]


def run(v: LaunchVariables, source: GuiSource, program: Path, words: Sequence[str], run_dir: Path) -> int:
    """Start pool and trainer, or evaluation; return its exit status."""
    run_dir.mkdir(parents=True, exist_ok=True)
    counts: list[str] = []
    if program == TRAINER:
        counts.append(f"{write_rows(source.ids('train'), run_dir / 'gui_train.jsonl')} tasks to train on")
    if v.eval_interval or program == EVALUATOR:
        counts.append(f"{write_rows(source.ids('heldout'), run_dir / 'gui_eval.jsonl')} tasks to evaluate on")
    print(f"{PROG}: {', '.join(counts)}", flush=True)
    child = trainer_environment(HERE, wandb=v.use_wandb)
    return train_beside_pool(
        [sys.executable, str(program), *words], child, v.server_url, pool_words(v, source, run_dir), run_dir
    )


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    kinds = (LaunchVariables, GuiSource, GuiSettings, VmSettings)
    told = "; ".join(f"{each.name}: {each.help}" for kind in kinds for each in kind.variables())
    parser = CommandLine(prog=PROG, description=(__doc__ or "").split("\n")[0], epilog=f"Variables: {told}.")
    parser.add_argument("--model", required=True, help="shape in slime/scripts/models")
    parser.add_argument("--name", required=True, help="of the run")
    parser.add_argument(
        "--step-judge", action="store_true", help="judge each step, with --advantage-estimator step_wise"
    )
    parser.add_argument("--evaluate", action="store_true", help="evaluate on held-out tasks, without a trainer")
    parser.add_argument("--dry-run", action="store_true", help="show and check the plan, start nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options, extra = build_parser().parse_known_args(argv)
    if options.evaluate and options.step_judge:
        print(f"{PROG}: --evaluate judges no step; leave out --step-judge", file=sys.stderr)
        return 2
    try:
        check_names(os.environ)
        v, source, seen = LaunchVariables.from_env(), GuiSource.from_env(), GuiSettings.from_env()
        run_dir = Path(v.run_dir or ROOT / "runs" / options.name).absolute()
        program = EVALUATOR if options.evaluate else TRAINER
        words = (
            evaluator_words(v, options.model, run_dir)
            if options.evaluate
            else trainer_words(v, options.model, options.name, options.step_judge, run_dir)
        )
        os.environ[SCRIPT_WORDS] = str(len(words))
        words += extra
        if options.dry_run:
            pool = v.server_url or f"a pool here with {v.parallel_envs} slots, {seen.backend}"
            child = trainer_environment(HERE, wandb=v.use_wandb)
            evaluated = len(source.ids("heldout")) if v.eval_interval or options.evaluate else 0
            count = 0 if options.evaluate else len(source.ids("train")), evaluated
            print(f"tasks    {source.task_type}, {count[0]} to train on, {count[1]} to evaluate on; from {pool}")
            print(f"screen   {seen.observation}, {seen.coordinates} coordinates", flush=True)
            return subprocess.call([sys.executable, str(program), *words, "--dry-run"], env=child)
        return run(v, source, program, words, run_dir)
    except (ConfigError, InfraError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    finally:
        os.environ.pop(SCRIPT_WORDS, None)


if __name__ == "__main__":
    sys.exit(main())
