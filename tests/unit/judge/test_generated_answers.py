"""Over generated judge answers no verdict is another than the judge's: it is the same, or the vote is invalid."""

from __future__ import annotations

from collections import Counter

from openclaw.judge.answers import read_vote, usable_hint
from tests.helpers.judge_answers import generate

CASES = 4000
MIN_OF_A_KIND = 100


def test_no_sign_is_wrong_over_generated_answers() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(CASES):
        answer = generate(seed)
        vote = read_vote(answer.judge, answer.text, 0.0, finish=answer.finish, inside_thought=answer.inside_thought)
        assert vote.value in (answer.meant, None), (seed, answer, vote)
        assert (vote.value is None) == (vote.invalid is not None)
        if answer.must_be_read:
            assert vote.value == answer.meant, (seed, answer, vote)
        if vote.hint is not None:
            assert (vote.value, usable_hint(vote.hint)) == (1, vote.hint)
        kinds["broken off" if answer.meant is None else f"{answer.judge} {answer.meant} {answer.must_be_read}"] += 1
        kinds["read"] += vote.value is not None
    assert min(kinds.values()) >= MIN_OF_A_KIND, kinds
    assert kinds["read"] >= 500, kinds
