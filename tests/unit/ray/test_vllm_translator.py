"""The translator in front of a stand-in of vLLM: what the gateway's client reads is what it reads from SGLang."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from groundwork.people import mark_of, request_name
from lab.testkit.engine import mock_engine, serve
from openclaw.engine.client import EngineClient, TokenChunk, scoring_payload
from openclaw.exceptions import EngineAwayError, EngineProtocolError, EngineRejectedError
from openclaw.gate import proof
from slime.backends.vllm_utils import server
from slime.backends.vllm_utils.command import BEHIND
from slime.backends.vllm_utils.translator import Translator
from slime.contract.engine import logprob_of
from slime.utils.probes import Probe
from slime.weight_sync import BASE, people
from slime.weight_sync.people import adapter_name, folder_of, people_folder
from tests.helpers.vllm_server import StandInVLLM

NEWEST, OLDER = "weights-2-abcdabcd-8", "weights-1-abcdabcd-7"
REPLY = [72, 228, 190, 139, 8364, 33, 2]
SAMPLING: dict[str, Any] = {"temperature": 0.7, "top_p": 1.0, "max_new_tokens": 50}


def script(prompt: list[int]) -> list[int]:
    """Return the rest of `REPLY`: prompts are ``[5, 6]`` and what was delivered."""
    return REPLY[len(prompt) - 2 :]


@dataclass
class Served:
    """The stand-in, the routes in front of it, and a client of those."""

    vllm: StandInVLLM
    routes: Translator
    url: str
    http: httpx.AsyncClient

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def load(self, name: str) -> httpx.Response:
        adapter = {
            "config_dict": {"r": 1},
            "safetensors": base64.b64encode(b"tensors").decode(),
            "sha256": f"sha of {name}",
        }
        return await self.post("/load_lora_adapter", lora_name=name, **adapter)


@asynccontextmanager
async def served(
    folder: Path,
    *,
    adapters: bool = False,
    piece: int = 7,
    hold: bool = False,
    people: tuple[Path, int] | None = None,
) -> AsyncIterator[Served]:
    vllm = StandInVLLM(script, piece)
    async with serve(vllm.app()) as address, httpx.AsyncClient(base_url=address) as client:
        routes = Translator(client, folder, model="policy", ranks=1, adapters=adapters, people=people)
        await routes.begin(folder / "zeros" if adapters else None, hold=hold)
        async with serve(routes.app()) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            yield Served(vllm, routes, url, http)


async def chunks(url: str, wait_seconds: float = 0.0, top: int = 0, **sampling: Any) -> list[TokenChunk]:
    client = EngineClient(url, wait_seconds=wait_seconds)
    try:
        return [one async for one in client.generate("r", [5, 6], SAMPLING | sampling, top, owner="ann")]
    finally:
        await client.close()


def joined(found: list[TokenChunk]) -> tuple[Any, ...]:
    """Return what a reply is, however its tokens were gathered."""
    last = found[-1]
    return (
        [token for chunk in found for token in chunk.ids],
        [value for chunk in found for value in chunk.logprobs],
        *(last.finish, last.versions, last.cached_tokens, {chunk.weight_version for chunk in found}),
    )


@pytest.mark.parametrize("limit", [50, 3])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_reply_is_that_of_sglang(tmp_path: Path, limit: int, piece: int) -> None:
    async def run() -> None:
        async with served(tmp_path, piece=piece) as here, mock_engine(script) as sglang:
            sglang.version = here.vllm.version
            ours, theirs = [await chunks(url, max_new_tokens=limit) for url in (here.url, sglang.url)]
            assert joined(ours) == joined(theirs)
            (asked,) = here.vllm.requests
            assert (
                asked["sampling_params"] | {"temperature": 0.7, "top_p": 1.0, "max_tokens": limit}
                == asked["sampling_params"]
            )
            assert (asked["token_ids"], len(asked["cache_salt"])) == ([5, 6], 32)

    asyncio.run(run())


def test_scores_and_the_likeliest_tokens_are_in_sglangs_form(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as here, mock_engine(script) as sglang:
            payload = scoring_payload([5, 6], [7, 8, 9])
            found = (await here.post("/generate", **payload)).json()
            expected = await sglang.whole(payload)
            entries = found["meta_info"]["input_token_logprobs"]
            assert entries == [[None, 6, None], *expected["meta_info"]["input_token_logprobs"][1:]]
            assert (found["output_ids"], found["meta_info"]["output_token_logprobs"], found["text"]) == ([], [], "")
            scored = (await here.post("/generate", **payload, top_logprobs_num=2)).json()["meta_info"]
            assert scored["input_top_logprobs"] == [
                None,
                *[[[-0.25, 10_000, None], [-0.5, token, None]] for token in (7, 8, 9)],
            ]
            whole = (await here.post("/generate", input_ids=[5, 6], return_logprob=True, top_logprobs_num=2)).json()
            assert (whole["text"], whole["output_ids"]) == ("".join(map(chr, REPLY)), REPLY)
            value = logprob_of(0, REPLY[0])
            # Of three that vLLM sends, one is the sampled token, here the likeliest but one.
            assert whole["meta_info"]["output_top_logprobs"][0] == [[value + 1, 10_000, None], [value, REPLY[0], None]]
            streamed = [row for chunk in await chunks(here.url, top=2) for row in chunk.top]
            assert streamed == whole["meta_info"]["output_top_logprobs"]

    asyncio.run(run())


def test_the_gates_certificate_gets_its_answer(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            probes = [Probe([5, 6], reply) for reply in ([7, 8, 9], [7])]
            said = await asyncio.to_thread(proof.ask, here.url, probes)
            assert said == proof.Said([-0.5] * 4, "default")

    asyncio.run(run())


def test_several_prompts_in_one_request_are_answered_each(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            bodies = [scoring_payload([5, 6], reply) for reply in ([7, 8, 9], [7])]
            body: dict[str, Any] = {name: [each[name] for each in bodies] for name in bodies[0]}
            found = (await here.post("/generate", **body, extra_key=["a", "b"], rid="both")).json()
            alone = [(await here.post("/generate", **each)).json() for each in bodies]
            scores = [[one["meta_info"]["input_token_logprobs"] for one in answers] for answers in (found, alone)]
            assert scores[0] == scores[1]
            assert [one["meta_info"]["id"] for one in found] == ["both_0", "both_1"]
            first = here.vllm.requests[:2]
            assert sorted(asked["cache_salt"] for asked in first) == ["a", "b"]
            here.vllm.statuses = [400]
            failed = await here.post("/generate", **body)
            assert (failed.status_code, "failed with 400" in failed.text) == (400, True)
            assert (await here.http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"] == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"text": "hello"}, "input_ids"),
        ({"input_ids": [[5], 6]}, "input_ids"),
        ({"input_ids": [[5], [6]], "stream": True}, "send one in a stream"),
        ({"input_ids": [[5], [6]], "rid": ["one"]}, "rid has 1 values for 2 prompts"),
        ({"input_ids": [[5], []]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [5], "image_data": ["data:"]}, "image_data"),
        ({"input_ids": [5], "return_routed_experts": True}, "return_routed_experts"),
        ({"input_ids": [5], "sampling_params": {"custom_params": {}}}, "custom_params"),
        ({"input_ids": [5], "sampling_params": {"temperature": 0.001}}, "temperature 0.001"),
        ({"input_ids": [5], "sampling_params": {"regex": "a", "ebnf": "b"}}, "several grammars"),
        ({"input_ids": [5, 6, 7], "stream": True, "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"input_ids": [5], "lora_path": "mine"}, "lora_path mine"),
        ({"input_ids": [5], "lora_path": ["mine"]}, "lora_path ['mine']: send the name"),
        ({"input_ids": [5], "sampling_params": [1]}, "sampling_params [1]: send a JSON object"),
        ({"input_ids": [5], "sampling_params": {"temperature": "hot"}}, "temperature 'hot': send a number"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": []}}, "max_new_tokens []: send a number"),
        ({"input_ids": [5], "logprob_start_len": "0"}, "logprob_start_len '0': send a number"),
        ({"input_ids": [5], "top_logprobs_num": -2}, "top_logprobs_num -2: send 0 or more"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens -1: send 0 or more"),
        ({"input_ids": [5], "stream": "yes"}, "stream 'yes': send true or false"),
        ({"input_ids": [5], "rid": ["one"]}, "rid ['one']: send the name of one request"),
        ({"input_ids": [5], "extra_key": 7}, "extra_key 7: send one string"),
    ],
)
def test_what_vllm_would_ignore_is_refused_by_name(tmp_path: Path, payload: dict[str, Any], named: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            answer = await here.post("/generate", **payload)
            assert (answer.status_code, here.vllm.requests) == (400, [])
            assert named in answer.json()["error"]["message"]

    asyncio.run(run())


ADAPTER = {"lora_name": "mine", "config_dict": {"r": 1}, "safetensors": "AAAA", "sha256": "0"}
UPDATE = {"model_path": "/nowhere", "weight_version": "2"}
COMMANDS = (
    *("/abort_request", "/pause_generation", "/continue_generation", "/flush_cache", "/update_weights_from_disk"),
    *("/update_weight_version", "/load_lora_adapter", "/unload_lora_adapter"),
)


@pytest.mark.parametrize("route", ["/generate", *COMMANDS])
def test_a_body_that_is_no_object_is_refused(tmp_path: Path, route: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            told = list(here.vllm.told)
            for content in (b"[1]", b"7", b"{", b"\xff", b"not JSON"):
                answer = await here.http.post(route, content=content)
                assert (answer.status_code, "send a JSON object" in answer.text) == (400, True), content
            assert (here.vllm.requests, here.vllm.told) == ([], told)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("/abort_request", {}, "rid is missing; send the name of a request, or abort_all true"),
        ("/abort_request", {"rid": ""}, "rid ''; send the name of a request"),
        ("/abort_request", {"rid": 7}, "rid 7; send a string"),
        ("/abort_request", {"abort_all": "yes"}, "abort_all 'yes'; send true or false"),
        ("/pause_generation", {"mode": "now"}, "mode 'now'; send one of retract, in_place, abort"),
        ("/pause_generation", {"mode": ["abort"]}, "mode ['abort']; send a string"),
        ("/update_weight_version", {}, "new_version is missing; send a string"),
        ("/update_weight_version", {"new_version": 2}, "new_version 2; send a string"),
        ("/update_weights_from_disk", UPDATE | {"model_path": None}, "model_path None; send a string"),
        ("/update_weights_from_disk", {"model_path": "/nowhere"}, "weight_version is missing; send a string"),
        ("/update_weights_from_disk", UPDATE | {"flush_cache": 1}, "flush_cache 1; send true or false"),
        ("/update_weights_from_disk", UPDATE | {"model_path": "x" * 5000}, "is not a Hugging Face folder"),
        ("/update_weights_from_disk", UPDATE | {"model_path": "a\0b"}, "is not a Hugging Face folder"),
        ("/load_lora_adapter", {"lora_name": "mine"}, "config_dict is missing; send a JSON object"),
        ("/load_lora_adapter", ADAPTER | {"config_dict": "r"}, "config_dict 'r'; send a JSON object"),
        ("/load_lora_adapter", ADAPTER | {"safetensors": "!"}, "safetensors '!'; send the file in base64"),
        ("/load_lora_adapter", ADAPTER | {"safetensors": "\u00e9"}, "send the file in base64"),
        ("/load_lora_adapter", ADAPTER | {"lora_name": "../mine"}, "lora_name '../mine'; send letters, digits"),
        ("/load_lora_adapter", ADAPTER | {"lora_name": "taken"}, "adapter taken has been loaded before"),
        ("/unload_lora_adapter", {}, "lora_name is missing; send a string"),
        ("/unload_lora_adapter", {"lora_name": {}}, "lora_name {}; send a string"),
    ],
)
def test_a_command_that_lacks_something_says_what_to_send(
    tmp_path: Path, route: str, body: dict[str, Any], words: str
) -> None:
    async def run() -> None:
        (tmp_path / "taken").mkdir()
        async with served(tmp_path) as here:
            told = list(here.vllm.told)
            answer = await here.post(route, **body)
            assert (answer.status_code, here.vllm.told) == (400, told), answer.text
            assert words in answer.json()["error"]["message"]
            assert here.routes.version == "default"

    asyncio.run(run())


DEEP: Any = json.loads('{"a":' * 600 + "1" + "}" * 600)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/abort_request", {"rid": DEEP}),
        ("/load_lora_adapter", ADAPTER | {"config_dict": DEEP}),
        ("/generate", {"input_ids": DEEP}),
        ("/generate", {"input_ids": [5], "sampling_params": {"json_schema": DEEP}}),
        ("/generate", {"input_ids": [5], "lora_path": DEEP}),
    ],
)
def test_a_body_of_many_levels_is_refused(tmp_path: Path, route: str, body: dict[str, Any]) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            answer = await here.post(route, **body)
            assert (answer.status_code, here.vllm.requests, list(tmp_path.iterdir())) == (400, [], [])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("spoiled", "named"),
    [
        (lambda answer: answer.pop("prompt_logprobs"), "vLLM scored 0 of 3"),
        (lambda answer: answer["prompt_logprobs"].pop(), "vLLM scored 2 of 3"),
        (lambda answer: answer["choices"].clear(), "another form"),
        (lambda answer: answer.update(usage="none"), "another form"),
    ],
)
def test_a_whole_answer_of_another_form_is_a_fault_of_vllm(tmp_path: Path, spoiled: Any, named: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            here.vllm.change = lambda answer: (spoiled(answer), answer)[1]
            answer = await here.post("/generate", **scoring_payload([5, 6], [7]))
            assert (answer.status_code, named in answer.text) == (502, True), answer.text

    asyncio.run(run())


@pytest.mark.parametrize("spans", [None, []])
def test_tokens_of_no_weight_version_are_a_fault_of_vllm(tmp_path: Path, spans: Any) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:

            def change(answer: dict[str, Any]) -> dict[str, Any]:
                for choice in answer["choices"]:
                    choice["weight_versions"] = spans
                return answer

            here.vllm.change = change
            answer = await here.post("/generate", input_ids=[5, 6])
            assert (answer.status_code, "no weight version of its 7 tokens" in answer.text) == (502, True)
            with pytest.raises(EngineProtocolError):
                await chunks(here.url)
            # Without tokens there is nothing to name.
            assert (await here.post("/generate", **scoring_payload([5, 6], [7]))).status_code == 200

    asyncio.run(run())


def test_a_port_that_is_taken_ends_the_process_before_vllm_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def start(command: Any, folder: Path) -> Any:
        started.append(command)
        raise AssertionError("vLLM was started")

    monkeypatch.setattr(server, "start_vllm", start)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = ["--host", "127.0.0.1", "--port", str(taken.getsockname()[1]), "--model", "m", "--ranks", "1"]
        with pytest.raises(SystemExit):
            server.main([*own, BEHIND, "vllm"])
    assert not started


def test_vllm_does_not_outlive_a_translator_that_cannot_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"none")
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(server, "start_janitor", lambda folder, detached: None)
    own = ["--host", "127.0.0.1", "--port", "0", "--model", str(tmp_path), "--ranks", "1", "--adapters", "q_proj"]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as vllm:
        monkeypatch.setattr(server, "start_vllm", lambda command, folder: vllm)
        with pytest.raises(SafetensorError):
            server.main([*own, BEHIND, "vllm"])
        ended = vllm.returncode
        vllm.kill()
    assert ended == -signal.SIGTERM


def test_the_process_knows_the_folder_of_everybodys_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def routes(*_: Any, **options: Any) -> Any:
        given.update(options)
        raise RuntimeError("seen")

    monkeypatch.setattr(server, "Translator", routes)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(server, "start_janitor", lambda folder, detached: None)
    own = ["--host", "127.0.0.1", "--port", "0", "--model", str(tmp_path), "--ranks", "1", "--adapters", "q_proj"]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as vllm:
        monkeypatch.setattr(server, "start_vllm", lambda command, folder: vllm)
        with pytest.raises(RuntimeError, match="seen"):
            server.main([*own, "--people", "/run/people", "--held-adapters", "7", BEHIND, "vllm"])
        vllm.kill()
    assert given["people"] == (Path("/run/people"), 7)


def test_grammars_and_lengths_have_vllms_names(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            given = {
                "structural_tag": "{}",
                "min_new_tokens": 2,
                "stop": ["end"],
                "no_stop_trim": True,
                "stop_token_ids": None,
            }
            # As a router sends it.
            defaults = {"log_metrics": True, "return_hidden_states": False, "model": None}
            await here.post("/generate", input_ids=[5, 6], sampling_params=given, **defaults)
            (asked,) = here.vllm.requests
            assert asked["sampling_params"] == {
                "structured_outputs": {"structural_tag": "{}"},
                "min_tokens": 2,
                "stop": ["end"],
                "include_stop_str_in_output": True,
                "max_tokens": 128,
            }

    asyncio.run(run())


@pytest.mark.parametrize(
    ("spoiled", "error"),
    [
        (lambda choice: choice["logprobs"]["content"].clear(), EngineProtocolError),
        (lambda choice: choice["logprobs"]["content"][0].update(token_id=1), EngineProtocolError),
        (lambda choice: choice["logprobs"]["content"][0].update(logprob=-9999.0), EngineProtocolError),
        (lambda choice: choice["token_ids"].append(7), EngineProtocolError),
        (lambda choice: choice.pop("token_ids"), EngineProtocolError),
        (lambda choice: choice.update(finish_reason="repetition"), EngineProtocolError),
    ],
)
def test_what_does_not_belong_together_is_an_error_of_the_protocol(
    tmp_path: Path, spoiled: Any, error: type[Exception]
) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:

            def change(event: dict[str, Any]) -> dict[str, Any]:
                for choice in event["choices"]:
                    spoiled(choice)
                return event

            here.vllm.change = change
            with pytest.raises(error):
                await chunks(here.url)

    asyncio.run(run())


def test_errors_keep_their_status(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            here.vllm.statuses = [400]
            with pytest.raises(EngineRejectedError, match="failed with 400"):
                await chunks(here.url)
            here.vllm.statuses = [503]
            with pytest.raises(EngineAwayError, match="failed with 503"):
                await chunks(here.url)
            here.vllm.change = lambda event: {"error": {"message": "too long", "code": 400}}
            with pytest.raises(EngineRejectedError, match="too long"):
                await chunks(here.url)

    asyncio.run(run())


def test_a_reply_goes_on_after_vllm_breaks_off(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, piece=1 << 20) as here:
            here.vllm.break_after = 3

            def mended() -> None:
                if len(here.vllm.requests) == 2:
                    here.vllm.break_after = None

            here.vllm.step = mended
            ids = [token for chunk in await chunks(here.url, wait_seconds=20.0) for token in chunk.ids]
            assert ids == REPLY
            assert [len(asked["token_ids"]) for asked in here.vllm.requests] == [2, 5]

    asyncio.run(run())


def test_leaving_ends_the_request_in_vllm(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            here.vllm.open.clear()
            for stream in (True, False):
                body = {"input_ids": [5, 6], "rid": f"left-{stream}", "stream": stream}
                asked = asyncio.create_task(here.post("/generate", **body))
                await here.vllm.until(lambda: len(here.vllm.running) == 1)
                asked.cancel()
                await here.vllm.until(lambda: not here.vllm.running)
            assert (await here.http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_its_adapter_back(tmp_path: Path, stream: bool) -> None:
    async def run() -> None:
        async with served(tmp_path, adapters=True) as here:
            await here.load(OLDER)
            here.vllm.open.clear()
            body = {"input_ids": [5, 6], "rid": "left", "stream": stream, "lora_path": OLDER}
            asked = asyncio.create_task(here.post("/generate", **body))
            await here.vllm.until(lambda: bool(here.vllm.running))
            asked.cancel()
            await here.vllm.until(lambda: here.vllm.aborted == {"generate-tokens-left"})
            async with asyncio.timeout(20):
                while (await here.post("/unload_lora_adapter", lora_name=OLDER)).status_code != 200:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_client_that_leaves_before_the_first_event_gives_its_adapter_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, adapters=True) as here:
            await here.load(OLDER)
            body = json.dumps({"input_ids": [5, 6], "stream": True, "lora_path": OLDER}).encode()
            looks = 0

            async def receive() -> dict[str, Any]:
                nonlocal looks
                looks += 1
                if looks == 1:
                    return {"type": "http.request", "body": body, "more_body": False}
                if looks == 2:  # while vLLM is asked
                    await asyncio.Event().wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                await asyncio.sleep(0)

            scope = {"type": "http", "method": "POST", "path": "/generate", "headers": [], "query_string": b""}
            await here.routes.app()({**scope, "asgi": {"version": "3.0", "spec_version": "2.3"}}, receive, send)
            assert (looks, len(here.vllm.requests)) == (3, 1)
            assert (await here.http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"] == 0
            assert (await here.post("/unload_lora_adapter", lora_name=OLDER)).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize("body", [{"rid": "one"}, {"abort_all": True}])
def test_an_aborted_request_keeps_its_tokens(tmp_path: Path, body: dict[str, Any]) -> None:
    async def run() -> None:
        async with served(tmp_path) as here:
            tokens = 0

            def hold_the_third() -> None:
                nonlocal tokens
                tokens += 1
                if tokens == 3:
                    here.vllm.open.clear()

            here.vllm.step = hold_the_third
            asked = asyncio.create_task(here.post("/generate", input_ids=[5, 6], rid="one-1", return_logprob=True))
            await here.vllm.until(lambda: bool(here.vllm.running))
            assert (await here.post("/abort_request", **body)).status_code == 200
            await here.post("/continue_generation")
            answer = (await asked).json()
            assert answer["meta_info"]["finish_reason"]["type"] == "abort"
            assert answer["output_ids"] == REPLY[: len(answer["output_ids"])]
            assert here.vllm.aborted == {"generate-tokens-one-1"}

    asyncio.run(run())


def test_whole_weights_change_between_two_tokens(tmp_path: Path) -> None:
    async def run() -> None:
        folder = tmp_path / "weights"
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).touch()
        async with served(tmp_path) as here:
            tokens = 0
            third = asyncio.Event()

            def at_the_third() -> None:
                nonlocal tokens
                tokens += 1
                if tokens == 4:
                    here.vllm.open.clear()
                    third.set()

            here.vllm.step = at_the_third
            reply = asyncio.create_task(chunks(here.url))
            await third.wait()
            await here.post("/pause_generation", mode="retract")
            update = {"model_path": str(folder), "flush_cache": True, "weight_version": "2"}
            assert (await here.post("/update_weights_from_disk", **update)).status_code == 200
            await here.post("/continue_generation")
            spans = [(span.version, span.start, span.end) for span in (await reply)[-1].versions]
            assert spans == [("default", 0, 3), ("2", 3, len(REPLY))]
            assert (await here.http.get("/model_info")).json()["weight_version"] == "2"
            flush = ("/reset_prefix_cache?reset_running_requests=true", None)
            assert here.vllm.told == [
                ("/pause?mode=keep&clear_cache=false", None),
                flush,
                ("/collective_rpc", {"method": "load_folder", "kwargs": {"path": str(folder)}}),
                flush,
                ("/update_weight_version", {"new_version": "2"}),
                ("/resume", None),
            ]
            wrong = await here.post("/update_weights_from_disk", **(update | {"model_path": "/nowhere"}))
            assert (wrong.status_code, "/nowhere is not a Hugging Face folder" in wrong.text) == (400, True)

    asyncio.run(run())


def test_a_request_keeps_the_adapter_that_it_began_with(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, adapters=True) as here:
            first = (await chunks(here.url))[-1]
            assert (first.weight_version, here.vllm.requests[-1]["model"]) == ("default", BASE), (
                "zeros, never no adapter"
            )
            assert (await here.load(OLDER)).status_code == 200
            assert (await here.load(OLDER)).status_code == 400
            await here.post("/update_weight_version", new_version="1")
            here.vllm.open.clear()
            running = asyncio.create_task(chunks(here.url))
            await here.vllm.until(lambda: bool(here.vllm.running))
            await here.load(NEWEST)
            offered = here.vllm.requests[-1]["model"]
            refused = await here.post("/unload_lora_adapter", lora_name=OLDER)
            assert (offered, refused.status_code, "requests use it" in refused.text) == (OLDER, 400, True)
            await here.post("/update_weight_version", new_version="2")
            here.vllm.open.set()
            versions = {(chunk.weight_version, *(span.version for span in chunk.versions)) for chunk in await running}
            assert versions == {("1",), ("1", "1")}
            ours = (await here.post("/generate", input_ids=[5, 6])).json()["meta_info"]
            assert (ours["weight_version"], ours["adapter_sha256"]) == ("2", f"sha of {NEWEST}")
            base = (await here.post("/generate", input_ids=[5, 6], lora_path=BASE)).json()["meta_info"]
            assert (base["weight_version"], here.vllm.requests[-1]["model"]) == (BASE, BASE)
            assert (await here.post("/generate", input_ids=[5], lora_path="other")).status_code == 400
            files = tmp_path / OLDER
            assert json.loads((files / "adapter_config.json").read_text()) == {"r": 1}
            assert (files / "adapter_model.safetensors").read_bytes() == b"tensors"
            assert (await here.post("/unload_lora_adapter", lora_name=OLDER)).status_code == 200
            assert not files.exists()
            gone = await here.post("/unload_lora_adapter", lora_name=OLDER)
            assert (gone.status_code, "does not exist" in gone.text) == (400, True)
            models = (await here.http.get("/v1/models")).json()["data"]
            assert [model["id"] for model in models] == ["policy", NEWEST]

    asyncio.run(run())


def test_a_server_that_starts_held_answers_once_it_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, adapters=True, hold=True) as here:
            asked = asyncio.create_task(chunks(here.url))
            await here.load(NEWEST)
            await here.post("/update_weight_version", new_version="2")
            assert not here.vllm.requests
            await here.post("/continue_generation")
            assert {chunk.weight_version for chunk in await asked} == {"2"}

    asyncio.run(run())


class Run:
    """A run's folder of everybody's adapters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        people_folder(folder).mkdir(parents=True)

    def publish(self, person: str, number: int, *, accepted: bool = True) -> str:
        """Write a version; return its name."""
        name = adapter_name(number, "0123abcd", 1000 + number, mark_of(person))
        files = folder_of(people_folder(self.folder), name)
        files.mkdir(parents=True)
        (files / people.WEIGHTS).write_bytes(save({"lora": torch.full((2,), float(number))}))
        (files / people.CONFIG).write_text(json.dumps({"r": number}))
        if accepted:
            people.publish(self.folder, name)
        return name


