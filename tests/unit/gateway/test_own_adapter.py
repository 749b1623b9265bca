"""A person's own adapter at the gateway: by key and own only, going back, accepting, leaving with it, and being forgotten."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from groundwork.paused import pause
from groundwork.people import mark_of
from groundwork.private_files import private_folder
from lab.testkit.engine import serve
from lab.testkit.ledger_records import judged_sample
from openclaw.gateway.app import create_app
from openclaw.owners import stored_id
from openclaw.runtime.adapters import RunAdapters
from slime.updates.rollback import asked_rollbacks
from slime.weight_sync import people
from tests.unit.gateway.conftest import Stack, Starter
from tests.unit.gateway.test_lessons import KEYS, as_key
from tests.unit.gateway.test_window import Echo

ALICE, BOB = "alice", "bob"
ADAPTER = "/v1/me/adapter"


def publish(run: Path, person: str, version: int) -> Path:
    """Publish a version of a person's adapter, and return its folder."""
    name = people.adapter_name(version, "0123abcd", version, mark_of(person))
    folder = people.folder_of(people.people_folder(run), name)
    private_folder(folder)
    for file in (people.WEIGHTS, people.CONFIG, "training.safetensors"):
        (folder / file).write_text(f"{file} of {name}")
    people.publish(run, name)
    return folder


@pytest.fixture
async def world(start: Starter, tmp_path: Path) -> AsyncIterator[tuple[Stack, httpx.AsyncClient, Path]]:
    """A server with an adapter per person: alice has versions 1 and 2, bob version 1 and three refusals."""
    keys, run = tmp_path / "keys", tmp_path / "run"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    private_folder(run)
    stack: Stack = await start(api_keys_file=str(keys), run_dir=str(run), adapter_per_person=True)
    for batch, person, version in ((0, ALICE, 1), (1, BOB, 1), (2, ALICE, 2)):
        judged_sample(stack.ledger, f"{person}-{batch}", session_id=stored_id(person, f"s{batch}"))
        stack.ledger.samples.claim(batch, 1, person=person)
        stack.ledger.decisions.record(batch, "step", str(version), f"better for {person}", person=person)
        stack.ledger.samples.record_step(batch, str(version), 1.0, 2.0, person)
        publish(run, person, version)
    for batch in (3, 4, 5):
        judged_sample(stack.ledger, f"bob-{batch}", session_id=stored_id(BOB, f"s{batch}"))
        stack.ledger.samples.claim(batch, 1, person=BOB)
        stack.ledger.decisions.record(batch, "refused", "2", f"worse, see {run}", by_margin=True, person=BOB)
        stack.ledger.decisions.quarantine(batch)
    registry = CollectorRegistry()
    async with AsyncExitStack() as exits:
        own = RunAdapters(stack.ledger, run, fewest=3)
        url = await exits.enter_async_context(serve(create_app(stack.service, registry, adapters=own)))
        http = await exits.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))
        yield stack, http, run


World = tuple[Stack, httpx.AsyncClient, Path]


