#!/usr/bin/env python3
"""Merge a LoRA adapter into its base model: ``W + alpha / r * B A`` in float32, one tensor at a time.

The adapter is a folder in PEFT's format, such as ``checkpoints/iter_0000010/adapter`` of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slime.conversion.command_line import add_input, add_output, command_line, run


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = command_line("merge_lora.py", __doc__)
    add_input(parser, "--base-model", "model that the adapter was trained on")
    add_input(parser, "--adapter", "adapter in PEFT's format")
    add_output(parser, "--output")
    options = parser.parse_args(argv)
    from slime.conversion.merge_lora import merge  # imports torch, for which a mistyped option need not wait

    return run(
        parser.prog,
        lambda: merge(options.base_model, options.adapter, options.output, dtype=options.dtype, force=options.force),
    )


if __name__ == "__main__":
    sys.exit(main())
