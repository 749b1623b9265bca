"""The phases of a run change along their table; its progress knows what is unsaved and what is untold."""

from __future__ import annotations

import itertools

import pytest

from slime.args import Arguments
from slime.exceptions import DataUsedError, RankLostError
from slime.ray.run import TRANSITIONS, Phase, Run, RunLife
from slime.updates.update import Progress, State, Update


@pytest.mark.parametrize(("before", "after"), itertools.product(Phase, Phase))
def test_a_phase_changes_along_the_table_only(before: Phase, after: Phase) -> None:
    life = RunLife(before)
    if after in TRANSITIONS[before]:
        life.to(after)
        assert life.phase is after
    else:
        with pytest.raises(RuntimeError, match=f"from {before.name} to {after.name}"):
            life.to(after)
        assert life.phase is before


def test_every_phase_can_end_and_an_ended_run_stays_so() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert all(Phase.ENDING in TRANSITIONS[phase] for phase in Phase if phase is not Phase.ENDING)
    assert not TRANSITIONS[Phase.ENDING]


def test_a_loss_is_known_until_the_run_starts_again() -> None:
    life, lost = RunLife(Phase.UP), RankLostError("a rank died", "train")
    life.lose(lost)
    assert (life.phase, life.lost) == (Phase.LOST, lost)
    life.to(Phase.STARTING)
    assert life.lost is None


def test_progress_knows_what_is_unsaved_and_untold() -> None:
    progress = Progress()
    assert not progress.unsaved
    progress.stepped(Update(3, {}, {}, state=State.ACCEPTED))
    assert progress.unsaved
    assert progress.untold_before_start() is None
    progress.saved = 3
    assert not progress.unsaved
    progress.start = 4  # a loss came after the checkpoint and before the report
    told = progress.untold_before_start()
    assert told is not None
    assert told.rollout_id == 3
    assert progress.told() == progress.free_since
    assert progress.untold_before_start() is None
    progress.went_back()
    assert not progress.unsaved


def test_a_run_that_was_left_does_not_start_again() -> None:
    run = Run(Arguments(save=None))
    run.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="from ENDING to STARTING"):
        run._start()


def test_the_end_of_the_data_is_told_and_the_last_step_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, saved = Run(Arguments(save="checkpoints", run_dir="run")), list[int | None]()
    monkeypatch.setattr(run.updates, "save", saved.append)
    of_ray = DataUsedError("a traceback of another process")
    of_ray.cause = DataUsedError("data     all used")  # type: ignore[attr-defined]
    run.data_used(of_ray)
    assert saved == [], "nothing was trained"
    run.updates.progress.stepped(Update(3, {}, {}, state=State.ACCEPTED))
    run.data_used(DataUsedError("data     all used"))
    assert saved == [3]
    assert capsys.readouterr().out.splitlines() == ["data     all used"] * 2
