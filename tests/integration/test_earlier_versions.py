"""Earlier versions of a run's weights answer by their own process, with a real tiny model: exact tokens, and never trained.

Transformers' own greedy generation is what each reply is compared with: the ids are equal, and log-probabilities agree within
`NEAR` nats, because a prompt that is read in one piece adds in another order than one that grows.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client import CollectorRegistry
from transformers import AutoModelForCausalLM

from groundwork.people import mark_of
from groundwork.processors import load_tokenizer
from lab.testkit.engine import mock_engine, serve
from lab.tiny_models.cache import SHIPPED
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of
from openclaw.runtime.adapters import RunAdapters
from openclaw.runtime.earlier import EarlierProcess
from openclaw.runtime.where import scratch_of
from slime.weight_sync import people
from tests.helpers.checkpoints import checkpoint
from tests.unit.tools.test_leave import make_run
from tests.unit.tools.test_merge_lora import adapter_of

NEAR = 1e-3
KEYS = "ann:ann-key-123456\nben:ben-key-123456\n"
ASKED = "Tom has 3 apples and gets 4 more. How many?"


@dataclass
class Server:
    """A gateway with earlier versions, and the run behind it."""

    http: httpx.AsyncClient
    ledger: Ledger
    earlier: EarlierProcess
    run: Path

    async def ask(self, version: str, who: str = "", *, said: str = ASKED, **changes: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": said}], "temperature": 0, "max_tokens": 24, **changes}
        body["model"] = f"tiny@{version}" if version else "tiny"
        headers = {"authorization": f"Bearer {who}-key-123456"} if who else {}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers, timeout=300)

    def turns(self) -> list[Turn]:
        return [record.turn for record in self.ledger.views.turn_records()]


@pytest.fixture
async def exits() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as exits:
        yield exits


async def started(exits: AsyncExitStack, run: Path, **changes: Any) -> Server:
    tokenizer = load_tokenizer(str(SHIPPED))
    words = [*tokenizer.encode("Seven.", add_special_tokens=False), tokenizer.eos_token_id]
    engine = await exits.enter_async_context(mock_engine(lambda _: words))
    config = RuntimeConfig(
        policy_url=engine.url,
        tokenizer=str(SHIPPED),
        served_model_name="tiny",
        ledger=str(run / "ledger.sqlite"),
        run_dir=str(run),
        context_length=512,
        prm_max_new_tokens=128,
    )
    config = replace(config, **changes)
    ledger = Ledger(config.ledger or "")
    exits.callback(ledger.close)
    earlier = EarlierProcess(config)
    service = ChatService(config, tokenizer, ledger, CollectorRegistry(), earlier=earlier)
    own = RunAdapters(ledger, run, config.gate_offer) if config.adapter_per_person else None
    url = await exits.enter_async_context(serve(create_app(service, CollectorRegistry(), adapters=own)))
    http = await exits.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))
    return Server(http, ledger, earlier, run)


def greedy(model: Any, turn: Turn, most: int) -> tuple[list[int], list[float]]:
    """Return what Transformers generates after a turn's prompt, with log-probabilities."""
    prompt = torch.tensor([turn.prompt_ids])
    with torch.no_grad():
        ids = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=most, pad_token_id=0
        )
        scores = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
    reply = ids[0, prompt.size(1) :].tolist()
    start = prompt.size(1) - 1
    return reply, [float(scores[start + place, token]) for place, token in enumerate(reply)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "base"))


