"""A real vLLM on the CPU behind its translator: the engine's routes, exact ids and logprobs, and updates of weights and adapters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import httpx
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from groundwork.people import request_name
from groundwork.process import group_alive
from lab.testkit import tiny_random
from lab.testkit.engine import serve
from lab.testkit.live_engine import engine_arguments
from lab.testkit.waiting import wait_until
from openclaw.engine.client import scoring_payload
from openclaw.judge.answers import answer_grammar
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.vllm_utils.engine import VLLMEngine
from slime.backends.vllm_utils.translator import Translator
from slime.exceptions import EngineError
from slime.weight_sync import BASE
from slime.weight_sync.people import people_folder
from tests.helpers.adapter_checks import check_requests_keep_their_adapter, error_of, with_lora
from tests.helpers.engine_checks import check_streams_through_updates
from tests.helpers.engine_streams import FLOAT32, WAIT_SECONDS, Stream, prompts, stream, worst_error
from tests.helpers.live_gateway import gateway
from tests.helpers.node import installed_by
from tests.helpers.people_office import PERSONS, Office
from tests.integration.test_gateway_live import TOLERANCE, TURNS, converse, forward


@contextmanager
def live(args: Arguments) -> Iterator[VLLMEngine]:
    """Start the policy engine of ``args``; it is gone with all its processes when the block ends."""
    installed_by("scripts/setup_vllm.sh")
    before = left()
    engine = VLLMEngine(args, EngineSpec("policy", 0, 1))
    engine.start()
    try:
        yield engine
    finally:
        pid = engine.status()["pid"]
        engine.stop()
    assert not group_alive(pid), "the engine left processes behind"
    wait_until(lambda: left() <= before, lambda: f"still there: {left() - before}", 60.0)


def left() -> set[Path]:
    """The files that vLLM's processes share memory by, and the folders of engines."""
    return {*Path("/dev/shm").glob("psm_*"), *Path(gettempdir()).glob("slime-vllm-*")}


def arguments(model: Path, run_dir: Path) -> Arguments:
    return engine_arguments(model, run_dir).changed(
        backend="vllm", sglang_max_total_tokens=None, check_weight_update_equal=False, update_weight_transport="disk"
    )


@pytest.fixture(scope="module")
def random_models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """As those of the other files, but with heads that vLLM's CPU kernels have, and with a tied output layer."""
    folder = tmp_path_factory.mktemp("models")
    return [
        tiny_random.build(folder / str(seed), seed=seed, head_dim=32, tie_word_embeddings=True) for seed in (11, 12)
    ]


@pytest.fixture(scope="module")
def references(random_models: list[Path]) -> list[Any]:
    """`random_models` in transformers, float32."""
    return [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in random_models]


@pytest.fixture(scope="module")
def engine(random_models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMEngine]:
    with live(arguments(random_models[0], tmp_path_factory.mktemp("vllm"))) as engine:
        yield engine


def ask(engine: VLLMEngine, **payload: Any) -> httpx.Response:
    return httpx.post(f"{engine.url()}/generate", json=payload, timeout=WAIT_SECONDS, trust_env=False)


def test_ids_and_logprobs_are_exact(engine: VLLMEngine, references: list[Any]) -> None:
    result = stream(engine.url(), prompts(1)[0], 40)
    assert len(result.ids) == len(result.logprobs) == 40
    assert worst_error(result, references) < FLOAT32.worst
    prompt, reply = result.prompt, result.ids
    meta = ask(engine, **scoring_payload(prompt, reply), top_logprobs_num=3).json()["meta_info"]
    ids = torch.tensor([prompt + reply])
    with torch.no_grad():
        table = references[0](ids).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
    entries = meta["input_token_logprobs"]
    assert entries[0] == [None, prompt[-1], None]
    assert [entry[1] for entry in entries[1:]] == reply
    expected = table.gather(-1, torch.tensor(reply)[:, None])[:, 0]
    assert (torch.tensor([entry[0] for entry in entries[1:]]) - expected).abs().max() < FLOAT32.worst
    bodies = [scoring_payload(prompt, reply), scoring_payload(prompt, reply[:7])]
    both = ask(engine, **{name: [body[name] for body in bodies] for name in bodies[0]}).json()
    assert [len(one["meta_info"]["input_token_logprobs"]) for one in both] == [41, 8]
    best = table.topk(3).values
    found = torch.tensor([[entry[0] for entry in row] for row in meta["input_top_logprobs"][1:]])
    assert (found - best).abs().max() < FLOAT32.worst


async def test_turns_through_the_gateway_are_exact(
    engine: VLLMEngine, random_models: list[Path], references: list[Any], tmp_path: Path
) -> None:
    async with gateway(engine.url(), random_models[0], tmp_path) as (client, ledger, registry):
        await asyncio.gather(*(converse(client, number) for number in range(4)))
    turns = [record.turn for record in ledger.views.turn_records()]
    assert len(turns) == 4 * TURNS
    for turn in turns:
        assert turn.response_logprobs == pytest.approx(forward(references[0], turn), abs=TOLERANCE)
    assert registry.get_sample_value("openclaw_refused_total") == 0
    ledger.close()


