#!/usr/bin/env python3
"""Convert a Hugging Face folder to a Megatron checkpoint (torch_dist), which ``--load`` reads on any number of ranks.

A Megatron run can start from the Hugging Face folder directly; this tool is for other programs and faster starts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slime.backends.megatron_utils.one_rank import one_rank
from slime.checkpoints import checkpoint_folder
from slime.utils import tool


def convert(source: Path, output: Path, *, dtype: str | None = None, force: bool = False) -> str:
    """Write the checkpoint root ``output`` from the folder ``source`` and return a line that describes it.

    Raises:
        SlimeError: the input is invalid; nothing was written.
    """
    from slime.backends.megatron_utils.checkpoint import BACKEND, save_state

    tool.check_output(output, [source], force=force)
    kind = tool.output_dtype(dtype, source)
    meta = {
        "rollout_id": -1,
        "weight_version": 0,
        "schedule": {"steps": 0},
        "world_size": 0,
        "lora": False,
        "backend": BACKEND,
        "optimizer": False,
        "hf_checkpoint": str(source),
    }
    with one_rank(source, kind) as (model, _, device):
        temporary = checkpoint_folder.fresh_folder(output)
        checkpoint_folder.write(temporary, 0, meta, lambda path: save_state(path, model, None, device))
        checkpoint_folder.publish(temporary, 0, 0)
        checkpoint_folder.replace_folder(temporary, output)
    return f"{output}: the weights of {source}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="convert_hf_to_torch_dist.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hf-checkpoint", required=True, type=Path, metavar="FOLDER", help="folder to convert")
    tool.add_output(parser, "--save")
    options = parser.parse_args(argv)
    return tool.run(
        parser.prog,
        lambda: convert(options.hf_checkpoint, options.output, dtype=options.dtype, force=options.force),
    )


if __name__ == "__main__":
    sys.exit(main())
