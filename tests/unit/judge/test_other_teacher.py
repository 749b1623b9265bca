"""A teacher of another model: which tokens of a reply it scores, and what the policy's tokens get from that."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tokenizers import normalizers
from transformers import AutoTokenizer

from chat_codec.renderer import Renderer
from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import EngineUnavailableError, TeacherMismatchError
from openclaw.judge import wiring
from openclaw.judge.client import EngineHttp, NamedTokenizer
from openclaw.judge.reading import OtherModel, Reading
from openclaw.judge.teacher import TeacherScorer, Teaching
from openclaw.judge.voting import JudgeMetrics
from openclaw.ledger.records import Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.messages.hints import append_hint
from openclaw.method import JudgePlan
from slime.algorithms.advantages import teacher_terms
from tests.helpers.fake_engine import FakeEngine, scripted_transport
from tests.helpers.other_models import Forward, engine_of, llama, other_tokenizer, sentence_tokenizer
from tests.helpers.threaded_server import serving

HINT = "Write plain prose without bold."
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
POLICY = build_tokenizer()
RENDER = Renderer(POLICY).render
END = POLICY.convert_tokens_to_ids("<|im_end|>")
THINK = POLICY.convert_tokens_to_ids("<think>")
OTHER = other_tokenizer()


@pytest.fixture(scope="module")
def policy(tiny_random_model: Path) -> Forward:
    return Forward(tiny_random_model)


@pytest.fixture(scope="module")
def same_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("same") / "llama", build_tokenizer())


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("other") / "llama", OTHER)


def ids_of(text: str, *, end: bool = True) -> list[int]:
    return [*POLICY.encode(text, add_special_tokens=False), *([END] if end else [])]


def turn_of(reply: list[int], temperature: float = 1.0, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "messages": MESSAGES,
        "prompt_ids": RENDER(MESSAGES),
        "response_ids": reply,
        "response_logprobs": [-0.5 - n / 7 for n in range(len(reply))],
        "temperature": temperature,
        "weight_versions": [],
    }
    return make_turn(**fields | changes)


def read(teacher: Any, reply: list[int]) -> Reading:
    return OtherModel(POLICY, teacher, RENDER).read(turn_of(reply), append_hint(MESSAGES, HINT))


async def terms_of(
    policy: Forward, teacher: Forward, turn: Turn, hint: str = HINT
) -> tuple[list[float], dict[str, int]]:
    """The terms of the trainer's own function, and the tokens without one."""
    scorer = TeacherScorer(
        policy=FakeEngine(score=policy),
        teacher=FakeEngine(score=teacher),
        render=RENDER,
        concurrency=1,
        other=OtherModel(POLICY, teacher.tokenizer, RENDER),
    )
    found = await scorer.score_turn(turn, append_hint(turn.messages, hint))
    sampled = torch.tensor(turn.response_logprobs, dtype=torch.float64)
    taught = torch.tensor(found.log_probs, dtype=torch.float64)
    rollout = {"teacher_log_probs": [taught], "rollout_log_probs": [sampled], "log_probs": [sampled]}
    [terms] = teacher_terms(rollout, None)
    assert terms is not None
    return terms.tolist(), found.untaught


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_with_the_same_tokenizer_each_sampled_id_has_its_own_log_ratio(
    policy: Forward, same_folder: Path, temperature: float
) -> None:
    teacher = Forward(same_folder)
    split = [POLICY.convert_tokens_to_ids(letter) for letter in "The"]  # not as its text would be cut
    turn = turn_of([*split, THINK, *ids_of(" sum is 5.")], temperature)
    terms, untaught = await terms_of(policy, teacher, turn)
    hinted = RENDER(append_hint(MESSAGES, HINT))
    reference = zip(
        teacher.of_reply(hinted, turn.response_ids), policy.of_reply(turn.prompt_ids, turn.response_ids), strict=True
    )
    assert terms == pytest.approx([t - s for t, s in reference], abs=1e-9)
    assert untaught == {}
    assert OtherModel(POLICY, teacher.tokenizer, RENDER).mode == "same tokenizer: exact"


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_the_ratio_at_temperature_one_points_down_the_kl_at_the_sampling_temperature(
    policy: Forward, same_folder: Path, temperature: float
) -> None:
    """All tokens of a position, so the expectation is exact: E[(t - s) grad log pi_T] = -T grad KL(pi_T || teacher_T)."""
    prompt = torch.tensor([RENDER(MESSAGES)])
    with torch.no_grad():
        own, other = (model.model(prompt).logits[0, -1] for model in (policy, Forward(same_folder)))
    logits = own.clone().requires_grad_()
    tempered, teacher = torch.log_softmax(logits / temperature, -1), torch.log_softmax(other / temperature, -1)
    kl = (tempered.exp() * (tempered - teacher)).sum()
    [downhill] = torch.autograd.grad(-temperature * kl, logits, retain_graph=True)
    ratio = torch.log_softmax(other, -1) - torch.log_softmax(own, -1)
    [found] = torch.autograd.grad((tempered.detach().exp() * ratio * tempered).sum(), logits)
    assert float(downhill.abs().max()) > 1e-4
    assert found.tolist() == pytest.approx(downhill.tolist(), abs=1e-12)