def test_requests_in_flight_survive_updates(
    engine: VLLMEngine, random_models: list[Path], references: list[Any]
) -> None:
    def update(version: str) -> None:
        engine.pause_generation("retract")
        engine.update_weights_from_disk(str(random_models[int(version) % 2]), True, version)
        engine.continue_generation()

    check_streams_through_updates(engine, update, references, FLOAT32, new_tokens=1600)
    with pytest.raises(EngineError, match="is not a Hugging Face folder"):
        engine.update_weights_from_disk("/nowhere", True, "5")
    assert (engine.health(), engine.get_weight_version()) == (True, "4")


def test_a_grammar_is_followed_and_what_vllm_lacks_is_refused(engine: VLLMEngine) -> None:
    limits = {"temperature": 1.0, "max_new_tokens": 300}
    text = ask(engine, input_ids=[5, 6], sampling_params=limits | {"regex": "[0-9]{3}"}).json()["text"]
    assert text.isdigit()
    assert len(text) == 3
    tagged = ask(engine, input_ids=[5, 6], sampling_params=limits | {"structural_tag": answer_grammar("prm")}).json()
    assert "\\boxed{" in tagged["text"] or tagged["meta_info"]["finish_reason"]["type"] == "length"
    for wrong in ({"custom_params": {"a": 1}}, {"n": 2}):
        refused = ask(engine, input_ids=[5], sampling_params=limits | wrong)
        assert refused.status_code == 400
        assert next(iter(wrong)) in refused.text
    assert ask(engine, input_ids=[10**7], sampling_params=limits).status_code == 400


@pytest.mark.long
def test_a_crashed_engine_comes_back_on_its_port(engine: VLLMEngine, references: list[Any]) -> None:
    url, dead = engine.url(), engine.status()["pid"]
    engine.kill()
    assert not group_alive(dead)
    assert engine.restart_if_dead(hold=True)
    assert engine.url() == url
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{url}/generate", json={"input_ids": [5]}, timeout=1.0, trust_env=False)
    engine.continue_generation()
    assert worst_error(stream(url, prompts(1)[0], 10), references) < FLOAT32.worst


@pytest.fixture(scope="module")
def adapters_engine(random_models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMEngine]:
    with live(with_lora(arguments(random_models[0], tmp_path_factory.mktemp("adapters")))) as engine:
        yield engine


def test_each_request_has_the_adapter_it_began_with(
    adapters_engine: VLLMEngine, random_models: list[Path], tmp_path: Path, references: list[Any]
) -> None:
    args = with_lora(arguments(random_models[0], tmp_path))
    check_requests_keep_their_adapter(args, adapters_engine, references[0], FLOAT32)
    scores = ask(adapters_engine, **scoring_payload([5, 6], [7, 8])).json()["meta_info"]
    assert (scores["weight_version"], len(scores["adapter_sha256"])) == ("4", 64)
    assert all(math.isfinite(entry[0]) for entry in scores["input_token_logprobs"][1:])


@asynccontextmanager
async def serving_people(engine: VLLMEngine, office: Office, held: int, folder: Path) -> AsyncIterator[str]:
    """Serve an adapter for each person by the engine's vLLM, through a second translator; yield its URL."""
    family = psutil.Process(engine.status()["pid"]).children(recursive=True)
    uds = next(words[words.index("--uds") + 1] for words in (one.cmdline() for one in family) if "--uds" in words)
    transport = httpx.AsyncHTTPTransport(uds=uds, limits=httpx.Limits(max_connections=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=WAIT_SECONDS) as client:
        people = (people_folder(office.args.run_dir), held)
        routes = Translator(client, folder, model="policy", ranks=1, adapters=True, people=people)
        async with serve(routes.app()) as url:
            yield url


async def test_each_person_is_answered_by_their_own_adapter(
    adapters_engine: VLLMEngine, random_models: list[Path], tmp_path: Path
) -> None:
    office = Office(with_lora(arguments(random_models[0], tmp_path)))
    nobody, *others = PERSONS[:6]
    accepted = {person: {office.publish(person, 1)} for person in others}
    # Threads of their own: the translator reads files in those of the loop.
    with ThreadPoolExecutor(12) as pool:
        async with serving_people(adapters_engine, office, 3, tmp_path / "vllm") as url:

            async def talk(number: int, wanted: str = "") -> tuple[str, Stream]:
                person = PERSONS[number % 6]
                name = wanted or request_name(person)
                ask_it = partial(stream, url, prompts(8)[number % 8], 60, adapter=name)
                return person, await asyncio.get_running_loop().run_in_executor(pool, ask_it)

            talking = [asyncio.create_task(talk(number)) for number in range(12)]
            for person in others[::2]:
                accepted[person].add(office.publish(person, 2))
            found = [await one for one in talking] + [await talk(number) for number in range(6)]
            candidate = office.write(others[0], 7)
            _, asked = await talk(1, candidate)
            async with httpx.AsyncClient(trust_env=False) as client:
                listed = (await client.get(f"{url}/v1/models")).json()["data"]
    assert (asked.last["meta_info"]["adapter"], len(listed)) == (candidate, 4), "the model and three versions"
    error_of(asked, "7", office.models[candidate], FLOAT32)
    for place, (person, result) in enumerate(found):
        adapter = result.last["meta_info"]["adapter"]
        if person == nobody:
            assert adapter == BASE
        else:
            assert adapter in ({office.newest[person]} if place >= 12 else accepted[person])
        error_of(result, "0" if person == nobody else adapter.split("-")[1], office.models[adapter], FLOAT32)
    own, other = (office.models[office.newest[person]] for person in others[:2])
    assert worst_error(found[-5][1], [own, own]) < FLOAT32.worst < worst_error(found[-5][1], [other, other])
