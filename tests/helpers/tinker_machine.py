"""A machine that notes what is done to each model, in place of engines and ranks, and requests of programs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as messages

from openclaw.tinker.desk import Desk, Offer
from openclaw.tinker.log import CommandLog
from slime.clients.models import AdamSettings, Datum, ModelPlan, Passed
from slime.exceptions import CheckpointError


class NotedMachine:
    """Each model is the list of what was done to it; ``before`` is called before each deed and may raise."""

    def __init__(self, folder: Path, before: Callable[[str], None] = lambda deed: None) -> None:
        self.vocabulary = 100
        self.models: dict[str, list[Any]] = {}
        self.order: list[str] = []
        self.starts, self.exports = 1, 0
        self._folder, self._before = folder, before

    def create(self, model: str, plan: ModelPlan) -> None:
        """See `Machine`."""
        self._before("create")
        self.models[model] = [["create", plan.rank, plan.seed]]

    def drop(self, model: str) -> None:
        """See `Machine`."""
        self.models.pop(model, None)

    def forward_backward(self, model: str, data: Sequence[Datum], loss: str, forward_only: bool) -> Passed:
        """See `Machine`; the log probability of a target is minus its id."""
        self._before("forward_backward")
        self.order.append(model)
        if not forward_only:
            self.models[model].append(["pass", [datum.targets.tolist() for datum in data]])
        return Passed([-datum.targets.astype(np.float32) for datum in data], float(len(data)))

    def optimizer_step(self, model: str, adam: AdamSettings) -> float:
        """See `Machine`."""
        self._before("optimizer_step")
        self.order.append(model)
        if adam.learning_rate == 13.0:
            self.drop_gradient(model)
            return float("inf")
        self.models[model].append(["step", adam.learning_rate])
        return 1.5

    def drop_gradient(self, model: str) -> None:
        """See `Machine`."""
        while self.models[model] and self.models[model][-1][0] == "pass":
            self.models[model].pop()

    def write(self, model: str, folder: Path) -> None:
        """See `Machine`."""
        self._before("write")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(json.dumps(self.models[model]))

    def read(self, model: str, folder: Path, what: str = "everything") -> ModelPlan:
        """See `Machine`."""
        self._before("read")
        if not (folder / "model.json").is_file():
            raise CheckpointError(f"{folder} cannot be read")
        self.models[model] = json.loads((folder / "model.json").read_text())
        if what != "everything":
            self.models[model].append(["loaded", what])
        return ModelPlan(4, 1, ("q_proj",))

    def export(self, model: str, version: int) -> str:
        """See `Machine`."""
        self._before("export")
        self.exports += 1
        name = f"adapter-{self.starts}-{self.exports}-{secrets.token_hex(4)}"
        self.place_of(name).mkdir(parents=True)
        return name

    def adapters(self) -> list[str]:
        """See `Machine`."""
        return [each.name for each in self._folder.glob("adapter-*")]

    def place_of(self, adapter: str) -> Path:
        """See `Machine`."""
        return self._folder / adapter

    def begin_again(self) -> None:
        """See `Machine`."""
        self.models.clear()
        self.starts += 1


def offer_of(folder: Path, **changes: Any) -> Offer:
    """Return what a server offers in the tests."""
    given: dict[str, Any] = {"name": "tiny", "tokenizer": "tiny", "architecture": "Tiny", "context": 32, "rank": 8}
    return Offer(**given | {"modules": ["q_proj", "up_proj"], "folder": folder, "snapshot_steps": 2} | changes)


def run_all(
    log: CommandLog,
    machine: NotedMachine,
    folder: Path,
    *,
    tidy: bool = False,
    check_quota: Callable[[str], None] = lambda owner: None,
    **changes: Any,
) -> Desk:
    """Run what waits in ``log`` to its end, in this thread, and return the desk; ``tidy``: then delete what nothing names."""
    desk = Desk(log, machine, offer_of(folder, **changes), check_quota=check_quota)
    waits = desk._awake.wait

    def stop_when_idle(seconds: float | None = None) -> bool:
        desk.stop()
        return waits(0)

    desk._awake.wait = stop_when_idle  # type: ignore[method-assign]
    desk.run()
    if tidy:
        desk.tidy()
        desk._let_go_of_ended()
    return desk


def create_body(session: str = "s", number: int = 0, **changes: Any) -> bytes:
    """Return the request for a model."""
    given: dict[str, Any] = {"session_id": session, "model_seq_id": number, "base_model": "tiny"}
    return json.dumps(given | {"lora_config": {"rank": 4, "seed": 1}} | changes).encode()


def pass_body(
    model: str, number: int, ids: Sequence[int] = (1, 2, 3), loss: str = "cross_entropy", *, forward_only: bool = False
) -> bytes:
    """Return the request for a pass over one sequence, whose targets are its tokens."""
    message = messages.ForwardBackwardRequest(model_id=model, seq_id=number, loss_fn=loss, forward_only=forward_only)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(ids, np.int32).tobytes()
    datum.loss_fn_inputs["target_tokens"].CopyFrom(
        messages.Tensor(dense=np.array(ids, np.int64).tobytes(), dtype=messages.DTYPE_INT64, shape=[len(ids)])
    )
    return message.SerializeToString()


def step_body(model: str, number: int, rate: float = 0.1) -> bytes:
    """Return the request for a step."""
    return json.dumps({"model_id": model, "seq_id": number, "adam_params": {"learning_rate": rate}}).encode()
