"""What the trainer tells the certificate of its steps: how far weights moved, and which samples have a signal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slime.args import READ, Arguments, ConfigView
from slime.backends.trainer import host_memory
from slime.backends.trainer.host_memory import Changing, Snapshot
from slime.backends.trainer.metrics import has_signal
from slime.backends.trainer.schedule import Schedule

ZERO, SOME = torch.zeros(2), torch.tensor([0.0, -0.5])
ALL, NONE, FIRST = torch.ones(2), torch.zeros(2), torch.tensor([1, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_snapshot_tells_how_far_weights_moved(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(host_memory, "COMPARED", 4)
    small, large = torch.ones(2, dtype=dtype), torch.ones(3, 8, dtype=dtype)
    changing = Changing([small, large, large.view(24)], [], [], Schedule(Arguments(lr_decay_style="constant"), None))
    snapshot = Snapshot(torch.device("cpu"))
    try:
        snapshot.take(changing)
        assert snapshot.moved(changing) == (0.0, 6)
        small -= 0.5
        large[0] += 0.25
        total, count = snapshot.moved(changing)
        assert (total, count) == (2 * 0.5**2 + 4 * 0.25**2, 6), "tied weights count once, and a part of large ones"
    finally:
        snapshot.close()


@pytest.mark.parametrize(
    ("fields", "loss_type", "expected"),
    [
        ({"advantages": [SOME], "loss_masks": [ALL]}, "policy_loss", True),
        ({"advantages": [ZERO], "loss_masks": [ALL]}, "policy_loss", False),
        ({"advantages": [SOME], "loss_masks": [FIRST]}, "policy_loss", False),
        ({"advantages": [ZERO], "loss_masks": [ALL], "teacher_log_probs": [SOME]}, "policy_loss", False),
        ({"advantages": [ZERO], "loss_masks": [ALL], "teacher_log_probs": [SOME]}, "custom_loss", True),
        ({"advantages": [ZERO], "loss_masks": [NONE], "teacher_log_probs": [SOME]}, "custom_loss", False),
        ({"advantages": [ZERO], "loss_masks": [ALL], "teacher_log_probs": [None]}, "custom_loss", False),
    ],
)
def test_a_sample_has_a_signal_where_a_token_with_loss_has_one(
    fields: dict[str, Any], loss_type: str, expected: bool
) -> None:
    data: Any = SimpleNamespace(fields=fields)
    assert has_signal(Arguments.of({"loss_type": loss_type}), data, 0) is expected


def test_reading_an_argument_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    args = Arguments()
    READ.clear()
    vars(args), args.changed(lr=0.5)
    assert not {"lr", "gamma", "eps_clip"} & READ
    assert args.lr == 1e-6
    assert ConfigView(args)["gamma"] == 1.0
    assert {"lr", "gamma"} <= READ
    assert "eps_clip" not in READ