def test_each_person_is_answered_by_their_own_adapter(tmp_path: Path) -> None:
    run_of = Run(tmp_path / "run")
    older, anna, bert = run_of.publish("anna", 1), run_of.publish("anna", 2), run_of.publish("bert", 1)
    candidate = run_of.publish("bert", 9, accepted=False)

    async def run() -> None:
        shelf = (people_folder(run_of.folder), 2)
        async with served(tmp_path / "vllm", adapters=True, people=shelf) as here:

            async def meta(wanted: str, stream: bool = False) -> dict[str, Any]:
                body = {"input_ids": [5, 6], "lora_path": wanted, "stream": stream}
                answer = await here.post("/generate", **body)
                assert answer.status_code == 200, answer.text
                events = answer.text.split("data: ")
                meta = json.loads(events[-2] if stream else answer.text)["meta_info"]
                assert here.vllm.requests[-1]["model"] == meta["adapter"]
                return meta

            for stream in (False, True):
                found = await meta(request_name("anna"), stream)
                assert (found["adapter"], found["weight_version"], len(found["adapter_sha256"])) == (anna, "2", 64)
                assert {span["version"] for span in found["weight_versions"]} == {"2"}
            found = await meta(request_name("carl"))
            assert (found["adapter"], found["weight_version"], found["adapter_sha256"]) == (BASE, "0", None)
            assert (await meta(BASE))["weight_version"] == BASE
            assert (await meta(candidate))["weight_version"] == "9"
            assert json.loads((tmp_path / "vllm" / candidate / "adapter_config.json").read_text()) == {"r": 9}
            # Of two places the least recently used leaves, with its files.
            assert (await meta(request_name("bert")))["adapter"] == bert
            assert not (tmp_path / "vllm" / anna).exists()
            listed = [model["id"] for model in (await here.http.get("/v1/models")).json()["data"]]
            assert listed == ["policy", candidate, bert]
            folder_of(people_folder(run_of.folder), anna).joinpath(people.WEIGHTS).write_bytes(b"spoiled")
            found = await meta(request_name("anna"))
            assert (found["adapter"], found["adapter_fallback"]["adapter"]) == (older, anna)
            for wanted, words in (
                (None, "person-MARK"),
                ("mine", "no adapter has the name"),
                ([older], "of one adapter"),
            ):
                refused = await here.post("/generate", input_ids=[5, 6], lora_path=wanted)
                assert (refused.status_code, words in refused.text) == (400, True), refused.text
            folder_of(people_folder(run_of.folder), older).joinpath(people.WEIGHTS).unlink()
            people.forget(run_of.folder, mark_of("bert"))
            run_of.publish("dora", 1)
            await meta(request_name("dora"))
            assert not (tmp_path / "vllm" / bert).exists(), "who was forgotten leaves"
            assert (await meta(request_name("bert")))["adapter"] == BASE

    asyncio.run(run())