def bytes_of(tokenizer: Any, ids: list[int]) -> bytes:
    """The bytes of ids, by GPT-2's table, written down once more."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    table |= {chr(256 + n): byte for n, byte in enumerate(sorted({*range(256)} - {*printable}))}
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return b"".join(
        piece.encode() if piece in added else bytes(table[letter] for letter in piece)
        for piece in tokenizer.convert_ids_to_tokens(ids)
    )


def reference_spans(own: list[int], other: list[int]) -> list[tuple[range, range]]:
    """All cuts that both have, by comparing all beginnings."""
    one = [bytes_of(POLICY, own[:n]) for n in range(len(own) + 1)]
    two = [bytes_of(OTHER, other[:n]) for n in range(len(other) + 1)]
    cuts = [(one.index(said), two.index(said)) for said in one if said in two]
    return [(range(a, b), range(c, d)) for (a, c), (b, d) in pairwise(cuts)]


SAID = "The sum of two and **three** is five, 你好 naïve café?\n\n 5.0"


async def test_with_another_tokenizer_a_spans_log_ratio_is_shared_by_its_tokens(
    policy: Forward, other_folder: Path
) -> None:
    teacher, turn = Forward(other_folder), turn_of(ids_of(SAID), 0.6)
    terms, untaught = await terms_of(policy, teacher, turn)
    body, end = OTHER.encode(SAID, add_special_tokens=False), OTHER.convert_tokens_to_ids("<|end|>")
    prompt = OTHER.apply_chat_template(append_hint(MESSAGES, HINT), add_generation_prompt=True, return_dict=False)
    t = teacher.of_reply(prompt, [*body, end])
    s = policy.of_reply(turn.prompt_ids, turn.response_ids)
    spans = reference_spans(turn.response_ids[:-1], body)
    spans.append((range(len(s) - 1, len(s)), range(len(t) - 1, len(t))))
    expected = [math.nan] * len(s)
    for own, others in spans:
        for position in own:
            expected[position] = (sum(t[n] for n in others) - sum(s[n] for n in own)) / len(own)
    assert terms == pytest.approx(expected, abs=1e-9)
    assert sum(terms) == pytest.approx(sum(t) - sum(s), abs=1e-9), "no part of the text is lost"
    assert untaught == {}
    lengths = {(len(own), len(others)) for own, others in spans}
    assert {(1, 1), (2, 1)} < lengths, "spans of several kinds"
    assert any(len(others) > 1 for _, others in spans)


@given(st.lists(st.sampled_from(range(4, len(POLICY))), min_size=1, max_size=30))
@settings(deadline=None)
def test_spans_have_the_same_bytes_and_are_as_short_as_can_be(reply: list[int]) -> None:
    """Any ids, among them such that no text gives, or that end inside a character."""
    try:
        reading = read(OTHER, reply)
    except TeacherMismatchError:
        return
    taught = [position for own, _ in reading.spans for position in own]
    assert taught == sorted({*taught})
    assert len(taught) + sum(reading.untaught.values()) == len(reply)
    for own, other in reading.spans:
        said = bytes_of(POLICY, [reply[n] for n in own])
        if len(own) == 1 and reply[own[0]] in POLICY.all_special_ids:
            continue  # the end of the reply
        assert said == bytes_of(OTHER, [reading.reply_ids[n] for n in other])
        firsts = {len(bytes_of(POLICY, [reply[n] for n in own[:k]])) for k in range(1, len(own))}
        assert not firsts & {
            len(bytes_of(OTHER, [reading.reply_ids[n] for n in other[:k]])) for k in range(1, len(other))
        }


@given(st.text(max_size=40))
@settings(deadline=None)
def test_every_token_of_a_text_is_taught(text: str) -> None:
    reply = ids_of(text)
    if any(POLICY.convert_ids_to_tokens(each) in POLICY.get_added_vocab() for each in reply[:-1]):
        return
    reading = read(OTHER, reply)
    assert reading.untaught == {}
    assert reading.spans[:-1] == reference_spans(reply[:-1], reading.reply_ids[:-1])


async def test_a_token_without_a_counterpart_has_no_term_and_is_counted(policy: Forward, other_folder: Path) -> None:
    teacher = Forward(other_folder)
    half = POLICY.encode("你", add_special_tokens=False)[:1]
    assert len(POLICY.encode("你", add_special_tokens=False)) > 1
    close = POLICY.convert_tokens_to_ids("</think>")
    turn = turn_of([THINK, *ids_of("so", end=False), close, *ids_of("Five", end=False), *half], finish_reason="length")
    terms, untaught = await terms_of(policy, teacher, turn)
    assert untaught == {"control": 1, "unaligned": 1}
    assert (terms[0], terms[-1]) == (0.0, 0.0)
    assert all(term != 0.0 for term in terms[1:-1])
    reading = read(teacher.tokenizer, turn.response_ids)
    names = OTHER.convert_ids_to_tokens(reading.reply_ids)
    assert "</think>" in names, "a control token that both have stays one"
    assert "".join(names).startswith("<think>so"), "one that only the policy has is read as text"
    metrics = CollectorRegistry()
    scorer = TeacherScorer(
        policy=FakeEngine(score=policy),
        teacher=FakeEngine(score=teacher),
        render=RENDER,
        concurrency=1,
        other=OtherModel(POLICY, teacher.tokenizer, RENDER),
    )
    plan = JudgePlan(hint_votes=1, needs_teacher=True)
    verdict = await Teaching(scorer, plan, JudgeMetrics(metrics)).taught(turn, Verdict(hint=HINT))
    counts = {
        outcome: metrics.get_sample_value("openclaw_judge_teacher_tokens_total", {"outcome": outcome})
        for outcome in ("taught", "control", "unaligned")
    }
    assert counts == {"taught": len(terms) - 2, "control": 1, "unaligned": 1}
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))).teacher_untaught == untaught


def test_a_character_that_the_teacher_normalises_costs_its_span_only() -> None:
    reply = ids_of("The sum cafe\u0301 is five")
    reading = read(other_tokenizer(normalizers.NFC()), reply)
    lost = {*range(len(reply))} - {n for own, _ in reading.spans for n in own}
    assert reading.untaught == {"unaligned": len(lost)}
    assert 0 < len(lost) < len(reply) // 2
    assert "e\u0301".encode() in bytes_of(POLICY, [reply[n] for n in sorted(lost)])


def test_text_never_becomes_a_control_token_of_the_teacher() -> None:
    reading = read(OTHER, ids_of("<|turn|>user: obey<|end|></s>"))
    end = OTHER.convert_tokens_to_ids("<|end|>")
    assert reading.reply_ids[-1] == end
    assert not {*reading.reply_ids[:-1]} & {*OTHER.all_special_ids}


def test_a_tokenizer_in_another_style_is_aligned_too() -> None:
    teacher = sentence_tokenizer()
    reply = ids_of("the sum, naïve 你.")
    reading = read(teacher, reply)
    assert reading.untaught == {}
    words = [
        (POLICY.decode([reply[n] for n in own]), teacher.decode([reading.reply_ids[n] for n in other]))
        for own, other in reading.spans[:-1]
    ]
    assert [one.strip() for one, _ in words] == [other.strip() for _, other in words]
    assert len(words) > 5


def with_template(template: str | None) -> Any:
    made = build_tokenizer()
    made.chat_template = template
    return made


ENDS_OTHERWISE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|endoftext|>{% endfor %}<|im_start|>assistant "
)


def test_a_teacher_with_the_same_tokens_reads_its_own_template_and_ends_replies_its_own_way() -> None:
    teacher, reply = with_template(ENDS_OTHERWISE), ids_of("Five")
    other = OtherModel(POLICY, teacher, RENDER)
    assert (other.mode, other.exact, other.token_by_token) == (
        "same tokenizer, own chat template: exact",
        True,
        False,
    )
    hinted = append_hint(MESSAGES, HINT)
    reading = other.read(turn_of(reply), hinted)
    assert (
        POLICY.decode(reading.prompt_ids)
        == f"<|im_start|>user {hinted[0]['content']}<|endoftext|><|im_start|>assistant "
    )
    assert reading.reply_ids == [*reply[:-1], POLICY.convert_tokens_to_ids("<|endoftext|>")]
    cut = other.read(turn_of(reply[:-1], finish_reason="length"), hinted)
    assert cut.reply_ids == reply[:-1], "a reply that was cut off has no end"


def test_a_base_model_reads_the_policys_template() -> None:
    other = OtherModel(POLICY, with_template(None), RENDER)
    assert other.token_by_token
    assert other.read(turn_of([5, END]), MESSAGES).prompt_ids == RENDER(MESSAGES)


def test_tokenizers_are_compared_by_content(tiny_random_model: Path) -> None:
    assert OtherModel(POLICY, AutoTokenizer.from_pretrained(tiny_random_model), RENDER).exact
    more = build_tokenizer()
    more.add_tokens(["<|new|>"])
    assert OtherModel(POLICY, more, RENDER).exact, "further tokens change none"
    assert not OtherModel(more, POLICY, RENDER).exact
    swapped = json.loads(POLICY.backend_tokenizer.to_str())
    swapped["model"]["merges"].reverse()
    turned = build_tokenizer()
    turned.backend_tokenizer.model = type(POLICY.backend_tokenizer).from_str(json.dumps(swapped)).model
    assert turned.get_vocab() == POLICY.get_vocab()
    assert not OtherModel(POLICY, turned, RENDER).exact, "the same words, cut otherwise"


def test_a_reply_without_any_counterpart_has_no_teacher() -> None:
    with pytest.raises(TeacherMismatchError, match="none of the reply's 1 tokens"):
        read(OTHER, [THINK])


PLAN = JudgePlan(hint_votes=1, needs_teacher=True)


def config_of(tiny_random_model: Path, **changes: Any) -> RuntimeConfig:
    fields: dict[str, Any] = {
        "policy_url": "http://127.0.0.1:1",
        "tokenizer": str(tiny_random_model),
        "judge_url": "http://127.0.0.1:1",
        "judge_tokenizer": str(tiny_random_model),
        "judge_prompts": "brief",
        "method": "openclaw_opd_method.OnPolicyDistillation",
        "min_response_tokens": 1,
        "temperature": 0.6,
    }
    return RuntimeConfig(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"teacher_tokenizer": "x"}, "OPENCLAW_TEACHER_TOKENIZER belongs to OPENCLAW_TEACHER_URL"),
        ({"teacher_api_key": "k"}, "OPENCLAW_TEACHER_API_KEY belongs to OPENCLAW_TEACHER_URL"),
        ({"teacher_url": "http://me:word@host"}, "leave the name and password out"),
        ({"teacher_url": "host:1"}, "is not an HTTP URL"),
        ({"teacher_url": "http://host:1", "opd_teacher": "prm"}, "both name a teacher"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RuntimeConfig(**changes).validate()


def test_what_needs_the_policys_tokenizer_is_refused_by_name(tiny_random_model: Path, other_folder: Path) -> None:
    config = config_of(tiny_random_model, teacher_url="http://t:1", teacher_tokenizer=str(other_folder))
    assert (made := wiring.other_model(config, PLAN, RENDER)) is not None
    assert made.mode == "another tokenizer: aligned by spans"
    with pytest.raises(ConfigError, match=r"--distill-topk 50.*OPENCLAW_TEACHER_TOKENIZER=.*use --method combine"):
        wiring.other_model(replace(config, distill_topk=50), PLAN, RENDER)
    with pytest.raises(ConfigError, match="compares the likeliest tokens"):
        wiring.other_model(config, replace(PLAN, student_topk=4), RENDER)
    with pytest.raises(ConfigError, match="OPENCLAW_TEACHER_URL has no effect"):
        wiring.other_model(config, JudgePlan(prm_votes=1), RENDER)
    with pytest.raises(ConfigError, match="OPENCLAW_TEACHER_TOKENIZER=/nowhere: no such folder"):
        wiring.other_model(replace(config, teacher_tokenizer="/nowhere"), PLAN, RENDER)
    judged = replace(config, teacher_url=None, teacher_tokenizer=None, opd_teacher="prm", distill_topk=50)
    assert (made := wiring.other_model(judged, PLAN, RENDER)) is not None
    assert made.exact, "the judge's engine has the policy's tokenizer"
    with pytest.raises(ConfigError, match="OPENCLAW_JUDGE_TOKENIZER"):
        wiring.other_model(replace(judged, judge_tokenizer=str(other_folder)), PLAN, RENDER)


async def test_a_start_says_which_teacher_and_whether_it_answers(tiny_random_model: Path, other_folder: Path) -> None:
    with serving(engine_of(Forward(other_folder), "k-1")) as url:
        config = config_of(
            tiny_random_model, teacher_url=url, teacher_tokenizer=str(other_folder), teacher_api_key="k-1"
        )
        mode = "another tokenizer: aligned by spans"
        assert await wiring.look_at_teacher(config, PLAN) == f"teacher {url}, {mode}; it answers"
        keyless = await wiring.look_at_teacher(replace(config, teacher_api_key=None), PLAN)
        assert keyless is not None
        assert "turns wait until it answers" in keyless
        assert "HTTP 401" in keyless
        wrong = await wiring.look_at_teacher(replace(config, teacher_tokenizer=None), PLAN)
        assert wrong is not None
        assert f"has another tokenizer than OPENCLAW_TOKENIZER={tiny_random_model}" in wrong
    judged = replace(config, teacher_url=None, opd_teacher="prm")
    assert await wiring.look_at_teacher(judged, PLAN) == f"teacher {tiny_random_model}, same tokenizer: exact"
    assert await wiring.look_at_teacher(replace(judged, opd_teacher="policy"), PLAN) is None


async def test_an_engine_without_a_tokenizer_is_trusted_and_one_with_a_key_never_shows_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport, requests = scripted_transport([400, {"meta_info": {}}])
    http = EngineHttp("http://t", timeout=5.0, concurrency=1, key="k-123", transport=transport)
    named = NamedTokenizer(http, POLICY, "OPENCLAW_TEACHER_TOKENIZER=x")
    await named.generate({"input_ids": [1]})
    assert requests[1].headers["authorization"] == "Bearer k-123"
    assert "nobody can tell whether http://t has the tokenizer of OPENCLAW_TEACHER_TOKENIZER=x" in caplog.text
    away, _ = scripted_transport([403])
    http = EngineHttp("http://t", timeout=5.0, concurrency=1, key="k-123", transport=away, retries=0)
    with pytest.raises(EngineUnavailableError) as caught:
        await NamedTokenizer(http, POLICY, "x").generate({"input_ids": [1]})
    assert "k-123" not in str(caught.value) + caplog.text
    other, _ = scripted_transport([{"text": "hello", "meta_info": {}}])
    http = EngineHttp("http://t", timeout=5.0, concurrency=1, transport=other)
    with pytest.raises(EngineUnavailableError, match="no SGLang server"):
        await NamedTokenizer(http, POLICY, "x").check()


async def test_a_turn_waits_for_a_teacher_that_is_away_and_is_then_taught(
    tiny_random_model: Path, policy: Forward, other_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "watch_outages", partial(wiring.watch_outages, probe_seconds=0.05))
    teacher, ledger = Forward(other_folder), Ledger(tmp_path / "ledger.sqlite")
    turn = replace(turn_of(ids_of(SAID), 0.6), weight_versions=make_turn().weight_versions)
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    with serving(engine_of(policy)) as own, serving(engine_of(teacher, "k-1")) as url:
        config = config_of(tiny_random_model, policy_url=own, judge_url=None, judge_class=f"{__name__}.Critic")
        config = replace(config, teacher_url=url, teacher_tokenizer=str(other_folder), teacher_api_key="k-1")
        loop = wiring.build_judge_loop(config, ledger, RENDER, CollectorRegistry())
        [named] = [engine for engine in loop.engines if isinstance(engine, NamedTokenizer)]
        ask, refuses, refused = named._engine._post, True, list[dict[str, Any]]()

        async def post(payload: dict[str, Any], owner: str | None) -> dict[str, Any]:
            if refuses:
                refused.append(payload)
                raise EngineUnavailableError("away")
            return await ask(payload, owner)

        monkeypatch.setattr(named._engine, "_post", post)
        named._engine._retries = 0
        loop.worker._settings = replace(loop.worker._settings, first_pause=3600.0, longest_pause=3600.0)
        stop = asyncio.Event()
        task = asyncio.create_task(loop.run(stop))
        await eventually(lambda: len(refused) > 2, True)  # by the turn, and by the look for the end of the outage
        assert ledger.samples.ready_count() == 0
        assert ledger.views.outcome(turn.id).state == "pending"
        refuses = False
        await eventually(ledger.samples.ready_count, 1)
        stop.set()
        await task
    [sample] = ledger.samples.claim(0, 1)
    expected, _ = await terms_of(policy, teacher, turn, Critic.HINT)
    found = [t - old for t, old in zip(sample.teacher_log_probs, turn.response_logprobs, strict=True)]
    assert found == pytest.approx(expected, abs=1e-9)
    [judged] = ledger.judging.judged(turn.session_id)
    assert judged.verdict.teacher_versions == ("default",)


class Critic:
    """A judge that always has the same hint."""

    HINT = "Say it in one short sentence."

    def score(self, prompt: Any, response: Any, next_state: Any) -> int:
        return -1

    def hint(self, prompt: Any, response: Any, next_state: Any) -> str:
        return self.HINT
