"""Which back end trains where the command line does not say: Megatron when it has flags that only Megatron knows, else FSDP2.

The fork's launch scripts for Megatron give the model's shape and its parallel sizes and no ``--train-backend``, which is
Megatron there by default; its FSDP scripts give ``--train-backend fsdp`` and none of those flags.
"""

from __future__ import annotations

from collections.abc import Sequence

from slime.args import Arguments
from slime.arguments.megatron import MEGATRON
from slime.arguments.model_shape import MODEL_SHAPE

_SHOWN = 3


def derive_backend(args: Arguments, words: Sequence[str]) -> None:
    """Set ``train_backend`` when it was not given, and ``train_backend_because`` to the flags that decided.

    Args:
        args: with the values of the flags; a value that is not its default counts as given.
        words: of the command line and of its ``--config`` file; a flag among them counts whatever its value.
    """
    args.train_backend_because = ()
    if args.train_backend is not None:
        return
    typed = {word.split("=", 1)[0] for word in words}
    args.train_backend_because = tuple(
        option.flag
        for option in (*MODEL_SHAPE.options, *MEGATRON.options)
        if option.flag in typed or option.is_given(args)
    )
    args.train_backend = "megatron" if args.train_backend_because else "fsdp"


def backend_line(args: Arguments) -> str:
    """Return the line that a run says at its start: the back end, and what decided when nobody named one."""
    because = args.train_backend_because
    missing = args.transformer_impl_because
    layers = f" with layers of plain torch ({missing})" if missing else ""
    if not because:
        return f"trainer  {args.train_backend}{layers}"
    more = f" and {len(because) - _SHOWN} more" if len(because) > _SHOWN else ""
    return (
        f"trainer  {args.train_backend}{layers}, because --train-backend is not given and {', '.join(because[:_SHOWN])}{more} "
        "are Megatron's; add --train-backend fsdp for the other one"
    )
