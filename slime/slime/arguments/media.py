"""The value of ``--multimodal-keys``: which column holds which kind of media."""

from __future__ import annotations

import argparse

from slime.arguments.option import json_object
from slime.utils.types import MultimodalTypes

OFFERED = MultimodalTypes.IMAGE.name


def media_columns(text: str) -> dict[str, str]:
    """Parse ``{"image": "images"}``.

    Raises:
        argparse.ArgumentTypeError: for a kind that is not known or not offered, and a column that is no name.
    """
    columns = json_object(text)
    known = [kind.name for kind in MultimodalTypes.all()]
    for kind, column in columns.items():
        if kind not in known:
            raise argparse.ArgumentTypeError(f"unknown kind of media {kind!r}; known are {', '.join(known)}")
        if kind != OFFERED:
            raise argparse.ArgumentTypeError(f"no back end trains on {kind}; only {OFFERED} is offered")
        if not isinstance(column, str) or not column:
            raise argparse.ArgumentTypeError(f"{kind!r} needs the name of a column, got {column!r}")
    if not columns:
        raise argparse.ArgumentTypeError(f'names no column; write it like \'{{"{OFFERED}": "images"}}\'')
    return columns
