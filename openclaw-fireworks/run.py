#!/usr/bin/env python3
"""Learn from conversations with a model that Fireworks trains and samples; see ``--help``.

The options are those of `openclaw-tinker/service_program.py`, and what Fireworks has beside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "slime"), str(ROOT / "openclaw-tinker")]

from service_program import ServiceProgram  # noqa: E402

from groundwork.exceptions import ConfigError  # noqa: E402

MODEL = "accounts/fireworks/models/qwen3-8b"
SHAPE = "accounts/fireworks/trainingShapes/qwen3-8b-128k"
ENDLESS = "1000000"
OF_GUIDES = {
    **{"BASE_MODEL": "", "TRAINING_SHAPE_ID": "", "DEPLOYMENT_ID": "", "TOKENIZER_MODEL": ""},
    **{"ROLLOUT_BATCH_SIZE": "BATCH_SIZE", "MAX_STEPS": "NUM_ROLLOUT", "MAX_SEQ_LEN": "CONTEXT_LENGTH"},
    **{"W_OPD": "OPENCLAW_COMBINE_W_OPD", "W_RL": "OPENCLAW_COMBINE_W_RL", "EPS_CLIP": "PPO_CLIP_RATIO"},
}
"""Variables that guides of Fireworks name, and the launcher's for each; the first four are options here."""


def build() -> ServiceProgram:
    """Return the command line."""
    program = ServiceProgram(
        "fireworks",
        os.environ.get("BASE_MODEL") or MODEL,
        "Talk to a model, and Fireworks trains it. Rents a trainer job and a deployment with the key in FIREWORKS_API_KEY, "
        "and deletes them at the end. Other options go to the launcher; --dry-run shows the plan.",
    )
    add = program.parser.add_argument
    add(
        "--training-shape",
        default=os.environ.get("TRAINING_SHAPE_ID") or SHAPE,
        help="what the trainer job runs on; one for adapters (default: %(default)s; also TRAINING_SHAPE_ID)",
    )
    add("--deployment", default=os.environ.get("DEPLOYMENT_ID"), help="its name (default: made up; also DEPLOYMENT_ID)")
    add("--gpus", metavar="N", help="accelerators of trainer and deployment (default: those of one replica)")
    add("--keep", action="store_true", help="keep trainer job and deployment at the end; they go on costing")
    add("--delete", metavar="RUN_DIR", type=Path, help="delete what a run left at Fireworks, and do nothing else")
    return program


def delete(folder: Path) -> int:
    """Delete what a run left, and return the exit code."""
    from slime.backends.fireworks_utils.control import delete

    try:
        return 0 if delete(folder) else 1
    except ConfigError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2


def main(argv: Sequence[str] | None = None) -> None:
    """Become the launcher, or with ``--delete`` delete."""
    program = build()
    options, extra = program.parse(argv)
    if options.delete is not None:
        sys.exit(delete(options.delete))
    if (options.lora_rank or os.environ.get("LORA_RANK")) == "0":
        program.parser.error(
            "--lora-rank 0 asks for all weights, and only an adapter can be trained here; give such as 32"
        )
    words = ["--fireworks-training-shape", options.training_shape]
    words += ["--fireworks-deployment", options.deployment] if options.deployment else []
    words += ["--fireworks-gpus", options.gpus] if options.gpus is not None else []
    words += ["--fireworks-keep"] if options.keep else []
    environment = dict(os.environ)
    for theirs, ours in OF_GUIDES.items():
        if (value := environment.pop(theirs, None)) and ours:
            environment.setdefault(ours, ENDLESS if (theirs, value) == ("MAX_STEPS", "0") else value)
    tokenizer = os.environ.get("TOKENIZER_MODEL") or options.model_name.rpartition("/")[2]
    if options.teacher_model_name:
        environment.setdefault("PRM_MODEL_PATH", program.variables(options, tokenizer, environment)["HF_CKPT"])
    program.become(options, [*words, *extra], tokenizer, environment)


if __name__ == "__main__":
    main()
