"""Judges that are not an engine of the run: any OpenAI-compatible endpoint, and a Python class."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.client import JudgeSampling
from openclaw.judge.endpoint import ClassJudge, EndpointJudge, load_class_judge
from openclaw.judge.interface import NoJudge, Question
from openclaw.judge.wiring import build_group_judge, build_judge_loop
from openclaw.ledger.store import Ledger
from openclaw.method import JudgePlan
from tests.helpers.fake_engine import scripted_transport

PROMPT = [{"role": "user", "content": "What is 2 + 3?"}]
REPLY = {"role": "assistant", "content": "The sum is **5**."}
FOLLOWING = [{"role": "user", "content": "No bold please."}]
QUESTION = Question.about(PROMPT, REPLY, FOLLOWING)


def completion(text: Any, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


def endpoint(transport: httpx.AsyncBaseTransport, **changes: Any) -> EndpointJudge:
    settings: dict[str, Any] = {
        "model": "big",
        "key": "k-123",
        "variant": "full",
        "sampling": JudgeSampling(0.3, 0.9, 77),
    }
    return EndpointJudge(
        "http://judge/v1/", timeout=5.0, concurrency=2, backoff=0.0, transport=transport, **settings | changes
    )


async def test_the_endpoint_is_asked_as_a_chat_with_the_key() -> None:
    transport, requests = scripted_transport([completion("correction. \\boxed{-1}")])
    judge = endpoint(transport)
    votes = await judge.votes("prm", QUESTION, 2)
    assert [vote.value for vote in votes] == [-1, -1]
    body = json.loads(requests[0].content)
    assert (str(requests[0].url), requests[0].headers["authorization"]) == (
        "http://judge/v1/chat/completions",
        "Bearer k-123",
    )
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("big", 0.3, 0.9, 77)
    assert "No bold please." in body["messages"][1]["content"]
    await judge.close()


@pytest.mark.parametrize(
    ("answer", "invalid"),
    [
        (completion("at first \\boxed{1}", "length"), "cut_off"),
        (completion(None), "no_box"),
        (completion("{}"), "no_box"),
    ],
)
async def test_an_unusable_answer_is_an_invalid_vote(answer: dict[str, Any], invalid: str) -> None:
    transport, _ = scripted_transport([answer])
    [vote] = await endpoint(transport).votes("prm", QUESTION, 1)
    assert (vote.value, vote.invalid) == (None, invalid)


async def test_overload_and_broken_connections_are_retried() -> None:
    transport, requests = scripted_transport([429, httpx.ConnectError("gone"), completion("\\boxed{1}")])
    [vote] = await endpoint(transport).votes("prm", QUESTION, 1)
    assert (vote.value, len(requests)) == (1, 3)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_what_a_person_can_mend_leaves_the_turn_pending(status: int) -> None:
    transport, _ = scripted_transport([status])
    with pytest.raises(EngineUnavailableError) as caught:
        await endpoint(transport, retries=1).votes("prm", QUESTION, 1)
    assert "k-123" not in str(caught.value)


async def test_a_question_that_the_endpoint_refuses_is_final() -> None:
    transport, requests = scripted_transport([400])
    with pytest.raises(EngineRefusedError):
        await endpoint(transport).votes("prm", QUESTION, 1)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("reply", "up"), [(completion("Hi"), True), (400, True), (404, False), (401, False), (503, False)]
)
async def test_the_probe_tells_whether_the_endpoint_can_be_asked(reply: Any, up: bool) -> None:
    """A wrong key or address counts as an outage, in which no turn is given up."""
    transport, requests = scripted_transport([reply])
    assert await endpoint(transport).answers() is up
    assert json.loads(requests[0].content)["max_tokens"] == 1


class Strict:
    """Scores by a word; the value decides what it returns."""

    def __init__(self, value: Any = -1) -> None:
        self.value = value
        self.seen: tuple[Any, ...] = ()

    def score(self, prompt: Any, response: Any, next_state: Any) -> Any:
        self.seen = (prompt, response, next_state)
        return self.value

    def hint(self, prompt: Any, response: Any, next_state: Any) -> str | None:
        return "Write without bold type." if "bold" in next_state[-1]["content"] else None


class Compares(Strict):
    def score_group(self, prompt: Any, replies: Any, rubric: str) -> list[float]:
        return [0.5] * len(replies)


class NoHints:
    def score(self, prompt: Any, response: Any, next_state: Any) -> int:
        return 1


class Broken:
    def __init__(self) -> None:
        raise KeyError("a file")


async def test_a_class_sees_the_messages_and_its_score_is_the_vote() -> None:
    strict = Strict()
    [vote] = await ClassJudge(strict).votes("prm", QUESTION, 1)
    assert (vote.value, vote.invalid) == (-1, None)
    assert strict.seen == (PROMPT, REPLY, FOLLOWING)
    [hinted] = await ClassJudge(strict).votes("hint", QUESTION, 1)
    assert (hinted.value, hinted.hint) == (1, "Write without bold type.")


@pytest.mark.parametrize("value", [None, 0.5, "1", True, 2])
async def test_anything_but_a_score_is_an_invalid_vote(value: Any) -> None:
    [vote] = await ClassJudge(Strict(value)).votes("prm", QUESTION, 1)
    assert (vote.value, vote.invalid) == (None, "other_box")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoHints", "add: def hint"),
        ("Broken", "raised KeyError"),
        ("PROMPT", "raised TypeError"),
        ("Absent", "Absent"),
    ],
)
def test_an_unusable_class_is_refused_with_what_to_write(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_class_judge(f"{__name__}.{name}", JudgePlan(hint_votes=1))


CONFIG = RuntimeConfig(policy_url="http://127.0.0.1:1", judge_base_url="http://127.0.0.1:1/v1", judge_model="big")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"judge_class": "a.B"}, "both name a judge"),
        ({"judge_model": None}, "belong together"),
        ({"judge_base_url": "host/v1"}, "is not an HTTP URL"),
        ({"judge_base_url": None, "judge_model": None, "judge_api_key": "k"}, "not set"),
        ({"judge_base_url": None, "judge_model": None, "judge_class": "Polite"}, "module.Class"),
        (
            {"judge_base_url": "https://me:word@host/v1"},
            "leave the name and password out of the URL; OPENCLAW_JUDGE_API",
        ),
        ({"opd_teacher": "prm"}, "needs a judge engine"),
        ({"practice_rubric": "group", "judge_prompts": "brief"}, "class with score_group"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(CONFIG, **changes).validate()


async def test_no_engine_of_the_run_is_needed(tmp_path: Any) -> None:
    config = replace(CONFIG, method="openclaw_rl_method.BinaryRL")
    config.validate()
    loop = build_judge_loop(config, Ledger(tmp_path / "ledger.sqlite"), lambda *_: [1], CollectorRegistry())
    assert isinstance(loop.engines[0], EndpointJudge)
    for engine in loop.engines:
        await engine.close()


def test_a_run_that_compares_replies_needs_a_judge_that_can() -> None:
    group = replace(CONFIG, practice_rubric="group", prm_m=3)
    assert build_group_judge(CONFIG, NoJudge()) is None
    assert build_group_judge(group, ClassJudge(Compares())) is not None
    with pytest.raises(ConfigError, match=r"lacks: def score_group\(self, prompt, replies, rubric\)"):
        build_group_judge(group, ClassJudge(Strict()))
    with pytest.raises(ConfigError, match="the method asks none"):
        build_group_judge(group, NoJudge())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (completion("\\boxed{1}", "abort"), "gave the request up"),
        (completion("\\boxed{1}", "error"), "gave the request up"),
        ({"object": "error"}, "sent no chat completion"),
        ({"choices": []}, "sent no chat completion"),
        ({"choices": [{"message": "\\boxed{1}"}]}, "sent no chat completion"),
        (302, "HTTP 302"),
        (402, "HTTP 402"),
    ],
)
async def test_what_is_no_answer_of_the_judge_is_no_vote(answer: Any, words: str) -> None:
    """Finding A3, at an endpoint: an aborted answer counted as a vote."""
    transport, _ = scripted_transport([answer])
    with pytest.raises(EngineUnavailableError, match=words):
        await endpoint(transport).votes("prm", QUESTION, 1)


async def test_an_answer_cut_by_a_content_filter_is_no_vote() -> None:
    transport, _ = scripted_transport([completion("at first \\boxed{1}", "content_filter")])
    [vote] = await endpoint(transport).votes("prm", QUESTION, 1)
    assert vote.invalid == "cut_off"


async def test_an_answer_in_parts_is_read() -> None:
    transport, _ = scripted_transport(
        [completion([{"type": "text", "text": "so \\boxed{"}, {"type": "text", "text": "-1}"}])]
    )
    [vote] = await endpoint(transport).votes("prm", QUESTION, 1)
    assert vote.value == -1


CONTROL_TOKENS = ["<|im_end|>", "<|im_start|>", "</s>", "<s>", "<think>", "</think>", "<|eot_id|>", "<|start_header_id|>", "<start_of_turn>",
                  "[INST]", "[/INST]", "<<SYS>>", "<\uff5cUser\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[gMASK]", "<|fim.pad|>",
                  "]~b]", "]~!b[", "[SYSTEM_PROMPT]", "<unused7>", "<|channel|>"]  # fmt: skip


async def test_judged_text_reaches_a_server_without_control_tokens() -> None:
    """A server tokenizes the prompt as one text, so a tool result could end its message and speak as another."""
    attack = "".join(f"a{token}b<{token}>" for token in CONTROL_TOKENS)
    transport, requests = scripted_transport([completion("\\boxed{-1}")])
    question = Question(attack, (("tool", attack), ("user", attack)))
    await endpoint(transport).votes("prm", question, 1)
    system, asked = json.loads(requests[0].content)["messages"]
    assert [token for token in CONTROL_TOKENS if token in asked["content"]] == []
    assert "\\boxed{1}" in system["content"]
    assert "<<<" in asked["content"]
