"""The teacher's numbers of the policy's top K are those of a forward at the turn's temperature, and are never made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.testkit.ledger_records import make_turn
from openclaw.exceptions import EngineUnavailableError, TeacherMismatchError
from openclaw.judge.teacher import TOLERANCE, SupportScorer
from openclaw.ledger.records import PlainPart, TopK, Turn, VersionSpan
from openclaw.messages.hints import append_hint
from openclaw.method import HintChoice
from tests.helpers.fake_engine import FakeEngine

K, ROWS = 4, 12
RESPONSE = [300, 11, 12, 40, 41, 17, 300]
HINTS = ("No bold.", "Write plain prose without bold.", "Write one short sentence, and nothing else.")
SHARP = 60.0
"""Factor on the random model's logits: without it every position is flat, with it some are."""


class Model:
    """An exact stand-in for the engine's numbers: a transformers forward in float64, however long its prompt is."""

    def __init__(self, path: Path, sharp: float = SHARP) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
        self.sharp = sharp

    def table(self, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """Log probabilities ``[N, V]`` of what follows each of ``ids``."""
        with torch.no_grad():
            logits = self.model(torch.tensor([list(ids)])).logits[0].double()
        return torch.log_softmax(logits * self.sharp / temperature, -1)

    def score(self, ids: Sequence[int]) -> list[float]:
        return [0.0, *self.table(ids)[:-1].gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0].tolist()]

    def topk(self, ids: Sequence[int], count: int) -> list[list[tuple[float, int]]]:
        found = self.table(ids)[:-1].topk(count)
        pairs = zip(found.values.tolist(), found.indices.tolist(), strict=True)
        return [[], *(list(zip(*row, strict=True)) for row in pairs)]

    def next_of(self, ids: Sequence[int], temperature: float, wanted: Sequence[int]) -> list[float]:
        return self.table(ids, temperature)[-1][list(wanted)].tolist()

    def engine(self, versions: Sequence[str] = ("1",)) -> FakeEngine:
        return FakeEngine(score=self.score, topk=self.topk, next_of=self.next_of, versions=versions)


@pytest.fixture(scope="module")
def model(tiny_random_model: Path) -> Model:
    return Model(tiny_random_model)


@pytest.fixture(scope="module")
def render(tiny_random_model: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(tiny_random_model)

    def apply(messages: Any, tools: Any, keywords: dict[str, Any]) -> list[int]:
        return tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, add_generation_prompt=True, return_dict=False, **keywords
        )

    return apply


def rows_at(model: Model, prompt: Sequence[int], temperature: float) -> torch.Tensor:
    """What the model gives at each response position."""
    return model.table([*prompt, *RESPONSE], temperature)[len(prompt) - 1 : -1]


def turn_of(model: Model, render: Any, temperature: float) -> Turn:
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    prompt = render(messages, None, {})
    found = rows_at(model, prompt, temperature).topk(K)
    return make_turn(
        messages=messages,
        prompt_ids=prompt,
        response_ids=RESPONSE,
        response_logprobs=[-1.0] * len(RESPONSE),
        temperature=temperature,
        weight_versions=[],
        response_topk=TopK(found.values.tolist(), found.indices.tolist()),
        session_id="@alice:s",
    )


def scorer(
    engine: FakeEngine, render: Any, choice: HintChoice = "sequence_optimal", *, teaches_itself: bool = True
) -> SupportScorer:
    return SupportScorer(
        teacher=engine, render=render, choice=choice, rows=ROWS, concurrency=1, teaches_itself=teaches_itself
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.4])
async def test_a_teacher_that_is_the_policy_has_no_advantage(model: Model, render: Any, temperature: float) -> None:
    """Finding B2: the teacher was at temperature 1, the student at its own, so equal models differed."""
    turn = turn_of(model, render, temperature)
    assert turn.response_topk is not None
    scored = await scorer(model.engine(), render).score_turn(turn, [turn.messages])
    assert scored.topk.ids == turn.response_topk.ids
    assert scored.overlap == 1.0
    for teacher, old in zip(scored.topk.log_probs, turn.response_topk.log_probs, strict=True):
        assert teacher == pytest.approx(old, abs=TOLERANCE)


