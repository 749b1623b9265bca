"""Two keys at one gateway: what belongs to one owner, another can neither reach nor tell from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.gateway.conftest import Stack, Starter

HELLO: list[Any] = [{"role": "user", "content": "hi there"}]
KEYS = "alice: key-a\nalice/tests: key-t\nbob: key-b\nroot (admin): key-r\n"
OPERATOR = "key-o"


@dataclass
class Clients:
    """A gateway with the keys of `KEYS`, and a client for each of them."""

    stack: Stack
    alice: httpx.AsyncClient
    tests: httpx.AsyncClient
    bob: httpx.AsyncClient
    root: httpx.AsyncClient
    operator: httpx.AsyncClient


@pytest.fixture
async def clients(start: Starter, tmp_path: Path) -> Any:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    stack = await start(api_keys_file=str(path), api_key=OPERATOR, serve_rollouts=True)
    made = [
        httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"X-Api-Key": key})
        for key in ("key-a", "key-t", "key-b", "key-r", OPERATOR)
    ]
    yield Clients(stack, *made)
    for client in made:
        await client.aclose()


async def ask(stack: Stack, client: httpx.AsyncClient, messages: list[Any], session: str | None = None) -> str:
    """Send a request; return the reply's id."""
    stack.say("Hello.")
    headers = {"X-Session-Id": session} if session else {}
    response = await client.post("/v1/chat/completions", json={"messages": messages}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["id"]


async def refusals(client: httpx.AsyncClient, session: str, reply: str) -> list[tuple[int, str]]:
    """Try everything that acts on a session or a reply; return status and words, without the ids."""
    thumb = {"response_id": reply, "thumbs": "down"}
    answers = [
        await client.post(f"/v1/sessions/{session}/done"),
        await client.delete(f"/v1/sessions/{session}"),
        await client.post("/v1/feedback", json=thumb),
        await client.get(f"/v1/turns/{reply}"),
    ]
    return [(answer.status_code, answer.text.replace(session, "SESSION")) for answer in answers]


async def test_a_follow_up_goes_to_its_owners_turn(clients: Clients) -> None:
    """M1: both say the same, get the same reply, and send no session id."""
    stack = clients.stack
    hers, his = await ask(stack, clients.alice, HELLO), await ask(stack, clients.bob, HELLO)
    again = [*HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "bob's secret"}]
    await ask(stack, clients.bob, again)
    assert stack.ledger.turns.get(hers).next_state is None
    assert stack.ledger.turns.get(his).next_state == again[-1:]
    sessions = {turn.session_id for turn in stack.turns() if "bob's secret" in str(turn.messages)}
    assert sessions == {stack.ledger.turns.get(his).session_id}
    assert stack.ledger.turns.get(his).session_id.startswith("@bob:plain-")
    assert stack.metric("openclaw_session_events_total", event="ambiguous") == 0


async def test_the_same_session_id_names_two_sessions(clients: Clients) -> None:
    stack = clients.stack
    hers, his = await ask(stack, clients.alice, HELLO, "work"), await ask(stack, clients.bob, HELLO, "work")
    assert [stack.ledger.turns.get(reply).session_id for reply in (hers, his)] == ["@alice:work", "@bob:work"]
    assert (await clients.bob.delete("/v1/sessions/work")).status_code == 200
    assert [turn.session_id for turn in stack.turns()] == ["@alice:work"]


@pytest.mark.parametrize("named", ["work", "@alice:work"])
async def test_anothers_session_and_reply_are_unknown(clients: Clients, named: str) -> None:
    """M2: a foreign id gets the very answer of an id that nobody has."""
    stack = clients.stack
    hers = await ask(stack, clients.alice, HELLO, "work")
    unknown = await refusals(clients.bob, "nothing", "chatcmpl-0")
    assert [status for status, _ in unknown] == [404, 404, 404, 404]
    assert await refusals(clients.bob, named, hers) == unknown
    turn = stack.ledger.turns.get(hers)
    assert (turn.state, turn.next_state, stack.ledger.feedback.of(hers)) == ("waiting", None, [])


async def test_without_a_key_foreign_and_unknown_are_a_401(clients: Clients) -> None:
    hers = await ask(clients.stack, clients.alice, HELLO, "work")
    async with httpx.AsyncClient(base_url=clients.stack.url, trust_env=False) as nobody:
        unknown = await refusals(nobody, "nothing", "chatcmpl-0")
        assert [status for status, _ in unknown] == [401, 401, 401, 401]
        assert await refusals(nobody, "work", hers) == unknown


async def test_a_parent_acts_for_its_child_and_not_the_other_way_round(clients: Clients) -> None:
    stack = clients.stack
    child, parent = await ask(stack, clients.tests, HELLO, "run"), await ask(stack, clients.alice, HELLO, "work")
    assert stack.ledger.turns.get(child).session_id == "@alice/tests:run"
    unknown = await refusals(clients.tests, "nothing", "chatcmpl-0")
    assert await refusals(clients.tests, "@alice:work", parent) == unknown
    assert (await clients.alice.post("/v1/feedback", json={"response_id": child, "thumbs": "up"})).json()["applied"]
    assert (await clients.alice.post("/v1/sessions/run/done")).status_code == 404, "its own session of that name"
    assert (await clients.alice.post("/v1/sessions/@alice%2Ftests:run/done")).status_code == 200
    assert (await clients.alice.delete("/v1/sessions/@alice%2Ftests:run")).json()["turns"] == 1


