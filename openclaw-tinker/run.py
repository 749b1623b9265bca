#!/usr/bin/env python3
"""Learn from conversations with a model that a service of the Tinker interface trains and samples; see ``--help``.

The options are those that guides of Tinker name; see `service_program`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "slime"), str(ROOT / "openclaw-tinker")]

from service_program import ServiceProgram  # noqa: E402

USUAL = "Qwen/Qwen3-4B-Instruct-2507"


def main(argv: Sequence[str] | None = None) -> None:
    """Become the launcher."""
    program = ServiceProgram(
        "tinker",
        USUAL,
        "Talk to a model, and a service of the Tinker interface trains it. The service is that of TINKER_BASE_URL, with "
        "the key in TINKER_API_KEY. Other options go to the launcher; --dry-run shows the plan.",
    )
    program.parser.add_argument("--gpus", help="refused: a service has the GPUs")
    options, extra = program.parse(argv)
    if options.gpus is not None:
        program.parser.error("--gpus: a service has the GPUs; leave it out")
    program.become(options, extra, options.model_name, os.environ)


if __name__ == "__main__":
    main()
