"""Teacher log-probabilities are those of a float32 forward over joined ids, first token included."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from groundwork.chat_messages import Message
from lab.testkit.ledger_records import make_turn
from openclaw.exceptions import EngineUnavailableError, TeacherMismatchError
from openclaw.judge.reading import with_served_ids
from openclaw.judge.teacher import TeacherScorer, context_of, score, under_hint
from openclaw.ledger.records import Turn, Verdict, VersionSpan
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL
from tests.helpers.fake_engine import FakeEngine

HINT = "Write plain prose without bold."


def hinted_messages(turn: Turn) -> list[Message]:
    return append_hint(turn.messages, HINT)


class Forward:
    """log p(ids[k] | ids[:k]) at a temperature, by a plain transformers forward; entry 0 is meaningless."""

    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def __call__(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        with torch.no_grad():
            logits = self.model(torch.tensor([list(ids)])).logits[0] / temperature
        log_probs = torch.log_softmax(logits[:-1].double(), dim=-1)
        self.table = log_probs
        picked = log_probs.gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0]
        return [0.0, *picked.tolist()]

    def topk(self, ids: Sequence[int], count: int) -> list[list[tuple[float, int]]]:
        """The ``count`` most likely tokens at each position, at temperature 1; entry 0 is meaningless."""
        self(ids)
        found = self.table.topk(count)
        return [
            [],
            *(list(zip(*row, strict=True)) for row in zip(found.values.tolist(), found.indices.tolist(), strict=True)),
        ]


@pytest.fixture(scope="module")
def forward(tiny_random_model: Path) -> Forward:
    return Forward(tiny_random_model)


@pytest.fixture(scope="module")
def tokenizer(tiny_random_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_random_model)


@pytest.fixture(scope="module")
def render(tokenizer: Any) -> Any:
    def apply(messages: Any, tools: Any, keywords: dict[str, Any]) -> list[int]:
        return tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, add_generation_prompt=True, return_dict=False, **keywords
        )

    return apply


def turn_of(forward: Forward, render: Any, *, temperature: float, response_ids: list[int]) -> Any:
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    prompt_ids = render(messages, None, {})
    sampled = forward([*prompt_ids, *response_ids], temperature)[len(prompt_ids) :]
    return make_turn(
        messages=messages,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        response_logprobs=sampled,
        temperature=temperature,
        weight_versions=[VersionSpan("1", 0, len(response_ids))],
    )


async def test_scores_are_those_of_the_forward_first_token_included(forward: Forward, render: Any) -> None:
    engine = FakeEngine(score=forward)
    prompt, response = render([{"role": "user", "content": "hi"}], None, {}), [300, 11, 12, 300]
    scores = await score(engine, prompt, response, owner=LOCAL)
    assert scores.log_probs == pytest.approx(forward([*prompt, *response])[len(prompt) :], abs=1e-12)
    assert len(scores.log_probs) == len(response)
    [payload] = engine.payloads
    assert payload["logprob_start_len"] == len(prompt) - 1
    assert payload["sampling_params"]["max_new_tokens"] == 0


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_advantage_is_the_log_ratio_at_temperature_one(forward: Forward, render: Any, temperature: float) -> None:
    response_ids = [300, 11, 12, 40, 41]
    turn = turn_of(forward, render, temperature=temperature, response_ids=response_ids)
    engine = FakeEngine(score=forward)
    result = await TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1).score_turn(
        turn, hinted_messages(turn)
    )
    hinted = render(append_hint(turn.messages, HINT), None, {})
    teacher = forward([*hinted, *response_ids])[len(hinted) :]
    student = forward([*turn.prompt_ids, *response_ids])[len(turn.prompt_ids) :]
    advantage = [t - old for t, old in zip(result.log_probs, turn.response_logprobs, strict=True)]
    assert advantage == pytest.approx([t - s for t, s in zip(teacher, student, strict=True)], abs=1e-9)
    assert max(abs(value) for value in advantage) > 1e-3
    if temperature == 1.0:
        assert list(result.log_probs) == pytest.approx(teacher, abs=1e-9)
    assert result.versions == ("1",)


async def test_ids_are_joined_and_never_tokenised_again(forward: Forward, render: Any, tokenizer: Any) -> None:
    split = [tokenizer.convert_tokens_to_ids(character) for character in "The"]
    assert tokenizer.encode("The", add_special_tokens=False) != split
    turn = turn_of(forward, render, temperature=1.0, response_ids=split)
    engine = FakeEngine(score=forward)
    await TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1).score_turn(
        turn, hinted_messages(turn)
    )
    assert all(payload["input_ids"][-3:] == split for payload in engine.payloads)


IDS = st.lists(st.integers(0, 3), max_size=6)


@given(IDS, IDS, IDS, IDS, IDS)
def test_a_hint_finds_its_place_in_served_ids(
    earlier: list[int], sampled: list[int], place: list[int], hint: list[int], end: list[int]
) -> None:
    plain, hinted = [*earlier, 9, *place, *end], [*earlier, 9, *place, *hint, *end]
    assert with_served_ids(plain, plain, hinted) == hinted
    assert with_served_ids([*sampled, 9, *place, *end], plain, hinted) == [*sampled, 9, *place, *hint, *end]


def test_a_hint_between_other_ids_has_no_place() -> None:
    plain, hinted = [1, 2, 5, 6, 3, 4], [1, 2, 5, 7, 6, 3, 4]
    assert with_served_ids([8, 2, 5, 6, 3, 4], plain, hinted) == [8, 2, 5, 7, 6, 3, 4]
    assert with_served_ids([1, 2, 5, 6, 3, 8], plain, hinted) == [1, 2, 5, 7, 6, 3, 8]
    assert with_served_ids([8, 2, 5, 6, 3, 8], plain, hinted) is None


@pytest.mark.parametrize("hint", [None, HINT])
async def test_an_earlier_reply_keeps_the_ids_that_were_sampled(
    forward: Forward, render: Any, tokenizer: Any, hint: str | None
) -> None:
    """Finding F10: the teacher's prompt was rendered from text, so it differed from the student's in more than the hint."""
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "The end"},
        {"role": "user", "content": "again"},
    ]
    canonical = tokenizer.encode("The end", add_special_tokens=False)
    split = [tokenizer.convert_tokens_to_ids(each) for each in "The"]
    split += tokenizer.encode(" end", add_special_tokens=False)
    plain = render(messages, None, {})
    [place] = [n for n in range(len(plain)) if plain[n : n + len(canonical)] == canonical]
    served = [*plain[:place], *split, *plain[place + len(canonical) :]]
    assert served != plain
    turn = make_turn(messages=messages, prompt_ids=served, response_ids=[5, 6], response_logprobs=[-1.0, -2.0])
    engine = FakeEngine(score=forward)
    asked = messages if hint is None else append_hint(messages, hint)
    result = await TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1).score_turn(turn, asked)
    teacher, student = (payload["input_ids"][:-2] for payload in engine.payloads)
    assert student == served
    if hint is None:
        assert teacher == served
        assert list(result.log_probs) == turn.response_logprobs, "no hint, no advantage"
    else:
        hinted = render(asked, None, {})
        assert teacher == [*hinted[:place], *split, *hinted[place + len(canonical) :]]


async def test_top_k_is_that_of_the_model_with_the_hint_first_token_included(forward: Forward, render: Any) -> None:
    turn = turn_of(forward, render, temperature=0.6, response_ids=[300, 11, 12, 40])
    engine = FakeEngine(score=forward, topk=forward.topk)
    scorer = TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1, topk=5)
    topk = (await scorer.score_turn(turn, hinted_messages(turn))).topk
    assert topk is not None
    hinted = render(append_hint(turn.messages, HINT), None, {})
    with torch.no_grad():
        logits = forward.model(torch.tensor([[*hinted, *turn.response_ids]])).logits[0, len(hinted) - 1 : -1]
    wanted = torch.log_softmax(logits.double(), -1).topk(5)
    assert topk.ids == wanted.indices.tolist()
    for found, values in zip(topk.log_probs, wanted.values.tolist(), strict=True):
        assert found == pytest.approx(values, abs=1e-9)
    # only the teacher is asked for it
    assert sorted(payload.get("top_logprobs_num", 0) for payload in engine.payloads) == [0, 5]
    plain = TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1)
    assert (await plain.score_turn(turn, hinted_messages(turn))).topk is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[(-1.0, 3), (-2.0, 4)]] * 3, "did not give the requested top"),
        ([[(-1.0, 3)]] * 4, "did not give the requested top"),
        ([[(-1.0, 3), (float("-inf"), 4)]] * 4, "not a finite number"),
    ],
)
async def test_a_top_k_that_does_not_fit_is_an_error(rows: Any, message: str) -> None:
    engine = FakeEngine(score=lambda ids: [-1.0] * len(ids), topk=lambda ids, count: rows)
    with pytest.raises(TeacherMismatchError, match=message):
        await score(engine, [1, 2], [3, 4], 2, owner=LOCAL)


async def test_scores_of_different_weights_are_taken_again(forward: Forward, render: Any) -> None:
    turn = turn_of(forward, render, temperature=1.0, response_ids=[5, 6])
    engine = FakeEngine(score=forward, versions=["1", "2", "2"])
    result = await TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1).score_turn(
        turn, hinted_messages(turn)
    )
    assert len(engine.payloads) == 4
    assert result.versions == ("2",)
    restless = FakeEngine(score=forward, versions=[str(number) for number in range(20)])
    with pytest.raises(EngineUnavailableError, match="weights changed"):
        await TeacherScorer(policy=restless, teacher=restless, render=render, concurrency=1).score_turn(
            turn, hinted_messages(turn)
        )


async def test_another_models_teacher_scores_only_the_hinted_prompt(forward: Forward, render: Any) -> None:
    turn = replace(turn_of(forward, render, temperature=1.0, response_ids=[5, 6]), session_id="@alice:s")
    policy, teacher = FakeEngine(score=forward, versions=["9"]), FakeEngine(score=forward, versions=["default"])
    result = await TeacherScorer(policy=policy, teacher=teacher, render=render, concurrency=1).score_turn(
        turn, hinted_messages(turn)
    )
    assert (len(policy.payloads), len(teacher.payloads)) == (1, 1)
    assert policy.owners == teacher.owners == ["alice"], "the engine keeps what it computed apart by owner"
    assert policy.payloads[0]["input_ids"] == [*turn.prompt_ids, 5, 6]
    assert len(teacher.payloads[0]["input_ids"]) > len(policy.payloads[0]["input_ids"])
    assert result.versions == ("default", "9")


async def test_engine_that_scores_something_else_is_an_error(render: Any) -> None:
    class Shifted(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            answer = await super().generate(payload, owner)
            del answer["meta_info"]["input_token_logprobs"][-1]
            return answer

    flat = lambda ids: [-1.0] * len(ids)  # noqa: E731
    with pytest.raises(TeacherMismatchError, match="asked to score 2 tokens"):
        await score(Shifted(score=flat), [1, 2], [3, 4], owner=LOCAL)
    with pytest.raises(TeacherMismatchError, match="finite"):
        await score(FakeEngine(score=lambda ids: [float("nan")] * len(ids)), [1, 2], [3, 4], owner=LOCAL)


@pytest.mark.parametrize(
    ("named", "accepted"),
    [([2, 3, 9, 4, 9], True), ([2, 3, 0, 4, 0], True), ([2, 0, 9, 4, 9], False), ([2, 3, 0, 0, 0], False)],
)
async def test_the_last_token_of_the_vocabulary_may_be_called_0(named: list[int], *, accepted: bool) -> None:
    """SGLang scores it, and gives its number as 0; any other token is what it is called."""

    class Naming(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            answer = await super().generate(payload, owner)
            entries = answer["meta_info"]["input_token_logprobs"]
            entries[:] = [(entry[0], token, *entry[2:]) for entry, token in zip(entries, named, strict=True)]
            return answer

    engine = Naming(score=lambda ids: [-1.0] * len(ids))
    with nullcontext() if accepted else pytest.raises(TeacherMismatchError, match="or other tokens"):
        found = await score(engine, [1, 2], [3, 9, 4, 9], owner=LOCAL)
        assert found.log_probs == [-1.0] * 4


def test_turn_without_user_message_has_no_teacher() -> None:
    turn = make_turn(messages=[{"role": "system", "content": "x"}])
    with pytest.raises(TeacherMismatchError, match="no user message"):
        context_of(under_hint, turn, Verdict(hint=HINT))
