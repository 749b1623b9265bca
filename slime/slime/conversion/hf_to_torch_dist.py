"""Convert a Hugging Face folder to a Megatron checkpoint (torch_dist), which ``--load`` reads on any number of ranks.

A Megatron run can start from the Hugging Face folder directly; this tool is for other programs and faster starts.
"""

from __future__ import annotations

from pathlib import Path

from slime.backends.megatron_utils.model import one_rank
from slime.checkpoints import checkpoint_folder
from slime.conversion import checks


def convert(source: Path, output: Path, *, dtype: str | None = None, force: bool = False) -> str:
    """Write the checkpoint root ``output`` from the folder ``source`` and return a line that describes it.

    Raises:
        SlimeError: the input is invalid; nothing was written.
    """
    from slime.backends.megatron_utils.state import BACKEND, save_state

    checks.check_output(output, [source], force=force)
    kind = checks.output_dtype(dtype, source)
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
        checkpoint_folder.publish(temporary, 0, ())
        checkpoint_folder.replace_folder(temporary, output)
    return f"{output}: the weights of {source}"
