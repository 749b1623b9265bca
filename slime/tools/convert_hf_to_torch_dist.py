#!/usr/bin/env python3
"""Convert a Hugging Face folder to a Megatron checkpoint (torch_dist), which ``--load`` reads on any number of ranks.

A Megatron run can start from the Hugging Face folder directly; this tool is for other programs and faster starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slime.conversion.command_line import add_input, add_output, command_line, run


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = command_line("convert_hf_to_torch_dist.py", __doc__)
    add_input(parser, "--hf-checkpoint", "folder to convert")
    add_output(parser, "--save")
    options = parser.parse_args(argv)
    from slime.conversion.hf_to_torch_dist import convert  # imports torch, for which a mistyped option need not wait

    return run(
        parser.prog,
        lambda: convert(options.hf_checkpoint, options.output, dtype=options.dtype, force=options.force),
    )


if __name__ == "__main__":
    sys.exit(main())
