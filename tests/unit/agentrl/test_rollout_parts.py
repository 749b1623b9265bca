"""The pure parts of the agent loop: actions, what is left out of a conversation, rewards."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.protocol import Observation, Verdict
from agentrl.rollout.actions import FORMS, Malformed, Reply, opening
from agentrl.rollout.episode import step_rewards
from agentrl.rollout.play import EpisodeLost, Kept, cut, exchanges, outcome
from agentrl.rollout.settings import Settings
from agentrl.rollout.step_judge import step_score
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from lab.testkit.agent_rollouts import GUESS
from slime.rollout.rewards import trajectory_reward


def said(content: str | None = None, *calls: tuple[str, str], malformed: int = 0) -> Reply:
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return Reply(message, malformed, thought=False)


def test_each_tool_call_is_an_action() -> None:
    actions = FORMS["tool_calls"].actions(said(None, ("guess", '{"number": 7}'), ("look", "")))
    assert [action.content for action in actions] == [
        {"tool": "guess", "arguments": {"number": 7}},
        {"tool": "look", "arguments": {}},
    ]
    assert FORMS["tool_calls"].answer("wrong", actions[1].call_id) == {
        "role": "tool",
        "content": "wrong",
        "tool_call_id": "call1",
    }
    assert FORMS["tool_calls"].actions(said(" seven "))[0].content == {"text": "seven"}


@pytest.mark.parametrize(
    ("form", "reply", "words"),
    [
        ("tool_calls", said("<tool_call>\n{", malformed=1), "could not be read"),
        ("tool_calls", said(None, ("guess", "[7]")), "are not a JSON object"),
        ("code_block", said("no block"), "has 0 code blocks"),
        ("code_block", said("```sh\nls\n```\nor\n```\npwd\n```"), "has 2 code blocks"),
    ],
)
def test_what_cannot_be_read_is_no_action(form: str, reply: Reply, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        FORMS[form].actions(reply)


def test_a_block_keeps_its_text() -> None:
    text = 'Look:\n```python\nprint("```")\n\tx = `1`\n```\nDone.'
    assert FORMS["code_block"].actions(said(text))[0].content == {"code": 'print("```")\n\tx = `1`\n'}


def test_an_environment_chooses_how_the_episode_begins() -> None:
    begin = opening(Observation(text="Guess.", data={"system": "Be brief.", "tools": [GUESS]}))
    assert begin.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Guess."}]
    assert (begin.form, begin.tools) == (FORMS["tool_calls"], [GUESS])
    assert opening(Observation(text="Guess.")).form is FORMS["text"]
    assert opening(Observation(text="x", data={"actions": "code_block"})).form is FORMS["code_block"]
    retool = Observation(text="x", data={"actions": "retool_text"})
    with pytest.raises(ConfigError, match="pictures"):
        opening(retool, pictures=[{"type": "image", "number": 0}])


def test_an_episode_begins_with_the_environments_messages() -> None:
    parts = [{"type": "text", "text": "Guess "}, {"type": "text", "text": "again."}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Guess."},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": parts, "name": "Ann"},
    ]
    begin = opening(Observation(text="for people", data={"messages": messages, "step_seconds": 7}))
    assert begin.messages == [*messages[:3], {"role": "user", "content": "Guess again."}]
    assert (begin.form, begin.step_seconds) == (FORMS["text"], 7.0)


ASKS = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"actions": "telepathy"}, "the agent loop plays tool_calls, code_block, text"),
        ({"tools": [{"name": "guess"}]}, "tools.0.type: Field required"),
        ({"tools": {}}, "tools: Input should be a valid list"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs: "),
        ({"system": 3}, "system: Input should be a valid string"),
        ({"step_seconds": 0}, "step_seconds: "),
        ({"messages": []}, "messages: "),
        ({"messages": ["x"]}, "messages.0: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: "),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [ASKS, {"role": "assistant", "content": "y"}]}, "end with the assistant's"),
        ({"messages": [ASKS], "system": "s"}, "both system and messages"),
    ],
)
def test_what_the_loop_cannot_play_is_an_error_of_the_configuration(data: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opening(Observation(text="x", data=data))


def talk(turns: int, size: int = 10) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "s" * size}, {"role": "user", "content": "u" * size}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": f"a{turn}".ljust(size)})
        messages.append({"role": "tool", "content": f"o{turn}".ljust(size, ".")})
    return messages


def characters(kept: Kept) -> int:
    return sum(len(message["content"]) for _, message in kept)


def test_exchanges_follow_the_first_messages() -> None:
    assert exchanges(talk(2), 2) == [range(2, 4), range(4, 6)]
    assert exchanges(talk(0), 2) == []
    assert exchanges(talk(2), 4) == [range(4, 6)], "an episode that begins with an example"


def test_the_middle_goes_and_three_tenths_of_the_rest_are_the_oldest() -> None:
    found = cut("drop_middle", talk(20, 100), 3200, characters, first=2)
    assert found is not None
    stay = [position for position, _ in found.kept]
    # three quarters of 3200 hold the 200 of the task, the note and 10 exchanges of 200
    assert stay == [*range(8), None, *range(28, 42)]
    assert found.dropped == tuple(range(8, 28))
    assert found.kept[8][1] == {"role": "user", "content": "[10 earlier exchanges are left out]"}
    assert cut("drop_middle", talk(20, 100), 3200, characters, first=2) == found


def test_a_cut_that_only_just_fits_is_better_than_none() -> None:
    messages = talk(3, 100)
    found = cut("drop_middle", messages, 480, characters, first=2)
    assert found is not None
    assert [position for position, _ in found.kept] == [0, 1, None, 6, 7]
    assert cut("drop_middle", messages, 420, characters, first=2) is None


def test_old_observations_shrink_and_replies_stay() -> None:
    messages = talk(6, 1000)
    found = cut("elide", messages, 12_000, characters, first=2, keep_observations=2)
    assert found is not None
    assert found.shortened == (3, 5, 7, 9)
    assert [message for position, message in found.kept if position is not None] == [
        message for n, message in enumerate(messages) if n not in found.shortened
    ]
    assert all(len(message["content"]) < 900 for position, message in found.kept if position is None)
    assert all("characters left out" in message["content"] for position, message in found.kept if position is None)


def test_without_a_policy_nothing_is_left_out() -> None:
    assert cut("none", talk(5), 10, characters, first=2) is None


@pytest.mark.parametrize(
    ("mode", "score", "expected"),
    [("binary", 1.0, 1.0), ("binary", 0.99, -1.0), ("partial", 0.25, -0.5), ("raw", 3.5, 3.5)],
)
def test_outcomes(mode: Any, score: float, expected: float) -> None:
    assert outcome(Verdict(status="ok", score=score), mode) == expected


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [
        ("raw", Verdict(status="infra_error", detail="no image")),
        ("binary", Verdict(status="timeout")),
    ],
)
def test_what_is_no_outcome_is_never_rewarded(mode: Any, verdict: Verdict) -> None:
    with pytest.raises(EpisodeLost):
        outcome(verdict, mode)


def test_a_score_that_the_mode_cannot_read_stops_the_run() -> None:
    with pytest.raises(ConfigError, match=r"the environment's is 1.5; use AGENTRL_REWARD=raw"):
        outcome(Verdict(status="ok", score=1.5), "partial")


def test_a_step_without_a_valid_vote_is_masked() -> None:
    assert step_score([1, -1, 1, None]) == pytest.approx(1 / 3)
    assert step_score([None, 0]) is None
    assert trajectory_reward(1.0, [None, -1.0, 0.5], 0.4) == pytest.approx(1.0 + 0.4 * -0.25)
    assert trajectory_reward(-1.0, [None, None], 0.4) == -1.0
    assert step_rewards(1.0, [None, 1.0, -1.0], 0.5, 0.5) == [0.25, 1.0, 0.5]


def test_a_variable_that_is_wrong_is_named() -> None:
    assert Settings.from_env({}).context == "none"
    with pytest.raises(ConfigError, match="AGENTRL_CONTEXT='all' is not a choice; use one of none, drop_middle, elide"):
        Settings.from_env({"AGENTRL_CONTEXT": "all"})
    assert "secret" not in repr(Settings.from_env({"AGENTRL_KEY": "secret"}))