def test_an_adapter_in_use_stays_and_a_version_that_vllm_refuses_is_a_503(tmp_path: Path) -> None:
    run_of = Run(tmp_path / "run")
    anna, bert = run_of.publish("anna", 1), run_of.publish("bert", 1)

    async def run() -> None:
        shelf = (people_folder(run_of.folder), 1)
        async with served(tmp_path / "vllm", adapters=True, people=shelf) as here:
            here.vllm.open.clear()
            body = {"input_ids": [5, 6]}
            first = asyncio.create_task(here.post("/generate", **body, lora_path=request_name("anna")))
            await here.vllm.until(lambda: bool(here.vllm.running))
            second = asyncio.create_task(here.post("/generate", **body, lora_path=request_name("bert")))
            refused = await here.post("/unload_lora_adapter", lora_name=anna)
            assert (refused.status_code, "requests use it" in refused.text) == (400, True)
            assert len(here.vllm.requests) == 1
            here.vllm.open.set()
            assert [(await task).json()["meta_info"]["adapter"] for task in (first, second)] == [anna, bert]
            here.vllm.adapters.add(run_of.publish("carl", 1))  # so that it refuses to load it
            answer = await here.post("/generate", **body, lora_path=request_name("carl"), stream=True)
            assert (answer.status_code, "the engine refuses it" in answer.text) == (503, True), answer.text

    asyncio.run(run())