async def test_each_version_answers_as_transformers_does_and_teaches_nothing(
    exits: AsyncExitStack, tmp_path: Path, base: Path
) -> None:
    run = make_run(tmp_path / "run", base)
    other = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.03 * parameter.std()
    whole = {"model": {f"hf.{name}": tensor for name, tensor in other.state_dict().items() if name != "lm_head.weight"}}
    checkpoint(run / "checkpoints", 2, whole, weight_version="2")
    newest = checkpoint(run / "checkpoints", 5, weight_version="4", lora=True)
    adapted = adapter_of(base, newest / "adapter")
    checkpoint(run / "checkpoints", 6, weight_version="5")
    shutil.rmtree(run / "checkpoints" / "iter_0000006" / "state")  # as one of Megatron
    models = {"0": AutoModelForCausalLM.from_pretrained(base), "2": other, "4": adapted}
    server = await started(exits, run)
    assert server.earlier.process.pid is None, "who never asks pays nothing"
    listed = (await server.http.get("/v1/models")).json()["data"]
    assert [each["id"] for each in listed] == ["tiny", "tiny@5", "tiny@4", "tiny@2", "tiny@0"]

    for version, model in models.items():
        answer = await server.ask(version, session_id=f"s-{version}", logprobs=True, top_logprobs=2)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["model"], answer.headers["x-weight-version"]) == (f"tiny@{version}", version)
        turn = server.turns()[-1]
        ids, logprobs = greedy(model, turn, 24)
        assert turn.response_ids == ids
        assert turn.response_logprobs == pytest.approx(logprobs, abs=NEAR)
        assert [span.version for span in turn.weight_versions] == [version]
        assert (turn.kind, turn.state, turn.reason) == ("main", "excluded", "earlier_version")
        entries = answer.json()["choices"][0]["logprobs"]["content"]
        assert all(entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"]) for entry in entries)
    assert len({tuple(turn.response_ids) for turn in server.turns()}) == 3, "the versions differ"
    assert not scratch_of(run).exists(), "no copy of a version stays on disk"

    first = server.earlier.process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    answer = await server.ask("4", session_id="again")
    assert answer.status_code == 200
    assert server.turns()[-1].response_ids == next(t for t in server.turns() if t.session_id == "s-4").response_ids
    assert server.earlier.process.pid not in (None, first), "it is started again"

    streamed = await server.ask("0", session_id="stream", stream=True)
    assert streamed.text.count("data: ") > 5
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert server.turns()[-1].response_ids == server.turns()[0].response_ids

    for version, status, said in (
        ("3", 404, "there is no version '3'; kept are 5, 4, 2, 0"),
        ("5", 409, "version 5 is a checkpoint of Megatron"),
    ):
        answer = await server.ask(version)
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    turns = server.turns()
    given = {"response_id": turns[0].id, "thumbs": "up"}
    kept = (await server.http.post("/v1/feedback", json=given)).json()
    assert (kept["applied"], kept["reason"]) == (False, "earlier_version")
    assert server.ledger.waiting.people() == [], "nothing waits to be trained or judged"

    words = [
        {"role": "user", "content": ASKED},
        turns[0].response_message,
        {"role": "user", "content": "And in words?"},
    ]
    for _ in range(2):
        answer = await server.ask("", messages=words, session_id="s-0")
        assert answer.json()["choices"][0]["message"]["content"] == "Seven."
        words = [*words, answer.json()["choices"][0]["message"], {"role": "user", "content": "Thank you."}]
    served = [turn for turn in server.turns() if turn.session_id == "s-0"]
    assert [turn.state for turn in served] == ["excluded", "pending", "waiting"], (
        "the version that serves learns as ever"
    )
    assert served[1].next_state == [{"role": "user", "content": "Thank you."}]
    prompt, reply = served[1].prompt_ids, turns[0].response_ids
    places = range(len(prompt) - len(reply))
    assert any(prompt[place : place + len(reply)] == reply for place in places), "its ids stand in the next prompt"


async def test_a_persons_versions_are_that_persons_alone(exits: AsyncExitStack, tmp_path: Path, base: Path) -> None:
    run = make_run(tmp_path / "run", base, adapter_per_person=True)
    name = people.adapter_name(1, "0123abcd", 1, mark_of("ann"))
    adapted = adapter_of(base, people.folder_of(people.people_folder(run), name))
    people.publish(run, name)
    (tmp_path / "keys").write_text(KEYS)
    (tmp_path / "keys").chmod(0o600)
    server = await started(exits, run, api_keys_file=str(tmp_path / "keys"), adapter_per_person=True)
    both = await asyncio.gather(server.ask("1", "ann"), server.ask("0", "ann", said="Hello"))
    assert [answer.status_code for answer in both] == [200, 200], "two versions one after the other"
    of_ann = {turn.weight_versions[0].version: turn for turn in server.turns()}
    assert of_ann["1"].response_ids == greedy(adapted, of_ann["1"], 24)[0]
    stranger = await server.ask("1", "ben")
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (404, "version_not_found")
    assert "kept are 0;" in stranger.json()["error"]["message"]
    assert "1" not in {owner_of(turn.session_id) for turn in server.turns()}
    gone = await server.http.delete("/v1/me", headers={"authorization": "Bearer ann-key-123456"})
    assert gone.json()["adapter"] is True
    assert server.earlier.process.pid is None, "its memory is gone, too"
    assert (await server.ask("1", "ann")).status_code == 404
    assert json.loads((await server.ask("0", "ben", said="Hello")).text)["model"] == "tiny@0"
