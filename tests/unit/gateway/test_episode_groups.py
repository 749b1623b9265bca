"""Groups of episodes that their driver closes, and what each owner sees of the queue, through the whole gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.gateway.conftest import Stack, Starter

KEYS = "alice: key-a\nalice/tests: key-t\nbob: key-b\nroot (admin): key-r\n"
OWNERS = {"alice": "key-a", "alice/tests": "key-t", "bob": "key-b", "root": "key-r"}
GROUP = "count#0-a1b2"
CLOSE = "/v1/episodes/groups/close"


@pytest.fixture
async def stack(start: Starter, tmp_path: Path) -> Stack:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return await start(api_keys_file=str(path))


def client(stack: Stack, owner: str = "alice") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {OWNERS[owner]}"}
    return httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=headers)


async def member(stack: Stack, owner: str = "alice", size: int = 3, **changes: Any) -> dict[str, Any]:
    """Create an episode whose agent has asked once."""
    wanted = {"task": "count", "ttl_s": 600.0, "group": GROUP, "group_size": size, **changes}
    async with client(stack, owner) as http:
        made = (await http.post("/v1/episodes", json=wanted)).json()
    assert (await ask(stack, made)).status_code == 200
    return made


async def ask(stack: Stack, made: dict[str, Any]) -> httpx.Response:
    stack.say("Two.")
    body = {"messages": [{"role": "user", "content": "Count."}]}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        return await http.post("/v1/chat/completions", json=body, headers={"X-Api-Key": made["api_key"]})


async def reward(
    stack: Stack, made: dict[str, Any], value: float | None, owner: str = "alice", status: str = "ok"
) -> dict[str, Any]:
    async with client(stack, owner) as http:
        answer = await http.post(f"/v1/episodes/{made['id']}/reward", json={"reward": value, "status": status})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def close(stack: Stack, owner: str = "alice", **changes: Any) -> httpx.Response:
    async with client(stack, owner) as http:
        return await http.post(CLOSE, json={"group": GROUP, **changes})


def told(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_the_rewarded_members_of_a_closed_group_are_compared_and_trained(stack: Stack) -> None:
    first, second, lost = [await member(stack) for _ in range(3)]
    await reward(stack, first, 1.0)
    await reward(stack, second, -1.0)
    await reward(stack, lost, None, status="infra_error")
    assert stack.ledger.samples.ready_count() == 0, "the group waits for a third member"
    answer = await close(stack)
    assert (answer.status_code, answer.json()) == (
        200,
        {"object": "episode_group", "group": GROUP, "trained": 2, "reasons": {"infra_error": 1}},
    )
    rewards = {
        record.sample.metadata["episode"]: record.sample.reward for record in stack.ledger.views.sample_records()
    }
    assert rewards == pytest.approx({first["id"]: 0.7071, second["id"]: -0.7071}, abs=1e-3)
    again = await close(stack)
    assert (again.status_code, again.json()) == (200, answer.json())
    assert stack.ledger.samples.ready_count() == 2
    assert stack.metric("openclaw_episodes_total", event="settled_samples") == 2


@pytest.mark.parametrize(("rewards", "reason"), [([1.0], "straggler"), ([1.0, 1.0], "no_signal")])
async def test_what_cannot_be_compared_is_set_aside_with_a_counted_reason(
    stack: Stack, rewards: list[float], reason: str
) -> None:
    for value in rewards:
        await reward(stack, await member(stack), value)
    assert (await close(stack)).json() == {
        "object": "episode_group",
        "group": GROUP,
        "trained": 0,
        "reasons": {reason: len(rewards)},
    }
    assert {turn.reason for turn in stack.turns()} == {reason}
    assert stack.metric("openclaw_episodes_total", event=f"settled_{reason}") == len(rewards)


async def test_a_group_with_an_open_member_is_closed_only_if_told_so(stack: Stack) -> None:
    rewarded, opened = await member(stack), await member(stack)
    await reward(stack, rewarded, 1.0)
    assert told(await close(stack)) == (409, "group_open", "group")
    assert (await ask(stack, opened)).status_code == 200, "the refusal ended nothing"
    assert stack.ledger.episodes.get(rewarded["id"]).state == "closed"

    assert (await close(stack, end_open=True)).json()["reasons"] == {"straggler": 1, "infra_error": 1}
    assert (await ask(stack, opened)).status_code == 401
    assert stack.metric("openclaw_episodes_total", event="closed_infra_error") == 1
    assert (await close(stack)).json()["reasons"] == {"straggler": 1, "infra_error": 1}
    fresh = await member(stack)
    await reward(stack, fresh, -1.0)
    assert stack.ledger.episodes.get(fresh["id"]).state == "closed", "a new member waits for others again"


@pytest.mark.parametrize("owner", ["bob", "alice/tests", "root"])
async def test_another_owners_group_is_like_an_unknown_one(stack: Stack, owner: str) -> None:
    await reward(stack, await member(stack), 1.0)
    stranger = await close(stack, owner, end_open=True)
    assert told(stranger) == (404, "group_not_found", "group")
    unknown = await close(stack, owner, group="other")
    assert unknown.text.replace("other", GROUP) == stranger.text
    [episode] = stack.ledger.episodes.all()
    assert episode.state == "closed"
    await member(stack, owner, size=2)
    assert told(await close(stack, owner)) == (409, "group_open", "group"), "its own group of the same name"


@pytest.mark.parametrize("changes", [{"group": ""}, {"group": None}, {"end_open": 1}, {"more": 1}])
async def test_a_request_that_makes_no_sense_is_refused(stack: Stack, changes: dict[str, Any]) -> None:
    assert told(await close(stack, **changes)) == (400, "invalid_value", next(iter(changes)))


async def test_the_key_of_an_episode_closes_no_group(stack: Stack) -> None:
    made = await member(stack)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        answer = await http.post(CLOSE, json={"group": GROUP}, headers={"X-Api-Key": made["api_key"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "episode_key")


async def test_an_owner_sees_how_much_of_its_own_waits_for_the_trainer(stack: Stack) -> None:
    for owner, count in (("alice", 1), ("alice/tests", 2), ("bob", 3)):
        for _ in range(count):
            await reward(stack, await member(stack, owner, group=None, group_size=None), 1.0, owner)
    seen: dict[str, int] = {}
    for owner in OWNERS:
        async with client(stack, owner) as http:
            seen[owner] = (await http.get("/v1/episodes")).json()["ready"]
    assert seen == {"alice": 3, "alice/tests": 2, "bob": 3, "root": 6}
