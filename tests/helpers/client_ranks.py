"""A rank of programs' models without Ray, and data for it."""

from __future__ import annotations

import json
import secrets
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lab.testkit import trainer
from slime.clients.models import LOSS_INPUTS, AdamSettings, Datum, ModelPlan, Passed, complete
from slime.clients.rank import ClientRank

ADAM = AdamSettings(1e-2, 0.9, 0.95, 1e-8, 0.0, 0.0)
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAN = ModelPlan(4, 7, ALL)


def start(model: Path | str, folder: Path, rank: int = 0, world_size: int = 1, **changes: Any) -> ClientRank:
    """Return a ready rank."""
    args = trainer.trainer_args(
        str(model),
        use_lora=True,
        lora_alpha=32,
        update_weight_mode="adapter",
        **{"max_tokens_per_gpu": 30, "run_dir": str(folder)} | changes,
    )
    place = str(folder / ("meeting" if world_size > 1 else f"meeting-{secrets.token_hex(4)}"))
    actor = ClientRank(world_size, rank, "127.0.0.1", trainer.meeting_port(rank, place))
    actor.init(args)
    return actor


def data_of(seed: int, count: int = 5, vocab: int = 600) -> list[Datum]:
    """Return data of different lengths whose targets are not the tokens that follow, for any loss."""
    random = np.random.default_rng(seed)
    data = []
    for length in random.integers(3, 18, count):
        inputs = {
            "weights": random.normal(size=length),
            "logprobs": -random.random(length) * 8,
            "advantages": random.normal(size=length),
        }
        ids = random.integers(3, vocab, (2, length))
        data.append(Datum(ids[0], ids[1], {name: value.astype(np.float32) for name, value in inputs.items()}))
    return data


def passed(
    actor: ClientRank, model: str, data: list[Datum], loss: str = "cross_entropy", *, forward_only: bool = False
) -> Passed:
    """Pass over data with the inputs that a loss reads."""
    inputs = LOSS_INPUTS[loss]
    known = {*inputs.needs, *inputs.defaults}
    read = [
        datum._replace(inputs={name: value for name, value in datum.inputs.items() if name in known}) for datum in data
    ]
    return actor.forward_backward(model, complete(read, loss, {}, vocabulary=656, context=64), loss, forward_only)


def gradients(actor: ClientRank) -> dict[str, np.ndarray]:
    """Return the gradients of the model that is in, by name."""
    found = {}
    for name, parameter in actor.backend.model.hf.named_parameters():
        if parameter.grad is not None:
            whole: Any = parameter.grad
            whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            found[name] = whole.numpy().copy()
    return found


def on_a_rank(rank: int, world_size: int, model: str, out: str) -> None:
    """Write what two models give after a step each, on rank 0."""
    warnings.filterwarnings("ignore")
    actor = start(model, Path(out), rank, world_size)
    actor.create("one", PLAN)
    passed(actor, "one", data_of(1))
    actor.create("two", PLAN)
    passed(actor, "two", data_of(2, count=1), "ppo")
    norms = [actor.optimizer_step(name, ADAM) for name in ("one", "two")]
    scores = [passed(actor, name, data_of(3), forward_only=True) for name in ("one", "two")]
    actor.shutdown()
    if rank == 0:
        values = [[each.tolist() for each in one.log_probs] for one in scores]
        Path(out, "found.json").write_text(json.dumps({"norms": norms, "log_probs": values}))
