"""Convert a Megatron run's checkpoint, from any number of ranks, to a Hugging Face checkpoint with LoRA merged.

``--save-hf`` of a run writes the same folder with every checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from slime.backends.megatron_utils.model import one_rank
from slime.checkpoints.checkpoint_folder import export_hf, read_meta
from slime.conversion import checks, merge_lora


def convert(source: Path, origin: Path, output: Path, *, dtype: str | None = None, force: bool = False) -> str:
    """Write the folder ``output`` and return a line that describes it.

    Args:
        source: a run's checkpoints folder, or one checkpoint in it.
        origin: the Hugging Face checkpoint that the run started from; gives configuration, tokenizer and LoRA's base
            weights.
        output: folder to write.
        dtype: type of the weights; default: as in ``origin``.
        force: replace an existing ``output``.

    Raises:
        SlimeError: the input is invalid; nothing was written.
    """
    from slime.backends.megatron_utils.state import load_state
    from slime.backends.megatron_utils.weights import full_weights

    folder = checks.checkpoint_in(source)
    meta = read_meta(folder)
    checks.check_policy(folder, meta)
    if meta["lora"]:
        return merge_lora.merge(origin, folder / "adapter", output, dtype=dtype, force=force)
    checks.check_output(output, [origin, folder], force=force)
    kind = checks.output_dtype(dtype, origin)
    with one_rank(origin) as (model, shape, device):
        load_state(folder, model, None, device)
        export_hf(full_weights(model, shape, dtype=kind), origin, output, dtype=kind)
    return f"{output}: the weights of {folder}"
