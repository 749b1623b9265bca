"""Every argument the trainer reads is one that the command line defines."""

from __future__ import annotations

import re
from pathlib import Path

import slime
from lab.testkit.trainer import trainer_args
from slime.arguments import build_parser

SOURCES = ("backends/trainer", "backends/fsdp_utils", "backends/megatron_utils", "algorithms", "weight_sync")


def test_arguments_read_by_the_trainer_exist() -> None:
    assert slime.__file__ is not None
    root = Path(slime.__file__).parent
    text = "\n".join(path.read_text() for folder in SOURCES for path in (root / folder).rglob("*.py"))
    read = set(re.findall(r"\bargs\.([a-z_0-9]+)", text))
    defined = set(dir(build_parser().parse_args([])))
    assert read <= defined
    assert set(vars(trainer_args(""))) <= defined
