"""A run ends on a signal whatever it was doing, and lets go of what it holds."""

from __future__ import annotations

import pytest

from slime.args import Arguments
from slime.ray.run import Run, Stopped
from slime.updates.update import State, Update


def test_a_signal_is_noticed_although_the_next_batch_is_ready() -> None:
    run = Run(Arguments(save=None))
    run.stop._handle(15, None)
    with pytest.raises(Stopped):
        run.wait("a reference that is never looked at")  # type: ignore[arg-type]


def test_a_failed_last_checkpoint_still_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Arguments(save="somewhere"))
    ended: list[str] = []
    run._resources.callback(ended.append, "ended")
    run.updates.progress.stepped(Update(3, {}, {}, state=State.ACCEPTED))

    def fails(rollout_id: int | None) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(run.updates, "save", fails)
    with pytest.raises(OSError, match="disk is full"):
        run.__exit__(None, None, None)
    assert ended == ["ended"]
