"""An update changes its state along its table only, and what was not accepted reaches no engine."""

from __future__ import annotations

import itertools

import pytest

from slime.updates.update import TRANSITIONS, State, Update

NOT_TAKEN = {State.HELD, State.UNDONE}


@pytest.mark.parametrize(("before", "after"), itertools.product(State, State))
def test_a_state_changes_along_the_table_only(before: State, after: State) -> None:
    update = Update(3, {}, {}, state=before)
    if after in TRANSITIONS[before]:
        update.to(after)
        assert update.state is after
    else:
        with pytest.raises(RuntimeError, match=f"update 3 cannot change from {before.name} to {after.name}"):
            update.to(after)
        assert update.state is before


def reached(start: State) -> set[State]:
    """Return all states that can follow ``start``."""
    found, todo = set[State](), [start]
    while todo:
        for state in TRANSITIONS[todo.pop()] - found:
            found.add(state)
            todo.append(state)
    return found


def test_the_table_is_whole_and_frozen() -> None:
    assert set(TRANSITIONS) == set(State)
    with pytest.raises(TypeError):
        TRANSITIONS[State.UNDONE] = frozenset({State.PUSHED})  # type: ignore[index]


@pytest.mark.parametrize("state", sorted(NOT_TAKEN, key=lambda state: state.name))
def test_steps_that_were_not_taken_reach_a_checkpoint_without_them_and_nothing_else(state: State) -> None:
    assert reached(state) == {State.EXCLUDED}
    update = Update(3, {}, {}, state=state)
    assert not update.learned
    update.saved()
    assert update.state is State.EXCLUDED
    assert not update.learned


def test_engines_get_only_what_was_accepted() -> None:
    before_the_push = {state for state, after in TRANSITIONS.items() if State.PUSHED in after}
    assert before_the_push == {State.ACCEPTED, State.SAVED}
    assert {state for state, after in TRANSITIONS.items() if State.SAVED in after} == {
        State.ACCEPTED, State.PUSHED, State.LIVE,
    }  # fmt: skip


@pytest.mark.parametrize("state", [State.TRAINED, State.PROBED, State.TRIED, State.RESTORED])
def test_what_is_undecided_or_on_its_way_back_may_not_be_saved(state: State) -> None:
    update = Update(3, {}, {}, state=state)
    assert not update.may_be_saved
    with pytest.raises(RuntimeError):
        update.saved()


def test_a_checkpoint_that_is_due_may_come_before_the_push_or_after_it() -> None:
    for path in ((State.SAVED, State.PUSHED, State.LIVE), (State.PUSHED, State.LIVE, State.SAVED)):
        update = Update(3, {}, {}, state=State.ACCEPTED)
        for state in path:
            update.to(state)
        update.saved()