async def shown(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await http.get(ADAPTER, headers=as_key(name))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_versions_and_verdicts_are_the_keys_own(world: World) -> None:
    _, http, run = world
    pause(run, 5, "the gate refused 3 batches in a row", BOB)
    alice, bob = await shown(http, ALICE), await shown(http, BOB)
    assert (alice["serving"], [each["version"] for each in alice["kept"]]) == ("2", ["2", "1"])
    assert [(each["version"], each["decision"]) for each in alice["decisions"]] == [("2", "step"), ("1", "step")]
    assert (alice["offer"], alice["rollback_to"], alice["training_paused"]) == (None, None, None)
    assert bob["serving"] == "1"
    assert bob["offer"] == {"refusals": 3, "samples": 3}
    assert bob["training_paused"] == "the gate refused 3 batches in a row"
    assert [each["by_opinions"] for each in bob["decisions"]] == [True, True, True, False]
    assert (await shown(http, "root (admin)"))["decisions"] == [], "an admin's key is about the admin"
    for text in (json.dumps(alice), json.dumps(bob)):
        assert not any(word in text for word in (ALICE, BOB, str(run)))


async def test_one_goes_back_and_the_run_is_asked_for_this_person(world: World) -> None:
    _, http, run = world
    for body, status in (
        ({"to": "2"}, 409),
        ({"to": "7"}, 409),
        ({"to": "x"}, 400),
        ({"to": 1}, 400),
        ({}, 400),
        ({"to": "1", "person": BOB}, 400),
    ):
        answer = await http.post(f"{ADAPTER}/rollback", json=body, headers=as_key(ALICE))
        assert answer.status_code == status, body
    assert asked_rollbacks(run) == []
    for name, to in ((ALICE, "1"), (BOB, "0")):
        answer = await http.post(f"{ADAPTER}/rollback", json={"to": to}, headers=as_key(name))
        assert answer.json() == {"object": "adapter.rollback", "to": to, "asked": True}
    assert [(note.person, note.version) for note in asked_rollbacks(run)] == [(ALICE, "1"), (BOB, "0")]
    assert (await shown(http, ALICE))["rollback_to"] == "1"


async def test_one_accepts_ones_own_change_of_mind(world: World) -> None:
    stack, http, _ = world
    answer = await http.post(f"{ADAPTER}/accept", headers=as_key(ALICE))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_possible")
    answer = await http.post(f"{ADAPTER}/accept", headers=as_key(BOB))
    assert answer.json() == {"object": "adapter.accept", "samples": 3}
    assert stack.ledger.views.counts()["samples"]["ready"] == 3
    assert (await http.post(f"{ADAPTER}/accept", headers=as_key(BOB))).status_code == 409


async def test_one_leaves_with_ones_own_adapter(world: World) -> None:
    _, http, run = world
    answer = await http.get(f"{ADAPTER}/export", headers=as_key(ALICE))
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["x-weight-version"] == "2"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        files = {item.name: tar.extractfile(item).read() for item in tar.getmembers()}  # type: ignore[union-attr]
    assert sorted(files) == [f"adapter-2/{people.CONFIG}", f"adapter-2/{people.WEIGHTS}"]
    folder = people.folder_of(people.people_folder(run), people.adapter_name(2, "0123abcd", 2, mark_of(ALICE)))
    for name, content in files.items():
        assert content == (folder / Path(name).name).read_bytes()
    (folder / people.WEIGHTS).write_text("damaged")
    answer = await http.get(f"{ADAPTER}/export", headers=as_key(ALICE))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_possible")
    assert (await http.get(f"{ADAPTER}/export", headers=as_key("root (admin)"))).status_code == 409


async def test_one_is_forgotten_and_nobody_else(world: World) -> None:
    stack, http, run = world
    await http.post("/v1/lessons", json={"text": "Keep answers short."}, headers=as_key(ALICE))
    await http.post(f"{ADAPTER}/rollback", json={"to": "1"}, headers=as_key(ALICE))
    answer = await http.delete("/v1/me", headers=as_key(ALICE))
    assert answer.json() == {
        **{"object": "person", "deleted": True, "turns": 2, "samples": 2, "trained": 2},
        **{"adapter": True, "erased": True},
    }
    assert (await shown(http, ALICE)) | {"object": ""} == {
        **{"object": "", "serving": "0", "kept": [], "decisions": []},
        **{"rollback_to": None, "offer": None, "training_paused": None},
    }
    assert (await http.get("/v1/lessons", headers=as_key(ALICE))).json()["data"] == []
    for text in (ALICE, mark_of(ALICE)):
        assert [path for path in run.rglob("*") if path.is_file() and text.encode() in path.read_bytes()] == []
    assert (await shown(http, BOB))["serving"] == "1"
    assert len(stack.ledger.sessions.of_person(BOB)) == 4


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ADAPTER),
        ("POST", f"{ADAPTER}/rollback"),
        ("POST", f"{ADAPTER}/accept"),
        ("GET", f"{ADAPTER}/export"),
        ("DELETE", "/v1/me"),
    ],
)
async def test_a_child_key_decides_nothing_and_a_stranger_less(world: World, method: str, path: str) -> None:
    _, http, run = world
    answer = await http.request(method, path, json={"to": "1"}, headers=as_key("alice/phone"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "child_key")
    assert (await http.request(method, path, json={"to": "1"})).status_code == 401
    assert asked_rollbacks(run) == []
    assert people.Book(people.people_folder(run)).serving(mark_of(ALICE)) is not None


async def test_a_server_whose_people_share_weights_says_so_and_still_forgets(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    answer = await http.get(ADAPTER)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_own_adapter")
    judged_sample(stack.ledger, "one", session_id="mine")
    answer = await http.delete("/v1/me")
    assert (answer.json()["turns"], answer.json()["adapter"]) == (1, False)
    assert stack.turns() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ADAPTER), ("GET", f"{ADAPTER}/export"), ("DELETE", "/v1/me"), ("POST", f"{ADAPTER}/rollback")],
)
async def test_a_book_that_cannot_be_read_is_told_without_its_path(world: World, method: str, path: str) -> None:
    _, http, run = world
    (people.people_folder(run) / people.BOOK).write_text("garbage")
    body = {"json": {"to": "1"}} if method == "POST" else {}
    answer = await http.request(method, path, headers=as_key(ALICE), **body)
    assert answer.status_code == 409
    assert "its log tells the operator what to do" in answer.text
    assert str(run) not in answer.text


async def test_the_window_asks_for_the_same(world: World) -> None:
    stack, _, run = world
    own = RunAdapters(stack.ledger, run, fewest=3)
    app = create_app(stack.service, CollectorRegistry(), adapters=own, views=Echo())
    async with serve(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for name, form, status in (
            (ALICE, {"do": "rollback", "to": "1"}, 303),
            (ALICE, {"do": "rollback", "to": "7"}, 409),
            (ALICE, {"do": "accept"}, 409),
            (f"{ALICE}/phone", {"do": "rollback", "to": "1"}, 403),
            (BOB, {"do": "accept"}, 303),
        ):
            answer = await http.post("/window/adapter", data=form, headers=as_key(name))
            assert answer.status_code == status, (name, form)
        assert [(note.version, note.person) for note in asked_rollbacks(run)] == [("1", ALICE)]
        exported = await http.get("/window/export", headers=as_key(ALICE))
        assert (exported.headers["content-type"], exported.headers["x-weight-version"]) == ("application/x-tar", "2")
        assert exported.headers["content-security-policy"].startswith("default-src 'none'")
