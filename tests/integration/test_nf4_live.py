"""A real SGLang engine on the CPU that holds its base in NF4 and gets adapters: log probabilities are those of the trainer."""

from __future__ import annotations

from pathlib import Path

import torch

from lab.testkit.live_engine import engine_arguments, live_engine
from slime.args import Arguments
from tests.helpers.engine_streams import FLOAT32, within
from tests.helpers.needed import needs
from tests.helpers.nf4_parity import NF4, scores

pytestmark = needs("bitsandbytes")


def test_the_engine_has_the_trainers_base_and_adapter(tiny_random_model: Path, tmp_path: Path) -> None:
    own = {"train_dtype": "float32", "distributed_timeout_minutes": 1}
    args = Arguments(**(vars(engine_arguments(tiny_random_model, tmp_path)) | NF4 | own))
    with live_engine(args) as engine:
        found = scores(args, engine, torch.device("cpu"))
    for name, each in found.items():
        assert within((each.trainer - each.engine).abs(), FLOAT32), name
    change = (found["adapter"].trainer - found["base"].trainer).abs()
    assert change.mean() > 100 * FLOAT32.mean
