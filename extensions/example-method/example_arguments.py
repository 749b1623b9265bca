"""Flags of the example's own."""

from __future__ import annotations


def add_custom_arguments(parser):
    """Declare ``--example-imitation``."""
    parser.add_argument(
        "--example-imitation", type=float, default=0.1, help="weight of the pull towards samples with a high reward"
    )
    return parser
