"""Thirty people with an adapter each on two real SGLang engines: nobody is answered by another's, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from groundwork.people import mark_of, request_name
from lab.testkit.live_engine import engine_arguments, files_of, gone
from lab.testkit.served_gateway import MODEL
from openclaw.engine.client import EngineClient, scoring_payload
from openclaw.judge.client import BaseModel, EngineHttp
from openclaw.judge.teacher import score
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.router import serve_behind_one_address
from slime.weight_sync import people
from slime.weight_sync.people import folder_of, people_folder
from tests.helpers import tolerance
from tests.helpers.adapter_checks import LORA, loaded
from tests.helpers.engine_streams import WAIT_SECONDS, Stream, Tolerance, prompts, scores, stream, within
from tests.helpers.people_office import PEOPLE, PERSONS, Office

HELD, SLOTS = 12, 6
TOKENS = 8
LAYERS_OF_THE_MODEL = 4
_ROOM = tolerance.tolerance(20.0, roundings=LAYERS_OF_THE_MODEL * tolerance.MODEL)
EXACT = Tolerance(_ROOM, _ROOM)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    own = {"use_lora": True, "train_dtype": "float32", "adapter_per_person": True}
    own |= {"sglang_max_loras_per_batch": SLOTS, "sglang_max_loaded_loras": HELD}
    args = engine_arguments(MODEL, tmp_path_factory.mktemp("people"))
    return Office(Arguments.of(vars(args) | LORA | own))


@pytest.fixture(scope="module")
def engines(office: Office) -> Iterator[list[SGLangEngine]]:
    engines = [SGLangEngine(office.args, EngineSpec("policy", number, 1)) for number in range(2)]
    with ExitStack() as ends, ThreadPoolExecutor(2) as pool:
        for engine in engines:
            ends.callback(engine.stop)
        list(pool.map(SGLangEngine.start, engines))
        files = set().union(*map(files_of, engines))
        yield engines
    gone(files)


def meta_of(result: Stream) -> dict[str, Any]:
    return result.last["meta_info"]


def is_by(result: Stream, model: Any) -> bool:
    """Whether a model gives the log probabilities of a reply."""
    return within((scores(result, [model, model]) - Tensor(result.logprobs)).abs(), EXACT)


def ask(engine: SGLangEngine, wanted: str, prompt: Sequence[int] = prompts(1)[0]) -> Stream:
    return stream(engine.url(), list(prompt), TOKENS, adapter=wanted)


def scored(engine: SGLangEngine, result: Stream, adapter: str) -> Tensor:
    """Return an engine's log probabilities of a reply under an adapter, at temperature 1."""
    body = scoring_payload(result.prompt, result.ids) | {"lora_path": adapter}
    answer = httpx.post(f"{engine.url()}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False)
    entries = answer.raise_for_status().json()["meta_info"]["input_token_logprobs"]
    return Tensor([entry[0] for entry in entries[1:]])


def log_probs(model: Any, result: Stream) -> Tensor:
    """Return the model's log probabilities of a reply, at temperature 1."""
    with torch.no_grad():
        table = model(torch.tensor([result.prompt + result.ids])).logits[0, len(result.prompt) - 1 : -1].log_softmax(-1)
    return table.gather(-1, torch.tensor(result.ids)[:, None])[:, 0]


def test_thirty_people_at_once_get_their_own_version_on_both_engines(
    office: Office, engines: list[SGLangEngine]
) -> None:
    nobody = PERSONS[0]
    accepted = {person: {office.publish(person, 1)} for person in PERSONS[1:]}
    most = 0

    def watch() -> int:
        return max(len(loaded(engine)) for engine in engines)

    def talk(number: int) -> tuple[str, SGLangEngine, Stream]:
        person, engine = PERSONS[number % PEOPLE], engines[(number + number // PEOPLE) % 2]
        return person, engine, ask(engine, request_name(person), prompts(8)[number % 8])

    with ThreadPoolExecutor(12) as pool:
        first = [pool.submit(talk, number) for number in range(2 * PEOPLE)]
        for person in PERSONS[1::3]:  # while they talk
            accepted[person].add(office.publish(person, 2))
            most = max(most, watch())
        answers = [future.result() for future in first]
        answers += list(pool.map(talk, range(PEOPLE)))
        most = max(most, watch())
    for place, (person, engine, result) in enumerate(answers):
        meta = meta_of(result)
        assert "adapter_fallback" not in meta
        if person == nobody:
            assert (meta["adapter"], meta["weight_version"]) == ("base", "0")
        else:
            assert meta["adapter"] in accepted[person]
            assert meta["weight_version"] == meta["adapter"].split("-")[1]
            if place >= 2 * PEOPLE:
                assert meta["adapter"] == office.newest[person], "requests after the publication have the new version"
        assert is_by(result, office.models[meta["adapter"]]), meta["adapter"]
        if place % 10 == 1:  # and an engine that is asked by the name says the same
            assert (
                scored(engine, result, meta["adapter"]) - log_probs(office.models[meta["adapter"]], result)
            ).abs().max() < _ROOM
    _, _, result = answers[1]
    own = meta_of(result)["adapter"]
    assert [name for name, model in office.models.items() if is_by(result, model)] == [own], (
        "the check tells them apart"
    )
    assert 0 < most <= HELD


def test_a_request_that_names_no_adapter_is_refused_and_the_base_is_a_word(
    office: Office, engines: list[SGLangEngine]
) -> None:
    body = {"input_ids": prompts(1)[0], "sampling_params": {"max_new_tokens": 2}}
    answer = httpx.post(f"{engines[0].url()}/generate", json=body, timeout=WAIT_SECONDS, trust_env=False)
    assert answer.status_code == 400
    assert "each person has an adapter of their own here" in answer.text
    result = ask(engines[0], "base")
    assert (meta_of(result)["weight_version"], meta_of(result)["adapter"]) == ("base", "base")
    assert is_by(result, office.base)


def test_a_candidate_answers_by_its_name_alone(office: Office, engines: list[SGLangEngine]) -> None:
    person = PERSONS[2]
    before = office.newest.get(person) or office.publish(person, 1)
    candidate = office.write(person, 7)
    by_name, as_person = ask(engines[1], candidate), ask(engines[1], request_name(person))
    assert (meta_of(by_name)["weight_version"], meta_of(by_name)["adapter"]) == ("7", candidate)
    assert is_by(by_name, office.models[candidate])
    assert meta_of(as_person)["adapter"] == before
    assert is_by(as_person, office.models[before])


@pytest.fixture
def router(office: Office, engines: list[SGLangEngine]) -> Iterator[str]:
    address = serve_behind_one_address(office.args, "policy", [engine.url() for engine in engines])
    assert address.router is not None
    yield f"http://{address.host}:{address.port}"
    address.router.stop()


async def test_gateway_and_teacher_get_the_owners_adapter_through_the_router(office: Office, router: str) -> None:
    person, prompt = PERSONS[8], prompts(1)[0]
    name = office.newest.get(person) or office.publish(person, 1)
    client = EngineClient(router, wait_seconds=WAIT_SECONDS, per_person=True)
    scorer = EngineHttp(router, timeout=WAIT_SECONDS, concurrency=4, per_person=True)
    sampling = {"temperature": 1.0, "max_new_tokens": TOKENS, "ignore_eos": True}
    reply = client.generate("reply", prompt, sampling, routing_key=person, owner=f"{person}/phone")
    chunks = [chunk async for chunk in reply]
    result = Stream(prompt, ids=[token for chunk in chunks for token in chunk.ids])
    sampled = Tensor([value for chunk in chunks for value in chunk.logprobs])
    own = await score(scorer, prompt, result.ids, owner=person)
    base = await score(BaseModel(scorer), prompt, result.ids, owner=person)
    await client.close()
    await scorer.close()
    assert {chunk.weight_version for chunk in chunks} == {own.weight_version} == {name.split("-")[1]}
    expected = log_probs(office.models[name], result)
    for found in (sampled, Tensor(own.log_probs)):
        assert (found - expected).abs().max() < _ROOM
    assert (Tensor(base.log_probs) - log_probs(office.base, result)).abs().max() < _ROOM


def test_a_killed_engine_serves_everybody_again_and_says_where_it_fell_back(
    office: Office, engines: list[SGLangEngine]
) -> None:
    whole, broken, lost = PERSONS[4], PERSONS[5], PERSONS[6]
    engine = engines[0]
    for person in (whole, broken, lost):
        office.publish(person, 3)
    older, newest = office.newest[broken], office.publish(broken, 4)
    folders = {person: people_folder(office.args.run_dir) / mark_of(person) for person in (broken, lost)}
    with ThreadPoolExecutor(4) as pool:
        under_way = [pool.submit(ask, engine, request_name(person)) for person in (whole, broken, lost)]
        engine.kill()
        for future in under_way:
            assert future.exception() is None or isinstance(future.exception(), httpx.HTTPError)
        for file in folders[lost].glob(f"*/{people.WEIGHTS}"):
            file.write_bytes(b"\0" * 100)
        file = folder_of(people_folder(office.args.run_dir), newest) / people.WEIGHTS
        file.write_bytes(file.read_bytes()[:-8])
        assert engine.restart_if_dead()
        fine, fallen = (ask(engine, request_name(person)) for person in (whole, broken))
    assert meta_of(fine)["adapter"] == office.newest[whole]
    assert is_by(fine, office.models[office.newest[whole]])
    assert (meta_of(fallen)["adapter"], meta_of(fallen)["weight_version"]) == (older, "3")
    assert meta_of(fallen)["adapter_fallback"]["adapter"] == newest
    assert "SHA-256" in meta_of(fallen)["adapter_fallback"]["reason"]
    assert is_by(fallen, office.models[older])
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}, "lora_path": request_name(lost)}
    for streamed in (False, True):
        answer = httpx.post(
            f"{engine.url()}/generate", json=body | {"stream": streamed}, timeout=WAIT_SECONDS, trust_env=False
        )
        document = json.loads(answer.text.removeprefix("data: ").partition("\n")[0])
        assert "accepted versions of person" in document["error"]["message"]
        assert (document["error"]["code"] if streamed else answer.status_code) == 503
    people.forget(office.args.run_dir, mark_of(whole))
    assert meta_of(ask(engine, request_name(whole)))["weight_version"] == "0"
