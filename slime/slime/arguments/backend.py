"""Default training back end: Megatron if a flag of Megatron or of the model's shape is given, else FSDP2.

The fork's Megatron launch scripts give shape and parallelism flags without ``--train-backend``, because Megatron is
the default there. Its FSDP scripts give ``--train-backend fsdp`` and none of those flags.
"""

from __future__ import annotations

from collections.abc import Sequence

from slime.args import Arguments
from slime.arguments.megatron import MEGATRON
from slime.arguments.model_shape import MODEL_SHAPE

_SHOWN = 3


def derive_backend(args: Arguments, words: Sequence[str]) -> None:
    """Set ``train_backend`` if it was not given, and ``train_backend_because`` to the flags that decided.

    Args:
        args: flag values; a value other than the default counts as given.
        words: words of the command line and of its ``--config`` file; a flag among them counts whatever its value.
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
    """Return the start-up line that names the back end, and the flags that implied it."""
    because = args.train_backend_because
    missing = args.transformer_impl_because
    layers = f" with layers of plain torch ({missing})" if missing else ""
    if not because:
        return f"trainer  {args.train_backend}{layers}"
    more = f" and {len(because) - _SHOWN} more" if len(because) > _SHOWN else ""
    return (
        f"trainer  {args.train_backend}{layers}, because --train-backend is not given and {', '.join(because[:_SHOWN])}{more} "
        "are Megatron flags; add --train-backend fsdp to use FSDP2"
    )
