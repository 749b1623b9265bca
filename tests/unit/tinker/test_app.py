"""The routes of the Tinker interface: who may ask what, results by long poll, samples, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import tinker
import uvicorn
import zstandard
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from groundwork.network import find_available_port
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.auth import Keyring
from openclaw.gateway.guard import Doorway
from openclaw.gateway.usage import UsageDesk
from openclaw.ledger.usage import day_of
from openclaw.tinker import app as app_module
from openclaw.tinker.app import BODY_BYTES, Server, check_quota, create_app
from openclaw.tinker.desk import Desk
from openclaw.tinker.log import CommandLog
from openclaw.tinker.sampler import Sampler
from openclaw.tinker.wire import PROTOBUF
from tests.helpers.tinker_machine import NotedMachine, create_body, offer_of, pass_body

KEYS = "ann:tml-ann-key\nben (sampled=3, trained=2):tml-ben-key\nroot (admin):tml-root-key\n"
ANN, BEN, ROOT = ({"x-api-key": f"tml-{name}-key"} for name in ("ann", "ben", "root"))
ONE: dict[str, Any] = {
    "base_model": "tiny",
    "prompt": {"chunks": [{"tokens": [1, 2, 3, 4, 5]}]},
    "sampling_params": {"max_tokens": 2},
}


class Engine:
    """Answers each request for samples with ids that count up from the number of its prompt's tokens."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        asked = orjson.loads(request.content)
        self.asked.append(asked)
        await self.hold.wait()
        if self.statuses:
            return httpx.Response(self.statuses.pop(0), text="a problem")
        prompt, parameters = asked["input_ids"], asked["sampling_params"]
        ids = [len(prompt) + place for place in range(parameters["max_new_tokens"])]
        first = asked["logprob_start_len"]
        scores = [[None if place == 0 else -place / 4, each, None] for place, each in enumerate(prompt)][first:]
        top = [[[-0.5, 7, None], [-1.5, 8, None]]] * len(ids)
        meta = {
            "output_token_logprobs": [[-each / 8, each, None] for each in ids],
            "input_token_logprobs": scores,
            "input_top_logprobs": [None, *[[[-0.25, 9, None]]] * len(scores[1:])],
            "output_top_logprobs": top,
            "finish_reason": {"type": "length"},
            "cached_tokens": 3,
        }
        return httpx.Response(200, json={"output_ids": ids, "meta_info": meta})


