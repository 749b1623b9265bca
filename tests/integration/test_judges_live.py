"""Judges on real servers: the endpoint of `transformers serve`, and an SGLang engine with its grammar and its own endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from chat_codec.prompts import Prompts
from groundwork.network import find_available_port
from lab.testkit.live_engine import engine_arguments, live_engine
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import wait_until
from openclaw.exceptions import EngineUnavailableError
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling
from openclaw.judge.endpoint import EndpointJudge
from openclaw.judge.group import Group, GroupJudge, shown
from openclaw.judge.interface import Question
from openclaw.judge.prompts import group_messages
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.taught_model import teach

PATIENCE = 120.0
VOTES = 8
BAD = "I see. \\boxed{-10}"
"""No vote as it stands. Under the grammar only the box's content changes: after ``-1`` it must end."""


def question(text: str) -> Question:
    return Question.about(
        [], {"role": "assistant", "content": "The sum is **5**."}, [{"role": "user", "content": text}]
    )


QUESTION = question("Without bold, please.")


def prompts(kind: Any = "prm") -> list[list[int]]:
    judge = JudgeClient(FakeEngine(), build_tokenizer(), "brief", JudgeSampling())
    return [judge.prompt_ids(kind, question(text)) for text in ("Without bold, please.", "Thanks!", "Again: 3 + 4?")]


GROUP = Group(
    [{"role": "user", "content": "What is 2 + 3?"}],
    [[{"role": "assistant", "content": text}] for text in ("The sum is 5.", "The sum is 6.")],
    "The right sum.",
)


def group_prompts() -> list[list[int]]:
    prompts = Prompts(build_tokenizer())
    prompt, members = shown(GROUP, 10_000)
    return [
        prompts.ids(group_messages(GROUP.rubric, prompt, each), keywords={"enable_thinking": False})
        for each in (members, members[::-1])
    ]


@pytest.fixture(scope="module")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach(tmp_path_factory.mktemp("judge") / "good", "A correction. \\boxed{-1}", prompts())


@pytest.fixture(scope="module")
def bad_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach(tmp_path_factory.mktemp("judge") / "bad", BAD, [*prompts(), *prompts("hint"), *group_prompts()])


@pytest.fixture(scope="module")
def served(good_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve ``good_model`` with transformers and yield the base URL."""
    port, log = find_available_port(), tmp_path_factory.mktemp("serve") / "log"
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(good_model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        try:
            wait_until(lambda: _healthy(process, port), log.read_text)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait()


def _healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "transformers serve ended"
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def endpoint(url: str, model: Path, tokens: int = 40) -> EndpointJudge:
    sampling = JudgeSampling(temperature=0.1, max_new_tokens=tokens)
    return EndpointJudge(
        url,
        model=str(model),
        key="unused",
        variant="brief",
        sampling=sampling,
        timeout=PATIENCE,
        concurrency=2,
        backoff=0.0,
    )


async def test_a_second_real_server_judges(served: str, good_model: Path) -> None:
    judge = endpoint(served, good_model)
    assert await judge.answers()
    votes = await judge.votes("prm", QUESTION, 2)
    assert [(vote.value, vote.invalid) for vote in votes] == [(-1, None)] * 2, votes
    await judge.close()


async def test_a_cut_answer_of_a_second_real_server_is_no_vote(served: str, good_model: Path) -> None:
    judge = endpoint(served, good_model, tokens=3)
    [vote] = await judge.votes("prm", QUESTION, 1)
    assert (vote.value, vote.invalid) == (None, "cut_off"), vote
    await judge.close()


async def test_a_wrong_address_leaves_the_turn_pending(served: str, good_model: Path) -> None:
    judge = endpoint(served + "/elsewhere", good_model)
    with pytest.raises(EngineUnavailableError, match="404"):
        await judge.votes("prm", QUESTION, 1)
    assert not await judge.answers()
    await judge.close()


async def test_the_grammar_ends_every_answer_in_a_box(bad_model: Path, tmp_path: Path) -> None:
    """The model writes a box that is not a vote; the engine's grammar lets it end in a vote only."""
    tokenizer = AutoTokenizer.from_pretrained(bad_model)
    with live_engine(engine_arguments(bad_model, tmp_path)) as engine:
        http = EngineHttp(engine.url(), timeout=PATIENCE, concurrency=4)
        plain = JudgeClient(http, tokenizer, "brief", JudgeSampling(max_new_tokens=40, grammar=False))
        votes = await plain.votes("prm", QUESTION, VOTES)
        assert {vote.invalid for vote in votes} <= {"other_box", "no_box", "cut_off"}, votes
        assert "other_box" in {vote.invalid for vote in votes}
        bound = JudgeClient(http, tokenizer, "brief", JudgeSampling(max_new_tokens=40))
        for kind in ("prm", "hint"):
            for vote in await bound.votes(kind, QUESTION, VOTES):
                assert vote.invalid in (None, "cut_off"), vote
                assert vote.invalid or vote.answer.endswith("\\boxed{-1}"), vote
        assert sum(vote.value == -1 for vote in await bound.votes("prm", QUESTION, VOTES)) >= VOTES // 2
        compared = await GroupJudge(bound, VOTES, quorum=0.5).compare(GROUP)
        assert compared.outcome in ("scored", "tied"), compared
        assert {vote.invalid for vote in compared.votes} <= {None, "cut_off"}, compared
        own = endpoint(f"{engine.url()}/v1", bad_model)
        assert await own.answers()
        assert {vote.invalid for vote in await own.votes("prm", QUESTION, 2)} == {"other_box"}
        for judge in (plain, own):
            await judge.close()
