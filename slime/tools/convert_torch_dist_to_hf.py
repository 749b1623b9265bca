#!/usr/bin/env python3
"""Convert a Megatron run's checkpoint, from any number of ranks, to a Hugging Face checkpoint with LoRA merged.

``--save-hf`` of a run writes the same folder with every checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slime.conversion.command_line import read_conversion, run

PROG = "convert_torch_dist_to_hf.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options = read_conversion(PROG, __doc__, argv)
    from slime.conversion.torch_dist_to_hf import convert  # imports torch, for which a mistyped option need not wait

    return run(
        PROG,
        lambda: convert(
            options.input_dir, options.origin_hf_dir, options.output, dtype=options.dtype, force=options.force
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