class World:
    """A server without a network, and who asks it."""

    def __init__(self, client: httpx.AsyncClient, engine: Engine, server: Server, machine: NotedMachine) -> None:
        self.client, self.engine, self.server, self.machine = client, engine, server, machine
        self.app = create_app(server)

    async def post(self, path: str, value: Any, headers: dict[str, str] = ANN) -> httpx.Response:
        return await self.client.post(f"/api/v1/{path}", json=value, headers=headers)

    async def session(self, headers: dict[str, str] = ANN) -> str:
        return (await self.post("create_session", {"tags": [], "sdk_version": "0.38.0"}, headers)).json()["session_id"]

    async def result(self, answer: httpx.Response, headers: dict[str, str] = ANN) -> httpx.Response:
        assert answer.status_code == 200, answer.text
        return await self.post("retrieve_future", {"request_id": answer.json()["request_id"]}, headers)

    async def model(self, session: str, headers: dict[str, str] = ANN) -> str:
        answer = await self.post("create_model", json.loads(create_body(session)), headers)
        return (await self.result(answer, headers)).json()["model_id"]

    async def pass_over(self, body: bytes, headers: dict[str, str] = ANN, **more: str) -> httpx.Response:
        given = headers | {"content-type": PROTOBUF} | more
        return await self.client.post("/api/v1/forward_backward", content=body, headers=given)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "keys").write_text(KEYS)
    (tmp_path / "keys").chmod(0o600)
    machine, engine = NotedMachine(tmp_path), Engine()
    log = CommandLog(tmp_path / "commands.sqlite")
    config = RuntimeConfig(api_keys_file=str(tmp_path / "keys"), quotas="total=40", prices="sampled=1e6,trained=1e6")
    keyring = Keyring(None, config.api_keys_file)
    meters = UsageDesk(config, log.usage, keyring, time.time)
    desk = Desk(log, machine, offer_of(tmp_path), check_quota=partial(check_quota, meters))
    sampler = Sampler("http://engine", 100, 32, 8)
    sampler._client = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(engine))
    server = Server(log, desk, sampler, keyring, Doorway(config), meters)
    loop = asyncio.get_running_loop()
    desk.on_done = lambda identity: loop.call_soon_threadsafe(server.done, identity) and None
    thread = threading.Thread(target=desk.run)
    thread.start()
    transport = httpx.ASGITransport(create_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8010") as client:
        yield World(client, engine, server, machine)
    desk.stop()
    await asyncio.to_thread(thread.join)
    await sampler.close()
    log.close()


async def test_a_model_is_trained_saved_and_listed(world: World) -> None:
    session = await world.session()
    model = await world.model(session)
    assert model == f"{session}:train:0"
    answer = await world.result(await world.pass_over(pass_body(model, 1, [5, 6])))
    assert answer.headers["content-type"] == PROTOBUF
    output = deserialize_forward_backward_output(answer.content)
    assert output.loss_fn_outputs[0]["logprobs"].data == [-5.0, -6.0]
    step = await world.post("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.5}})
    assert (await world.result(step)).json() == {"metrics": {"grad_norm:mean": 1.5}}
    saved = await world.post("save_weights", {"model_id": model, "seq_id": 3, "path": "x", "ttl_seconds": 60})
    path = (await world.result(saved)).json()["path"]
    info = (await world.post("get_info", {"model_id": model})).json()
    assert (info["lora_rank"], info["model_data"]["tokenizer_id"]) == (4, "tiny")
    assert (await world.post("weights_info", {"tinker_path": path})).json()["lora_rank"] == 4
    load = {"path": path, "optimizer": True, "session_id": session, "model_seq_id": 1}
    assert (await world.result(await world.post("load_weights", load))).json()["model_id"] == f"{session}:train:1"
    assert world.machine.models[f"{session}:train:1"][-1] == ["loaded", "training"]
    runs = (await world.client.get("/api/v1/training_runs", headers=ANN)).json()
    assert [run["training_run_id"] for run in runs["training_runs"]] == [f"{session}:train:1", model]
    [listed] = (await world.client.get(f"/api/v1/training_runs/{model}/checkpoints", headers=ANN)).json()["checkpoints"]
    assert listed["tinker_path"] == path
    assert listed["expires_at"] is not None
    where = f"/api/v1/training_runs/{model}/checkpoints/weights/x"
    assert (await world.client.put(f"{where}/ttl", json={"ttl_seconds": None}, headers=ANN)).status_code == 204
    assert (await world.client.delete(where, headers=BEN)).status_code == 404
    assert (await world.client.delete(where, headers=ANN)).status_code == 204
    assert (await world.client.get("/api/v1/checkpoints", headers=ANN)).json()["checkpoints"] == []
    async with asyncio.timeout(10):
        while list(world.server._desk.offer.folder.glob("weights/*/*")):
            await asyncio.sleep(0.05)


async def test_a_body_of_json_or_packed_by_zstd_is_the_same_command(world: World) -> None:
    model = await world.model(await world.session())
    body = pass_body(model, 1, [5, 6])
    await world.pass_over(body)
    packed = await world.pass_over(zstandard.compress(body), **{"content-encoding": "zstd"})
    tensor = {"data": [5, 6], "dtype": "int64", "shape": [2]}
    datum = {"model_input": {"chunks": [{"tokens": [5, 6]}]}, "loss_fn_inputs": {"target_tokens": tensor}}
    given = {"loss_fn": "cross_entropy", "data": [datum]}
    value = {"model_id": model, "seq_id": 1, "forward_backward_input": given}
    assert (await world.post("forward_backward", value)).json() == packed.json()


async def test_nobody_reaches_what_is_anothers(world: World) -> None:
    session = await world.session()
    model = await world.model(session)
    saved = await world.post("save_weights_for_sampler", {"model_id": model, "seq_id": 1, "path": "x"})
    path = (await world.result(saved)).json()["path"]
    sampler = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
    mine = (await world.post("create_sampling_session", sampler)).json()["sampling_session_id"]
    bens = await world.session(BEN)
    prompt = {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1}}
    sampled = await world.post("asample", {**prompt, "sampling_session_id": mine, "seq_id": 0})
    assert (await world.result(sampled)).status_code == 200
    refused = [
        await world.post("get_info", {"model_id": model}, BEN),
        await world.pass_over(pass_body(model, 2), BEN),
        await world.post("optim_step", {"model_id": model, "seq_id": 2}, BEN),
        await world.post("save_weights", {"model_id": model, "seq_id": 2}, BEN),
        await world.post("create_model", json.loads(create_body(session)), BEN),
        await world.post("retrieve_future", {"request_id": f"{model}:0"}, BEN),
        await world.post("weights_info", {"tinker_path": path}, BEN),
        await world.post("create_sampling_session", {**sampler, "session_id": bens}, BEN),
        await world.post("asample", {**prompt, "sampling_session_id": mine, "seq_id": 0}, BEN),
        await world.post("session_heartbeat", {"session_id": session}, BEN),
        await world.post(f"sessions/{session}/finish", {}, BEN),
        await world.client.get(f"/api/v1/samplers/{mine}", headers=BEN),
        await world.client.get(f"/api/v1/training_runs/{model}", headers=BEN),
    ]
    assert {answer.status_code for answer in refused} == {404}
    gone = await world.post("retrieve_future", sampled.json(), BEN)
    assert gone.status_code == 410
    assert (await world.client.get("/api/v1/training_runs", headers=BEN)).json()["training_runs"] == []
    load = {"path": path, "optimizer": False, "session_id": bens, "model_seq_id": 0}
    assert "may have expired" in (await world.result(await world.post("load_weights", load, BEN), BEN)).json()["error"]


async def test_samples_have_the_engines_ids_and_log_probabilities(world: World) -> None:
    session = await world.session()
    base = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = (await world.post("create_sampling_session", base)).json()["sampling_session_id"]
    asked = {
        **{"sampling_session_id": sampler, "seq_id": 4, "num_samples": 2, "prompt_logprobs": True},
        "prompt": {"chunks": [{"tokens": [3, 4]}, {"tokens": [5]}]},
        "sampling_params": {"max_tokens": 2, "temperature": 0.5, "seed": 7, "stop": [9]},
        **{"topk_sample_logprobs": 2, "topk_prompt_logprobs": 1},
    }
    submitted = await world.post("asample", asked)
    assert submitted.json()["sample_sequence_ids"] == [f"{sampler}:4:0", f"{sampler}:4:1"]
    assert (await world.post("asample", asked)).json() == submitted.json(), "the same request"
    found = deserialize_sample_response((await world.result(submitted)).content)
    assert len(world.engine.asked) == 2
    assert [each.tokens for each in found.sequences] == [[3, 4]] * 2
    np.testing.assert_allclose(found.sequences[0].logprobs, [-0.375, -0.5])
    assert [value for value in found.prompt_logprobs or ()][1:] == [-0.25, -0.5]
    assert (found.prompt_logprobs or (0,))[0] is None
    assert found.prompt_cache_hit_tokens == 3
    first, second = world.engine.asked
    assert first["lora_path"] == "base"
    assert first["sampling_params"] == {
        **{"max_new_tokens": 2, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "skip_special_tokens": False},
        **{"sampling_seed": 7, "stop_token_ids": [9]},
    }
    assert (first["logprob_start_len"], second["logprob_start_len"]) == (0, 2), "the prompt is scored once"
    assert first["extra_key"] == second["extra_key"]
    other = await world.session(BEN)
    bens = (await world.post("create_sampling_session", {**base, "session_id": other}, BEN)).json()
    await world.result(
        await world.post("asample", {**asked, "sampling_session_id": bens["sampling_session_id"]}, BEN), BEN
    )
    assert world.engine.asked[-1]["extra_key"] != first["extra_key"], "nobody finds another's prefixes"


async def test_a_session_of_fresh_weights_samples_from_them_until_it_ends(world: World) -> None:
    session = await world.session()
    model = await world.model(session)
    saved = await world.post("save_weights_for_sampler", {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 3})
    sampler = (await world.result(saved)).json()["sampling_session_id"]
    prompt = {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1}}
    await world.result(await world.post("asample", {**prompt, "sampling_session_id": sampler, "seq_id": 0}))
    adapter = world.engine.asked[-1]["lora_path"]
    assert world.machine.place_of(adapter).is_dir()
    assert (await world.post(f"sessions/{session}/finish", {})).status_code == 200
    assert (await world.post("session_heartbeat", {"session_id": session})).status_code == 410
    assert (await world.post("create_model", json.loads(create_body(session, 5)))).status_code == 410
    async with asyncio.timeout(10):
        while model in world.machine.models or world.machine.place_of(adapter).exists():
            await asyncio.sleep(0.05)


