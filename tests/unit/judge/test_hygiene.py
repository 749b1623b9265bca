"""Each defect of a turn has its own reason; a clean turn has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.config.runtime import HYGIENE_RULES, RuntimeConfig
from openclaw.judge.hygiene import Limits, asks_back, defect, is_repetitive, other_script, unpraised

LIMITS = Limits(temperature=0.6, min_response_tokens=3, max_tokens=7)


def test_clean_turn_has_no_defect() -> None:
    assert defect(make_turn(next_state=USER_NEXT), LIMITS) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "side"}, "side"),
        ({"finish_reason": "abort"}, "aborted"),
        ({"next_state": None}, "no_next_state"),
        ({"next_state": []}, "no_next_state"),
        ({"response_ids": [], "response_logprobs": []}, "empty"),
        ({"prompt_ids": []}, "empty"),
        ({"response_logprobs": [-0.1]}, "length_mismatch"),
        ({"temperature": 0.7}, "temperature"),
        ({"prompt_ids": [1, 2, 3, 4, 5]}, "too_long"),
        ({"response_logprobs": [-0.1, float("-inf"), -0.2]}, "non_finite_logprob"),
        ({"response_logprobs": [-0.1, float("nan"), -0.2]}, "non_finite_logprob"),
        ({"weight_versions": []}, "no_weight_version"),
    ],
)
def test_defect_has_its_reason(changes: dict[str, Any], reason: str) -> None:
    assert defect(make_turn(**{"next_state": USER_NEXT, **changes}), LIMITS) == reason


ROOMY = Limits(0.6, 1, 10_000, rules=("truncated", "repetition", "off_language", "malformed_call"))
NO_RULES = Limits(0.6, 1, 10_000, rules=())


CHESS = [{"role": "user", "content": "Please explain the rules of chess."}]


def reply(ids: list[int], **changes: Any) -> Any:
    return make_turn(next_state=USER_NEXT, response_ids=ids, response_logprobs=[-0.5] * len(ids), **changes)


@pytest.mark.parametrize(
    ("turn", "rule"),
    [
        (reply([5] * 13, finish_reason="length"), "truncated"),
        (reply([7] * 4000), "repetition"),
        (reply([*range(30), *[1, 2, 3] * 40]), "repetition"),
        (
            reply([1, 2], messages=CHESS, response_message={"content": "国际象棋的规则很简单,双方轮流走棋。"}),
            "off_language",
        ),
    ],
)
def test_a_rule_keeps_a_reply_from_praise_unless_it_is_switched_off(turn: Any, rule: str) -> None:
    """Finding B3: a reply cut by the limit and 4,000 repeats of one token were trained as good ones."""
    assert defect(turn, ROOMY) is None, "blame for it is trained"
    assert unpraised(turn, ROOMY) == rule
    assert unpraised(turn, NO_RULES) is None


def test_a_fragment_is_not_praised() -> None:
    assert unpraised(reply([5, 6]), Limits(0.6, 3, 10_000)) == "too_short"
    assert unpraised(reply([5, 6, 7]), Limits(0.6, 3, 10_000)) is None


@pytest.mark.parametrize(
    "ids", [list(range(100)), [1, 2] * 10, [*range(100), *[7] * 40], [value % 17 for value in range(30)]]
)
def test_ordinary_replies_are_not_repetitive(ids: list[int]) -> None:
    assert not is_repetitive(ids)


@pytest.mark.parametrize(
    ("asked", "answered", "other"),
    [
        ("Please explain the rules of chess.", "国际象棋的规则很简单,双方轮流走棋。", True),
        ("请用一句话解释国际象棋的基本规则。", "Each side moves one piece in turn until mate.", True),
        ("请用一句话解释国际象棋的基本规则。", "双方轮流走棋,将死对方的王就赢了。", False),
        ("Translate: good evening", "晚上好", False),
        ("What is 2 + 3?", "5", False),
    ],
)
def test_the_script_of_the_user(asked: str, answered: str, other: bool) -> None:
    turn = make_turn(messages=[{"role": "user", "content": asked}], response_message={"content": answered})
    assert other_script(turn) is other


def test_every_rule_can_be_named() -> None:
    for rule in HYGIENE_RULES:
        RuntimeConfig(hygiene=rule).validate()
    with pytest.raises(ConfigError, match="no rule 'polite'"):
        RuntimeConfig(hygiene="truncated,polite").validate()


TOOL_NEXT = [{"role": "tool", "content": "ok"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "read", "arguments": "{}"}}]}


def in_chain(before: int, **changes: Any) -> Any:
    """Return a turn after ``before`` calls and their results in the same request of the user."""
    chain = [message for _ in range(before) for message in (CALL, TOOL_NEXT[0])]
    messages = [{"role": "user", "content": "Old."}, CALL, *TOOL_NEXT, {"role": "user", "content": "Find it."}, *chain]
    return make_turn(messages=messages, response_message=CALL, **{"next_state": TOOL_NEXT, **changes})


def test_a_long_chain_of_calls_trains_its_first_turns() -> None:
    """Finding B4: a tool-heavy task filled the batches."""
    short = Limits(0.6, 1, 10_000, tool_turns=3)
    assert [defect(in_chain(before), short) for before in (0, 2, 3, 7)] == [None, None, "tool_turns", "tool_turns"]
    assert defect(in_chain(7, next_state=USER_NEXT), short) is None, "a user's reaction always counts"
    assert defect(in_chain(7, malformed_calls=1), short) is None, "a broken call is scored wherever it is"
    assert defect(in_chain(7), Limits(0.6, 1, 10_000, tool_turns=0)) is None


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Which of the two do you mean?", True),
        ("Sure! Which file should I change, the first or the second?", True),
        ("你想要哪一个?", True),
        ("أيهما تقصد؟", True),
        ("The file is changed and the tests pass. Anything else?", False),
        ("Is it 5? It is 5.", False),
        ("It is 5.", False),
        ("", False),
        ("?", False),
    ],
)
def test_a_reply_that_only_asks(text: str, asks: bool) -> None:
    turn = make_turn(response_message={"role": "assistant", "content": text}, next_state=USER_NEXT)
    limits = Limits(0.6, 1, 10_000)
    assert asks_back(turn, limits) is asks
    assert not asks_back(turn, NO_RULES)
    assert not asks_back(replace(turn, next_state=TOOL_NEXT), limits)
    acts = {**turn.response_message, "tool_calls": CALL["tool_calls"]}
    assert not asks_back(replace(turn, response_message=acts), limits)
