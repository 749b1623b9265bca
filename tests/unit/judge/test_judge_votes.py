"""From votes to one verdict: majorities, ties, thresholds, hints; and the texts a judge is shown."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.judge.answers import longest_hint
from openclaw.judge.voting import agreement, has_quorum, majority
from openclaw.ledger.records import Vote
from openclaw.messages.text import clip_middle, content_text, next_state_role, next_state_text, response_text

values = st.lists(st.sampled_from([-1, 0, 1, None]), max_size=9)


@pytest.mark.parametrize(
    ("votes", "threshold", "score"),
    [
        ([1, 1, -1], 0.6, 1),
        ([1, 1, -1], 0.7, 0),
        ([1, -1], 0.5, 0),
        ([1, -1, None], 0.5, 0),
        ([None, None, -1], 0.6, -1),
        ([None, None], 0.6, 0),
        ([], 0.6, 0),
        ([0, 0, 1], 0.6, 0),
        ([-1], 0.6, -1),
        ([1, 0, -1], 0.1, 0),
    ],
)
def test_majority(votes: list[int | None], threshold: float, score: int) -> None:
    assert majority(votes, threshold) == score


@given(values, st.floats(0.01, 1.0))
def test_majority_does_not_depend_on_order_and_is_held_by_enough(votes: list[int | None], threshold: float) -> None:
    score = majority(votes, threshold)
    assert score == majority(list(reversed(votes)), threshold)
    if score != 0:
        valid = Counter(value for value in votes if value is not None)
        assert valid[score] / valid.total() >= threshold
        assert all(valid[score] > count for value, count in valid.items() if value != score)


@given(values)
def test_opposite_votes_give_the_opposite_score(votes: list[int | None]) -> None:
    flipped = [None if value is None else -value for value in votes]
    assert majority(flipped, 0.6) == -majority(votes, 0.6)


def test_agreement_counts_invalid_votes() -> None:
    assert agreement([1, 1, None, -1]) == 0.5
    assert agreement([None]) == 0.0
    assert agreement([]) == 0.0


def test_longest_accepted_hint_wins_and_the_first_of_equals() -> None:
    hints = [None, "short hint text", "a longer hint text", "b longer hint text"]
    votes = [Vote("hint", "", -1 if hint is None else 1, hint) for hint in hints]
    assert longest_hint(votes) == "a longer hint text"
    assert longest_hint(votes[:1]) is None


@pytest.mark.parametrize(
    ("values", "share", "reached"),
    [
        ([1, None, None], 0.5, False),
        ([1, -1, None], 0.5, True),
        ([None], 0.1, False),
        ([0], 1.0, True),
        ([1, None, 1, 1], 1.0, False),
        ([], 0.5, True),
    ],
)
def test_a_quorum_is_a_share_of_the_votes_asked_for(values: list[int | None], share: float, reached: bool) -> None:
    votes = [Vote("prm", "", value) for value in values]
    assert has_quorum(votes, share) is reached


def test_reply_shows_content_and_tool_calls_but_no_thinking() -> None:
    message = {
        "role": "assistant",
        "content": "Let me look.\n",
        "reasoning_content": "secret",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}},
            {"id": "2", "type": "function", "function": {"name": "list", "arguments": {"path": "b"}}},
        ],
    }
    assert response_text(message) == 'Let me look.\ntool call read({"path": "a"})\ntool call list({"path": "b"})'


def test_next_state_of_several_messages_is_one_text() -> None:
    tools = [{"role": "tool", "content": "one"}, {"role": "tool", "content": [{"type": "text", "text": "two"}]}]
    assert next_state_text(tools[:1]) == "one"
    assert next_state_text(tools) == "[tool]\none\n\n[tool]\ntwo"
    assert next_state_role(tools) == "tool"
    assert next_state_role([*tools, {"role": "user", "content": "thanks"}]) == "user"


def test_content_of_every_shape() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert [content_text(content) for content in (None, "a", parts)] == ["", "a", "a[image_url]"]
    with pytest.raises(ValueError, match="int"):
        content_text(3)


@given(st.text(max_size=50), st.integers(2, 20))
def test_clipping_keeps_both_ends(text: str, limit: int) -> None:
    clipped = clip_middle(text, limit)
    if len(text) <= limit:
        assert clipped == text
    else:
        assert clipped.startswith(text[: limit // 2])
        assert clipped.endswith(text[-(limit // 2) :])