async def test_an_engine_that_goes_away_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.tinker.sampler.PAUSE_SECONDS", 0.01)
    asked = {"base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1}}
    world.engine.statuses = [503, 500]
    assert (await world.result(await world.post("asample", asked))).headers["content-type"] == PROTOBUF
    world.engine.statuses = [400]
    refused = (await world.result(await world.post("asample", asked))).json()
    assert refused == {"error": "the engine refused the request with status 400: a problem", "category": "user"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": {"chunks": []}}, "the prompt is empty"),
        ({"prompt": {"chunks": [{"tokens": [100]}]}}, "it has 0 to 99"),
        ({"prompt": {"chunks": [{"type": "image"}]}}, "a chunk of type image"),
        ({"sampling_params": {"max_tokens": 32}}, "together at most 32"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k is not offered here"),
        ({"prompt_logprobs_last_n": 1}, "needs prompt_logprobs"),
        ({"num_samples": 0}, "num_samples"),
    ],
)
async def test_samples_that_are_not_offered_say_why(world: World, change: dict[str, Any], says: str) -> None:
    asked = {"base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1}}
    answer = await world.post("asample", asked | change)
    assert answer.status_code == 422
    assert says in answer.json()["detail"]


async def test_a_result_that_is_not_there_yet_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "POLL_SECONDS", 0.05)
    model = await world.model(await world.session())
    early = await world.pass_over(pass_body(model, 2))
    again = (await world.result(early)).json()
    assert again == {"type": "try_again", "request_id": f"{model}:2", "queue_state": "active"}
    await world.pass_over(pass_body(model, 1))
    monkeypatch.setattr(app_module, "POLL_SECONDS", 10.0)
    assert (await world.result(early)).headers["content-type"] == PROTOBUF
    world.engine.hold.clear()
    asked = {"base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 1}}
    sampled = await world.post("asample", asked)
    await world.post("cancel_future", sampled.json())
    assert (await world.result(sampled)).json() == {"error": "the request was cancelled", "category": "user"}


async def test_who_guesses_keys_waits_and_nobody_else(world: World) -> None:
    async def status(key: str, address: str) -> int:
        headers = {"x-api-key": key, "x-forwarded-for": address}
        return (await world.client.get("/api/v1/healthz", headers=headers)).status_code

    assert [await status(f"tml-guess-{number}", "203.0.113.9") for number in range(21)][-1] == 429
    assert await status("tml-ben-key", "203.0.113.9") == 429
    assert await status("tml-ben-key", "198.51.100.7") == 200


async def test_the_same_number_with_other_words_is_refused(world: World) -> None:
    session = await world.session()
    base = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = (await world.post("create_sampling_session", base)).json()["sampling_session_id"]
    asked = {"sampling_session_id": sampler, "seq_id": 1, "sampling_params": {"max_tokens": 1}}
    await world.post("asample", {**asked, "prompt": {"chunks": [{"tokens": [1]}]}})
    other = await world.post("asample", {**asked, "prompt": {"chunks": [{"tokens": [2]}]}})
    assert (other.status_code, other.json()["detail"][:13]) == (409, "the request 1")
    model = await world.model(session)
    again = {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0}
    clash = await world.result(await world.post("save_weights_for_sampler", again))
    assert "was begun before with other weights" in clash.json()["error"]
    wrong = await world.post(
        "asample", {"base_model": "other", "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {}}
    )
    assert "this server has 'tiny'" in wrong.json()["detail"]


async def test_values_that_would_break_a_list_are_refused(world: World) -> None:
    session = await world.session()
    for body in (
        create_body(session, user_metadata={"a": float("nan")}),
        create_body(session, user_metadata={"a": "x" * 20_000}),
    ):
        answer = await world.client.post("/api/v1/create_model", content=body, headers=ANN)
        assert answer.status_code == 422, "of a creation it is said at once"
    model = await world.model(session)
    saved = await world.post("save_weights", {"model_id": model, "seq_id": 1, "path": "x", "ttl_seconds": 10**12})
    assert "ttl_seconds" in (await world.result(saved)).json()["error"]
    saved = await world.post("save_weights", {"model_id": model, "seq_id": 2, "path": "x"})
    await world.result(saved)
    where = f"/api/v1/training_runs/{model}/checkpoints/weights/x/ttl"
    for wrong in (b"x", b"[]", b'{"ttl_seconds": -1}'):
        assert (await world.client.put(where, content=wrong, headers=ANN)).status_code == 422
    assert (await world.client.get("/api/v1/training_runs", headers=ANN)).status_code == 200
    assert (await world.client.get("/api/v1/checkpoints", headers=ANN)).status_code == 200
    deep = b'{"forward_backward_input":' + b"[" * 100_000
    assert (await world.client.post("/api/v1/forward_backward", content=deep, headers=ANN)).status_code == 422
    huge = await world.post("optim_step", {"model_id": model, "seq_id": 2**70})
    assert huge.status_code == 422


async def test_who_may_not_ask_gets_nothing(world: World) -> None:
    async def status(**headers: str) -> int:
        return (await world.client.get("/api/v1/get_server_capabilities", headers=headers)).status_code

    assert await status() == 401
    assert await status(**{"x-api-key": "tml-wrong"}) == 401
    assert await status(**ANN) == 200
    assert await status(**ANN, origin="https://elsewhere.example") == 403


async def test_bodies_are_bounded_unpacked_ones_as_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zstandard.compress(bytes(BODY_BYTES + 1))
    assert len(bomb) < 100_000
    answer = await world.pass_over(bomb, **{"content-encoding": "zstd"})
    assert answer.status_code == 413
    assert "once unpacked" in answer.json()["detail"]
    assert (await world.pass_over(b"no", **{"content-encoding": "zstd"})).status_code == 400
    assert (await world.pass_over(b"no", **{"content-encoding": "gzip"})).status_code == 415
    monkeypatch.setattr(app_module, "BODY_BYTES", 10)
    assert (await world.pass_over(bytes(11))).status_code == 413


async def test_a_command_that_cannot_be_done_is_its_own_result_and_the_next_one_runs(world: World) -> None:
    model = await world.model(await world.session())
    wrong = await world.post("optim_step", {"model_id": model, "seq_id": 1, "adam_params": {"beta1": 2}})
    elsewhere = await world.post("save_weights_external", {"model_id": model, "seq_id": 2, "path": "x"})
    right = await world.post("optim_step", {"model_id": model, "seq_id": 3})
    assert (await world.result(wrong)).json()["error"].startswith("adam_params.beta1: ")
    assert "not saved elsewhere by this server" in (await world.result(elsewhere)).json()["error"]
    assert (await world.result(right)).json() == {"metrics": {"grad_norm:mean": 1.5}}
    missing = await world.client.get("/api/v1/audit", headers=ANN)
    assert missing.json() == {"detail": "this server does not offer GET audit"}


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff", b"null", b"[]", b'{"model_id": 3}'])
async def test_garbage_is_refused_in_one_line(world: World, body: bytes) -> None:
    paths = ("create_model", "forward_backward", "optim_step", "asample", "retrieve_future", "load_weights")
    for path in paths:
        answer = await world.client.post(f"/api/v1/{path}", content=body, headers=ANN)
        assert answer.status_code == 422, (path, answer.text)
        assert "\n" not in answer.json()["detail"]
    assert (await world.pass_over(b"\xff\xff\xff")).status_code == 422


async def test_the_results_of_samples_do_not_fill_the_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "KEPT_BYTES", 10_000)
    asked = {"base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 4}}
    answers = [await world.post("asample", asked) for _ in range(20)]
    await world.result(answers[-1])
    assert world.server._kept_bytes <= 10_000
    assert len(world.server._samples) <= 4
    assert (await world.result(answers[0])).status_code == 410, "its client sends it again"
    monkeypatch.setattr(app_module, "MOST_SAMPLES", 0)
    busy = await world.post("asample", asked)
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")


async def test_programs_are_metered_in_the_words_of_the_gateway(world: World) -> None:
    async def usage(headers: dict[str, str], **query: str) -> dict[str, Any]:
        found = await world.client.get("/v1/usage", params=query, headers=headers)
        assert found.status_code == 200, found.text
        return found.json()

    await world.result(await world.post("asample", {**ONE, "num_samples": 3}))
    scores = {**ONE, "prompt_logprobs": True, "sampling_params": {"max_tokens": 1}}
    await world.result(await world.post("asample", scores))
    model = await world.model(await world.session())
    await world.pass_over(pass_body(model, 1, [5, 6]))
    await world.result(await world.post("optim_step", {"model_id": model, "seq_id": 2}))
    await world.result(await world.post("asample", ONE, BEN), BEN)
    counted = {"prefill_tokens": 4, "cached_tokens": 6, "sampled_tokens": 7, "judged_tokens": 0, "trained_tokens": 2}
    anns = {"owner": "ann", **counted, "stale_tokens": 0, "dollars": 9.0}
    page = await usage(ANN)
    [bucket] = page["data"]
    assert (bucket["day"], bucket["results"]) == (day_of(time.time()), [anns])
    assert page["total"] == {name: value for name, value in anns.items() if name != "owner"}
    assert page["quota"]["total"] == {"most": 40, "used": 17}
    assert [each["owner"] for each in (await usage(ROOT))["data"][0]["results"]] == ["ann", "ben"]
    assert (await usage(ROOT, owner="ben"))["total"]["sampled_tokens"] == 2
    assert (await usage({"authorization": "Bearer tml-ann-key"}))["total"] == page["total"]
    for headers, query, status in ((BEN, "owner=ann", 403), ({}, "", 401), (ANN, "since=x", 400)):
        refused = await world.client.get(f"/v1/usage?{query}", headers=headers)
        assert (refused.status_code, "message" in refused.json()["error"]) == (status, True)
    assert (await world.client.get("/v1/usage", headers={**ANN, "origin": "https://e.example"})).status_code == 403


async def test_a_failed_or_cancelled_request_for_samples_counts_nothing(world: World) -> None:
    world.engine.statuses = [400]
    await world.result(await world.post("asample", ONE))
    world.engine.hold.clear()
    sampled = await world.post("asample", ONE)
    await world.post("cancel_future", sampled.json())
    await world.result(sampled)
    assert (await world.client.get("/v1/usage", headers=ANN)).json()["data"] == []


async def test_a_used_quota_fails_samples_and_passes_of_its_owner_alone(world: World) -> None:
    async def failed(answer: httpx.Response) -> str:
        found = (await world.result(answer, BEN)).json()
        assert found["category"] == "user"
        return found["error"]

    for _ in range(2):
        await world.result(await world.post("asample", ONE, BEN), BEN)
    asked = len(world.engine.asked)
    says = await failed(await world.post("asample", ONE, BEN))
    assert says.startswith(f"the key 'ben' has used its 3 sampled tokens of {day_of(time.time())} (UTC), which the ")
    assert "; send it again in " in says
    model = await world.model(await world.session(BEN), BEN)
    assert "3 sampled tokens" in await failed(await world.pass_over(pass_body(model, 1), BEN))
    assert "no step was taken" in await failed(await world.post("optim_step", {"model_id": model, "seq_id": 2}, BEN))
    assert len(world.engine.asked) == asked
    assert (await world.result(await world.post("asample", ONE))).headers["content-type"] == PROTOBUF


async def test_the_package_raises_a_used_quota_at_once(world: World) -> None:
    def program(url: str) -> list[str]:
        with tinker.ServiceClient(base_url=url, api_key="tml-ben-key") as service:
            sampler = service.create_sampling_client(base_model="tiny")
            prompt = tinker.types.ModelInput.from_ints([1, 2])
            settings = tinker.types.SamplingParams(max_tokens=3)
            assert len(sampler.sample(prompt, 1, settings).result().sequences[0].tokens) == 3
            said = []
            for ask in (lambda: sampler.sample(prompt, 1, settings), lambda: sampler.compute_logprobs(prompt)):
                with pytest.raises(tinker.RequestFailedError) as refused:
                    ask().result()
                said.append(f"{refused.value.category}: {refused.value.message}")
            return said

    port = find_available_port()
    web = uvicorn.Server(uvicorn.Config(world.app, "127.0.0.1", port, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(web.serve())
    said = await asyncio.to_thread(program, f"http://127.0.0.1:{port}")
    web.should_exit = web.force_exit = True
    await serving
    assert [each.startswith("user: ") and "'ben' has used its 3 sampled tokens" in each for each in said] == [True] * 2
    assert len(world.engine.asked) == 1
