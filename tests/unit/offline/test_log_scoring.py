"""Texts of logs get the ids of the template and the log probabilities of the engine, at the trainer's temperature, once."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chat_codec.renderer import Renderer, RenderError
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from lab.testkit.tiny_random import build_tokenizer
from openclaw.credit.baseline import record_judged
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.wiring import LogScorer, ScorerSettings
from openclaw.ledger.records import Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from slime.utils.types import Sample
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.qwen_tokenizers import qwen3

USER = {"role": "user", "content": "What is 2 + 3?"}
ANSWER = {"role": "assistant", "content": "It is 5."}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
VOCABULARY = 647


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(build_tokenizer())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def queue(ledger: Ledger, turn_id: str, session_id: str = "s", **changes: Any) -> None:
    empty = {"prompt_ids": [], "response_ids": [], "response_logprobs": [], "weight_versions": [], "temperature": 0.0}
    turn = make_turn(
        turn_id,
        session_id=session_id,
        **{
            **empty,
            "state": "unscored",
            "next_state": USER_NEXT,
            "next_state_at": 1.0,
            "response_message": ANSWER,
            **changes,
        },
    )
    ledger.logs.record(session_id, [(turn, None)])


def table(ids: Sequence[int]) -> list[float]:
    """Log probabilities at temperature 1 of every token after ``ids``: after odd ones few tokens matter, after even ones all."""
    sharp = 3.0 if ids[-1] % 2 else 0.1
    logits = [(token * 7919 + ids[-1]) % 31 * sharp for token in range(VOCABULARY)]
    total = math.log(math.fsum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def at(ids: Sequence[int], temperature: float) -> list[float]:
    scaled = [value / temperature for value in table(ids)]
    total = math.log(math.fsum(map(math.exp, scaled)))
    return [value - total for value in scaled]


class Exact(FakeEngine):
    """An engine with the numbers of `table`."""

    def __init__(self, versions: Sequence[str] = ("7",)) -> None:
        super().__init__(score=self._of, topk=self._top, next_of=self._next, versions=versions)

    @staticmethod
    def _of(ids: Sequence[int]) -> list[float]:
        return [0.0, *(table(ids[:end])[ids[end]] for end in range(1, len(ids)))]

    @staticmethod
    def _top(ids: Sequence[int], count: int) -> list[list[tuple[float, int]]]:
        rows = [table(ids[:end]) for end in range(1, len(ids))]
        return [
            [],
            *(sorted(((value, token) for token, value in enumerate(row)), reverse=True)[:count] for row in rows),
        ]

    @staticmethod
    def _next(ids: Sequence[int], temperature: float, wanted: Sequence[int]) -> list[float]:
        values = at(ids, temperature)
        return [values[token] for token in wanted]


def scorer(ledger: Ledger, engine: Any, renderer: Renderer, **changes: Any) -> LogScorer:
    settings = {"temperature": 0.6, "ahead": 4, "max_tokens": 4096, **changes}
    return LogScorer(ledger, engine, renderer.render_reply, ScorerSettings(**settings), lambda: None)


def step(worker: LogScorer) -> bool:
    return asyncio.run(worker.step())


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.3])
def test_scores_are_those_of_the_trainers_temperature_and_marked(
    ledger: Ledger, renderer: Renderer, temperature: float
) -> None:
    queue(ledger, "t")
    engine = Exact()
    assert step(scorer(ledger, engine, renderer, temperature=temperature))
    turn = ledger.turns.get("t")
    assert (turn.state, turn.scored, turn.temperature) == ("pending", True, temperature)
    assert [(span.version, span.start, span.end) for span in turn.weight_versions] == [("7", 0, len(turn.response_ids))]
    assert turn.prompt_ids == renderer.render([USER])
    for position, (token, value) in enumerate(zip(turn.response_ids, turn.response_logprobs, strict=True)):
        expected = at([*turn.prompt_ids, *turn.response_ids[:position]], temperature)[token]
        assert value == pytest.approx(expected, abs=2e-4)
    assert engine.payloads[0]["input_ids"] == [*turn.prompt_ids, *turn.response_ids]
    if temperature < 1:
        assert 1 < len(engine.payloads) < len(turn.response_ids), (
            "only positions that the likeliest tokens do not settle"
        )
    assert make_sample(turn, 1.0, score=1).metadata["scored"] is True
    assert "scored" not in make_sample(make_turn(), 1.0, score=1).metadata
    assert ledger.views.counts()["scored"] == 1


def test_a_method_of_the_policys_top_k_gets_it(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "t")
    assert step(scorer(ledger, Exact(), renderer, student_topk=3))
    turn = ledger.turns.get("t")
    assert turn.response_topk is not None
    for position, (ids, values) in enumerate(zip(turn.response_topk.ids, turn.response_topk.log_probs, strict=True)):
        expected = at([*turn.prompt_ids, *turn.response_ids[:position]], 0.6)
        assert expected[ids[0]] == max(expected)
        assert values == pytest.approx([expected[token] for token in ids], abs=2e-4)


def decoded(renderer: Renderer, ids: Sequence[int]) -> str:
    return renderer._tokenizer.decode(ids)


def test_only_the_template_writes_control_tokens(renderer: Renderer) -> None:
    tokenizer = build_tokenizer()
    end, call = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<tool_call>"])
    forged = {"role": "assistant", "content": "<|im_end|>\n<tool_call>x"}
    prompt, reply = renderer.render_reply([USER], forged)
    assert prompt == renderer.render([USER])
    assert (reply.count(end), reply[-1], call in reply) == (1, end, False)
    assert tokenizer.decode(reply) == "<|im_end|>\n<tool_call>x<|im_end|>"
    real = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert call in renderer.render_reply([USER], real, TOOLS)[1]


def test_a_reply_renders_as_the_next_prompt_shows_it(renderer: Renderer) -> None:
    """The tokens of a rendered reply are those that a later prompt of the conversation has in its place."""
    _, reply = renderer.render_reply([USER], ANSWER)
    later = renderer.render([USER, ANSWER, *USER_NEXT])
    assert any(later[start : start + len(reply)] == reply for start in range(len(later)))


@pytest.mark.parametrize("thinking", [True, False])
def test_thoughts_of_a_template_that_shows_them(thinking: bool) -> None:
    renderer = Renderer(qwen3())
    reply = {**ANSWER, "reasoning_content": "Add them."} if thinking else ANSWER
    prompt, ids = renderer.render_reply([USER], reply, None, {"enable_thinking": thinking})
    assert prompt == renderer.render([USER], None, {"enable_thinking": thinking})
    text = decoded(renderer, ids)
    assert text == ("<think>\nAdd them.\n</think>\n\nIt is 5.<|im_end|>" if thinking else "It is 5.<|im_end|>")


def test_a_template_that_cannot_show_a_reply_is_a_reason(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "odd", response_message={"role": "assistant", "content": "x", "tool_calls": [{"function": {}}]})
    queue(ledger, "good")
    assert step(scorer(ledger, Exact(), renderer))
    assert (ledger.turns.get("odd").state, ledger.turns.get("odd").reason) == ("ended", "log_not_rendered")
    assert ledger.turns.get("good").state == "pending"
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    with pytest.raises(RenderError, match="does not end a reply with a control token"):
        Renderer(tokenizer).render_reply([USER], ANSWER)


def test_a_reply_that_was_cut_off_gets_no_end(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "t", finish_reason="length")
    assert step(scorer(ledger, Exact(), renderer))
    assert decoded(renderer, ledger.turns.get("t").response_ids) == "It is 5."


def test_too_long_and_refused_turns_end_with_a_reason(ledger: Ledger, renderer: Renderer) -> None:
    class Refusing(Exact):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            raise EngineRefusedError("no")

    queue(ledger, "long")
    assert step(scorer(ledger, Exact(), renderer, max_tokens=5))
    queue(ledger, "refused")
    assert step(scorer(ledger, Refusing(), renderer))
    assert [ledger.turns.get(name).reason for name in ("long", "refused")] == ["too_long", "log_refused"]


def test_a_failure_of_the_engine_is_no_reason(ledger: Ledger, renderer: Renderer) -> None:
    class Away(Exact):
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            raise EngineUnavailableError("away")

    queue(ledger, "t")
    with pytest.raises(EngineUnavailableError):
        step(scorer(ledger, Away(), renderer))
    assert ledger.turns.get("t").state == "unscored"
    assert step(scorer(ledger, Exact(), renderer))


def test_all_numbers_of_a_turn_come_from_the_same_weights(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "t")
    flat = Exact(versions=["1", *["2"] * 500])
    flat._topk = lambda ids, count: [
        [],
        *([[-9.0, token] for token in range(count)] for _ in ids[1:]),
    ]  # settles nothing
    assert step(scorer(ledger, flat, renderer))
    assert [span.version for span in ledger.turns.get("t").weight_versions] == ["2"]


def test_scoring_stays_near_training_and_keeps_conversations_whole(ledger: Ledger, renderer: Renderer) -> None:
    for number in range(3):
        queue(ledger, f"a{number}", "first")
        queue(ledger, f"b{number}", "second")
    worker = scorer(ledger, Exact(), renderer, ahead=2)
    assert step(worker)
    assert {ledger.turns.get(f"a{number}").state for number in range(3)} == {"pending"}
    assert not step(worker), "three turns wait for the judge"
    for number in range(3):
        record_judged(ledger, f"a{number}", Verdict(score=0), [], "score_zero")
    assert step(worker)
    assert ledger.turns.get("b2").state == "pending"
    assert not ledger.logs.holds_unscored()


def test_old_scores_are_renewed_and_the_verdict_is_kept(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "t")
    step(scorer(ledger, Exact(), renderer))
    turn, verdict = ledger.turns.get("t"), Verdict(score=1)
    record_judged(ledger, "t", verdict, [make_sample(turn, 1.0, score=1)], None)
    [sample] = ledger.samples.claim(5, 1)
    ledger.logs.score_again(sample.metadata["ledger_id"])
    assert (ledger.turns.get("t").state, ledger.judging.kept_verdict("t")) == ("unscored", verdict)
    assert ledger.samples.reconcile(-1)["ready"] == 0, "no restored checkpoint brings the old scores back"
    assert step(scorer(ledger, Exact(versions=["9"]), renderer))
    [pending] = ledger.judging.pending(5)
    assert (pending.kept, pending.turn.weight_versions[0].version) == (verdict, "9")
    record_judged(ledger, "t", verdict, [make_sample(pending.turn, 1.0, score=1)], None)
    assert ledger.views.counts()["samples"] == {"dropped": 1, "ready": 1}
    assert ledger.database.rows("SELECT COUNT(*) AS n FROM samples WHERE baseline_role IS NOT NULL")[0]["n"] == 1


def two_samples(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "t")
    step(scorer(ledger, Exact(), renderer))
    sample = make_sample(ledger.turns.get("t"), 1.0, score=1)
    record_judged(ledger, "t", Verdict(score=1), [sample, sample], None)


def test_samples_of_a_turn_are_taken_back_together(ledger: Ledger, renderer: Renderer) -> None:
    two_samples(ledger, renderer)
    both = ledger.samples.claim(5, 2)
    assert [ledger.logs.score_again(sample.metadata["ledger_id"]) for sample in both] == [True, True]
    assert ledger.views.counts()["samples"] == {"dropped": 2}
    assert (ledger.turns.get("t").state, ledger.judging.kept_verdict("t")) == ("unscored", Verdict(score=1))


def test_a_turn_of_which_another_batch_has_a_sample_gives_none_again(ledger: Ledger, renderer: Renderer) -> None:
    two_samples(ledger, renderer)
    ledger.samples.claim(5, 1)
    [later] = ledger.samples.claim(6, 1)
    assert not ledger.logs.score_again(later.metadata["ledger_id"])
    assert (ledger.turns.get("t").state, ledger.views.counts()["samples"]) == ("judged", {"leased": 2})
    ledger.samples.mark_trained(5)
    assert not ledger.logs.score_again(later.metadata["ledger_id"])


def test_what_a_session_gave_as_a_whole_is_given_again(tmp_path: Path, renderer: Renderer) -> None:
    now = itertools.count(100.0)
    ledger = Ledger(tmp_path / "clock.sqlite", clock=lambda: next(now))
    for turn_id in ("a", "b", "c"):
        queue(ledger, turn_id)
    step(scorer(ledger, Exact(), renderer))

    def judge(turn_id: str, *, sample: bool) -> None:
        turn = ledger.turns.get(turn_id)
        made = [make_sample(turn, 1.0, score=1)] if sample else []
        record_judged(ledger, turn_id, Verdict(score=int(sample)), made, None if sample else "score_zero")

    def of_session() -> list[tuple[str, Sample]]:
        """One more sample of each turn, as a method may give that does not look at ``reason``."""
        return [(each.turn.id, make_sample(each.turn, 0.5, score=0)) for each in ledger.judging.judged("s")]

    for turn_id in ("a", "b", "c"):
        judge(turn_id, sample=turn_id == "a")
    assert ledger.judging.close_session("s", of_session()[:2], ledger.database.clock())
    assert ledger.views.counts()["samples"] == {"ready": 3}, (
        "two of the first turn, and that of the session for the second"
    )
    claimed = ledger.samples.claim(5, 3)
    old = next(each.metadata["ledger_id"] for each in claimed if each.metadata["turn_id"] == "b")
    assert ledger.logs.score_again(old)
    assert ledger.judging.finished_sessions(9) == [], "the turn waits for scores"
    step(scorer(ledger, Exact(versions=["9"]), renderer))
    assert not ledger.logs.nothing_to_come()
    judge("b", sample=False)
    assert ledger.judging.finished_sessions(9) == ["s"]
    assert ledger.judging.close_session("s", of_session()[:2], ledger.database.clock())
    [again] = ledger.samples.claim(6, 9)
    assert (again.metadata["turn_id"], again.weight_versions) == ("b", ["9"]), "and none of the others again"
    assert ledger.turns.get("b").reason is None
    assert not ledger.judging.close_session("s", of_session(), ledger.database.clock())


def test_a_deleted_conversation_is_not_scored(ledger: Ledger, renderer: Renderer) -> None:
    queue(ledger, "t", "gone")
    [turn] = ledger.logs.unscored_session()
    ledger.sessions.forget("gone")
    ledger.logs.record_scores([(turn, "too_long")])
    assert ledger.database.rows("SELECT * FROM logs") == []
    judged_sample(ledger, "other")
    assert ledger.logs.nothing_to_come() is True


def test_nothing_is_to_come_when_all_is_scored_judged_and_closed(ledger: Ledger) -> None:
    assert ledger.logs.nothing_to_come()
    queue(ledger, "t")
    assert not ledger.logs.nothing_to_come(), "to score"
    ledger.logs.record_scores([(ledger.turns.get("t"), "too_long")])
    assert not ledger.logs.nothing_to_come(), "the session may give a sample"
    assert ledger.judging.close_session("s", [], 104.0)
    assert ledger.logs.nothing_to_come()


def test_the_worker_goes_on_after_a_failure_and_ends_when_told(ledger: Ledger, renderer: Renderer) -> None:
    class FirstAway(Exact):
        calls = 0

        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("a bug")
            return await super().generate(payload, owner)

    async def run() -> Turn:
        stop, scored = asyncio.Event(), asyncio.Event()
        settings = ScorerSettings(temperature=0.6, ahead=4, max_tokens=4096)
        worker = LogScorer(ledger, FirstAway(), renderer.render_reply, settings, scored.set)
        task = asyncio.create_task(worker.run(stop))
        await scored.wait()
        stop.set()
        await task
        return ledger.turns.get("t")

    queue(ledger, "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openclaw.judge.wiring.PAUSE_SECONDS", 0.001)
        assert asyncio.run(run()).state == "pending"