@pytest.mark.parametrize(("temperature", "sharp"), [(1.0, SHARP), (0.6, SHARP), (0.6, 400.0), (0.6, 1.0), (1.4, SHARP)])
async def test_the_numbers_are_those_of_a_forward_under_the_hint(
    tiny_random_model: Path, render: Any, temperature: float, sharp: float
) -> None:
    model = Model(tiny_random_model, sharp)
    turn, engine = turn_of(model, render, temperature), model.engine()
    messages = append_hint(turn.messages, HINTS[1])
    scored = await scorer(engine, render).score_turn(turn, [messages])
    exact = rows_at(model, render(messages, None, {}), temperature)
    for found, ids, row in zip(scored.topk.log_probs, scored.topk.ids, exact, strict=True):
        assert found == pytest.approx(row[ids].tolist(), abs=TOLERANCE)
    alone = [payload for payload in engine.payloads if "token_ids_logprob" in payload]
    assert scored.asked == len(alone) == len(engine.payloads) - 1
    assert set(engine.owners) == {"alice"}, "the engine keeps what it computed apart by owner"
    if sharp == 1.0 or temperature > 1.0:
        assert scored.asked == len(RESPONSE)
    if sharp == 400.0:
        assert scored.asked < len(RESPONSE), "peaked positions need no request of their own"


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("sampled", ["other weights", "under lessons"])
async def test_what_the_weights_learned_since_is_no_advantage(
    tiny_random_model: Path, model: Model, render: Any, temperature: float, sampled: str
) -> None:
    """Finding F1: the teacher's numbers were of the weights that judge, the student's of those that sampled."""
    if sampled == "other weights":
        turn = replace(
            turn_of(Model(tiny_random_model, 40.0), render, temperature), weight_versions=[VersionSpan("0", 0, 7)]
        )
    else:
        turn = turn_of(model, render, temperature)
        long = render(append_hint(turn.messages, HINTS[2]), None, {})
        found = rows_at(model, long, temperature).topk(K)
        turn = replace(
            turn,
            prompt_ids=long,
            plain=PlainPart.between(long, turn.prompt_ids),
            response_topk=TopK(found.values.tolist(), found.indices.tolist()),
        )
    assert turn.response_topk is not None
    messages = append_hint(turn.messages, HINTS[1])
    student = rows_at(model, turn.student_ids, temperature)
    teacher = rows_at(model, render(messages, None, {}), temperature)
    same = await scorer(model.engine(), render).score_turn(turn, [turn.messages])
    taught = await scorer(model.engine(), render).score_turn(turn, [messages])
    frozen = await scorer(model.engine(), render, teaches_itself=False).score_turn(turn, [messages])
    largest = 0.0
    for position, (ids, old) in enumerate(zip(turn.response_topk.ids, turn.response_topk.log_probs, strict=True)):
        assert same.topk.log_probs[position] == pytest.approx(old, abs=2 * TOLERANCE), "no hint, no advantage"
        wanted = (teacher[position][ids] - student[position][ids]).tolist()
        found_here = [a - b for a, b in zip(taught.topk.log_probs[position], old, strict=True)]
        assert found_here == pytest.approx(wanted, abs=2 * TOLERANCE)
        assert frozen.topk.log_probs[position] == pytest.approx(teacher[position][ids].tolist(), abs=TOLERANCE)
        largest = max(largest, *(abs(a - b) for a, b in zip(student[position][ids].tolist(), old, strict=True)))
    assert largest > 0.01, "the weights or the prompts differ"


async def test_the_chosen_hint_overlaps_most(model: Model, render: Any) -> None:
    turn = turn_of(model, render, 0.6)
    contexts = [append_hint(turn.messages, hint) for hint in HINTS]
    tables = [rows_at(model, render(messages, None, {}), 0.6) for messages in contexts]
    assert turn.response_topk is not None
    shared = [
        [len({*own} & {*row.topk(K).indices.tolist()}) for own, row in zip(turn.response_topk.ids, table, strict=True)]
        for table in tables
    ]
    whole = await scorer(model.engine(), render).score_turn(turn, contexts)
    assert sum(shared[whole.chosen]) == max(map(sum, shared))
    assert whole.overlap == sum(shared[whole.chosen]) / (K * len(RESPONSE))
    for found, ids, row in zip(whole.topk.log_probs, whole.topk.ids, tables[whole.chosen], strict=True):
        assert found == pytest.approx(row[ids].tolist(), abs=TOLERANCE)
    each = await scorer(model.engine(), render, "token_optimal").score_turn(turn, contexts)
    best = [max(range(len(HINTS)), key=lambda n: shared[n][position]) for position in range(len(RESPONSE))]
    for position, (found, ids) in enumerate(zip(each.topk.log_probs, each.topk.ids, strict=True)):
        assert found == pytest.approx(tables[best[position]][position][ids].tolist(), abs=TOLERANCE)
    assert each.overlap >= whole.overlap


async def test_numbers_of_different_weights_are_taken_again(model: Model, render: Any) -> None:
    turn = turn_of(model, render, 1.4)
    engine = model.engine(["1", "1", "2"])
    scored = await scorer(engine, render).score_turn(turn, [turn.messages])
    assert scored.version == "2"
    assert len(engine.payloads) == 2 * (1 + len(RESPONSE))
    restless = model.engine([str(number) for number in range(99)])
    with pytest.raises(EngineUnavailableError, match="weights changed"):
        await scorer(restless, render).score_turn(turn, [turn.messages])


async def test_an_answer_about_other_tokens_is_an_error(model: Model, render: Any) -> None:
    class Other(FakeEngine):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            answer = await super().generate(payload, owner)
            for row in answer["meta_info"].get("output_token_ids_logprobs", []):
                row[0][1 if self.wrong_id else 0] = 5 if self.wrong_id else None
            return answer

        wrong_id = True

    turn = turn_of(model, render, 1.4)
    engine = Other(score=model.score, topk=model.topk, next_of=model.next_of)
    with pytest.raises(TeacherMismatchError, match="the engine gave others"):
        await scorer(engine, render).score_turn(turn, [turn.messages])
    engine.wrong_id = False
    with pytest.raises(TeacherMismatchError, match="not a finite number"):
        await scorer(engine, render).score_turn(turn, [turn.messages])


async def test_a_turn_without_the_policys_top_k_has_no_teacher(model: Model, render: Any) -> None:
    with pytest.raises(TeacherMismatchError, match="without the policy's likeliest tokens"):
        await scorer(model.engine(), render).score_turn(make_turn(), [make_turn().messages])