async def test_words_do_not_link_a_child_and_its_parent(clients: Clients) -> None:
    stack = clients.stack
    hers = await ask(stack, clients.alice, HELLO)
    again = [*HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "go on"}]
    await ask(stack, clients.tests, again)
    assert stack.ledger.turns.get(hers).next_state is None


async def test_an_admin_reaches_every_session_by_its_stored_id(clients: Clients) -> None:
    stack = clients.stack
    hers = await ask(stack, clients.alice, HELLO, "work")
    await ask(stack, clients.operator, HELLO, "work")
    assert (await clients.root.get(f"/v1/turns/{hers}")).json()["state"] == "waiting"
    assert (await clients.root.delete("/v1/sessions/work")).status_code == 404, "an admin's own session of that name"
    assert (await clients.root.delete("/v1/sessions/@:work")).status_code == 200
    assert [turn.session_id for turn in stack.turns()] == ["@alice:work"]
    assert (await clients.operator.post("/v1/sessions/@alice:work/done")).status_code == 200
    assert stack.ledger.turns.get(hers).state == "ended"


async def test_the_operators_sessions_keep_their_names(clients: Clients) -> None:
    reply = await ask(clients.stack, clients.operator, HELLO, "work")
    assert clients.stack.ledger.turns.get(reply).session_id == "work"
    assert (await clients.bob.delete("/v1/sessions/@:work")).status_code == 404
    assert (await clients.operator.delete("/v1/sessions/work")).status_code == 200


async def test_a_collector_gets_what_its_key_owns(clients: Clients) -> None:
    stack = clients.stack
    for client in (clients.alice, clients.tests, clients.bob, clients.operator):
        await ask(stack, client, HELLO, "s")

    async def seen(client: httpx.AsyncClient) -> list[str]:
        page = (await client.get("/v1/rollouts")).json()
        return [row["turn"]["session_id"] for row in page["data"]]

    assert await seen(clients.alice) == ["@alice:s", "@alice/tests:s"]
    assert await seen(clients.tests) == ["@alice/tests:s"]
    assert await seen(clients.bob) == ["@bob:s"]
    for admin in (clients.root, clients.operator):
        assert await seen(admin) == ["@alice:s", "@alice/tests:s", "@bob:s", "s"]


async def test_metrics_that_count_by_key_are_for_an_admin(clients: Clients, start: Starter, tmp_path: Path) -> None:
    answer = await clients.bob.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key_required")
    step = await clients.bob.get("/v1/steps/last")
    assert (step.status_code, step.json()["error"]["code"]) == (403, "admin_key_required")
    assert (await clients.root.get("/v1/steps/last")).json()["error"]["code"] == "step_not_found"
    for admin in (clients.root, clients.operator):
        assert (await admin.get("/metrics")).status_code == 200
    path = tmp_path / "one"
    path.write_text("bob: key-b")
    path.chmod(0o600)
    alone = await start(api_keys_file=str(path))
    async with httpx.AsyncClient(base_url=alone.url, trust_env=False, headers={"X-Api-Key": "key-b"}) as bob:
        assert (await bob.get("/metrics")).status_code == 200


async def test_two_owners_stay_apart_over_a_restart(clients: Clients, start: Starter, tmp_path: Path) -> None:
    hers, his = await ask(clients.stack, clients.alice, HELLO), await ask(clients.stack, clients.bob, HELLO)
    second = await start(api_keys_file=str(tmp_path / "keys"))
    again = [*HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "go on"}]
    async with httpx.AsyncClient(base_url=second.url, trust_env=False, headers={"X-Api-Key": "key-b"}) as bob:
        await ask(second, bob, again)
    assert second.ledger.turns.get(hers).next_state is None
    assert second.ledger.turns.get(his).next_state == again[-1:]


async def test_responses_are_their_owners(clients: Clients) -> None:
    stack = clients.stack
    stack.say("Hello.", "Again.", "From above.")
    made = (await clients.alice.post("/v1/responses", json={"input": "hi"})).json()["id"]

    async def tries(client: httpx.AsyncClient, name: str) -> list[tuple[int, str]]:
        answers = [
            await client.get(f"/v1/responses/{name}"),
            await client.get(f"/v1/responses/{name}/input_items"),
            await client.post(f"/v1/responses/{name}/cancel"),
            await client.delete(f"/v1/responses/{name}"),
            await client.post("/v1/responses", json={"input": "more", "previous_response_id": name}),
            await client.post(
                "/v1/responses", json={"input": [{"type": "item_reference", "id": f"msg_{name[5:]}00"}, *HELLO]}
            ),
            await client.get(f"/v1/turns/{name}"),
            await client.post("/v1/feedback", json={"response_id": name, "thumbs": "up"}),
        ]
        return [(answer.status_code, answer.text.replace(name[5:], "ID")) for answer in answers]

    unknown = await tries(clients.bob, "resp_" + "0" * 32)
    assert {status for status, _ in unknown} == {400, 404}
    for client in (clients.bob, clients.tests):
        assert await tries(client, made) == unknown
    mine = {"input": "more", "previous_response_id": made}
    assert (await clients.alice.post("/v1/responses", json=mine)).status_code == 200
    assert (await clients.root.post("/v1/responses", json=mine)).status_code == 400, (
        "an admin reads it, and has none of it"
    )
    assert (await clients.root.get(f"/v1/responses/{made}")).status_code == 200
    thumb = {"response_id": made, "thumbs": "up"}
    assert (await clients.alice.post("/v1/feedback", json=thumb)).json()["response_id"] == made
    assert (await clients.alice.get(f"/v1/turns/{made}")).json()["id"] == made
    assert (await clients.alice.get(f"/v1/responses/{made}")).status_code == 200
