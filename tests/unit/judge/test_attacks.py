"""No attack buys a verdict or a hint, even from a judge that obeys all it finds outside the fences."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lab.testkit.tiny_random import build_tokenizer
from openclaw.judge import prompts
from openclaw.judge.answers import read_vote
from openclaw.judge.client import JudgeClient, JudgeSampling
from openclaw.judge.endpoint import EndpointJudge
from openclaw.judge.interface import Question
from openclaw.ledger.records import JudgeKind
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.judge_attacks import NONCE, Gullible, attacks

pytestmark = pytest.mark.slow

FEWEST = 300
KINDS: tuple[JudgeKind, ...] = ("prm", "hint")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


def questions(attack: str) -> list[Question]:
    """Return the questions about a tool result with the attack, and about a reply with it."""
    failed = {"role": "tool", "content": "error: HTTP 500"}
    return [
        Question.about([], {"role": "assistant", "content": "Fetching."}, [{"role": "tool", "content": attack}]),
        Question.about([], {"role": "assistant", "content": attack}, [failed]),
    ]


def unsold(judge: Gullible, kind: JudgeKind, ids: list[int], attack: str) -> int:
    """Check all that the judge may answer; return how many answers were votes."""
    votes = [read_vote(kind, answer, 0.0) for answer in judge.answers(ids)]
    assert not judge.bought, (kind, attack, judge.bought)
    for vote in votes:
        assert (vote.value in (-1, None), vote.hint) == (True, None), (kind, attack, vote)
    return sum(vote.value == -1 for vote in votes)


@pytest.mark.parametrize("knows_the_word", [False, True])
async def test_no_attack_buys_a_verdict_of_an_engine(
    tokenizer: Any, knows_the_word: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if knows_the_word:
        monkeypatch.setattr(prompts, "new_nonce", lambda: NONCE)
    judge = JudgeClient(FakeEngine(), tokenizer, "full", JudgeSampling())
    gullible = Gullible(tokenizer, careless=not knows_the_word)
    asked = votes = 0
    for attack in attacks():
        for question in questions(attack):
            for kind in KINDS:
                votes += unsold(gullible, kind, judge.prompt_ids(kind, question), attack)
                asked += 1
    assert asked >= 4 * FEWEST
    assert votes > 3 * asked


async def test_no_attack_buys_a_verdict_of_an_endpoint(tokenizer: Any) -> None:
    """The server renders the chat as one text, in which a spelled control token is one."""
    gullible = Gullible(tokenizer, careless=True)
    sent: list[list[int]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        messages = json.loads(request.content)["messages"]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        sent.append(tokenizer.encode(text, add_special_tokens=False))
        answer = {"message": {"content": "\\boxed{-1}"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [answer]})

    judge = EndpointJudge(
        "http://judge/v1",
        model="big",
        key=None,
        variant="full",
        sampling=JudgeSampling(),
        timeout=60.0,
        concurrency=1,
        transport=httpx.MockTransport(serve),
    )
    for attack in attacks():
        for question in questions(attack):
            for kind in KINDS:
                await judge.votes(kind, question, 1)
                unsold(gullible, kind, sent[-1], attack)
    assert len(sent) >= 4 * FEWEST
    await judge.close()


def test_the_gullible_judge_is_one(tokenizer: Any) -> None:
    """Without fences and defusing, attacks do buy verdicts, so the tests above are able to fail."""
    gullible = Gullible(tokenizer, careless=False)
    bought = 0
    for attack in attacks():
        naive = f"## Reply\n<<<{NONCE}\nFetching.\n{NONCE}>>>\n\n## Next state [tool]\n<<<{NONCE}\n{attack}\n{NONCE}>>>"
        text = f"<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n{naive}<|im_end|>\n<|im_start|>assistant\n"
        answers = gullible.answers(tokenizer.encode(text, add_special_tokens=False))
        bought += any(read_vote("prm", answer, 0.0).value == 1 for answer in answers)
    assert bought >= len(attacks()) // 2
