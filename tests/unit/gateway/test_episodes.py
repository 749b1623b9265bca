"""Episodes through the gateway: an unmodified client gets a key, and its requests become samples."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from lab.testkit.waiting import eventually
from openclaw.config.bounds import OPEN_EPISODES, Bound
from openclaw.gateway import episodes as episodes_module
from slime.utils.types import Sample
from tests.unit.gateway.conftest import Stack, Starter

HISTORY_AS_SAMPLED = {"chat_template_kwargs": {"enable_thinking": True}}
"""Otherwise the tiny model's template drops the empty thought of earlier replies, and each turn is a segment."""
TASK: list[Any] = [{"role": "system", "content": "Work."}, {"role": "user", "content": "Count the files."}]


async def create(http: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    response = await http.post("/v1/episodes", json={"task": "count", "ttl_s": 60.0, **changes})
    assert response.status_code == 200, response.text
    return response.json()


def agent(episode: dict[str, Any]) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=episode["base_url"], api_key=episode["api_key"], max_retries=0)


async def ask(stack: Stack, episode: dict[str, Any], messages: list[Any], answer: str, **changes: Any) -> list[Any]:
    """Let the agent ask; return the conversation with the answer."""
    stack.say(answer)
    completion = await agent(episode).chat.completions.create(
        model="any", messages=messages, extra_body=HISTORY_AS_SAMPLED, **changes
    )
    assert completion.usage is not None
    return [*messages, completion.choices[0].message.model_dump(exclude_none=True)]


async def reward(http: httpx.AsyncClient, episode: dict[str, Any], value: float | None, status: str = "ok") -> Any:
    body = {"reward": value, "status": status}
    return await http.post(f"/v1/episodes/{episode['id']}/reward", json=body)


async def three_turns(stack: Stack, episode: dict[str, Any]) -> None:
    """Two turns in a row, and a sub-agent with a prompt of its own."""
    said = await ask(stack, episode, TASK, "I look.")
    await ask(stack, episode, [*said, {"role": "user", "content": "Go on."}], "There are two.")
    await ask(
        stack, episode, [{"role": "user", "content": "Summarise."}], "Two files.", extra_headers={"X-Session-Id": "sub"}
    )


def samples(stack: Stack) -> list[Sample]:
    return [record.sample for record in stack.ledger.views.sample_records()]


async def test_an_agents_turns_become_merged_samples_with_the_reward(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http, metadata={"seed": 3})
    assert (episode["object"], episode["base_url"]) == ("episode", f"{stack.url}/v1")
    assert episode["expires_at"] == stack.clock[0] + 60.0
    await three_turns(stack, episode)
    assert {turn.reason for turn in stack.turns()} == {"episode"}
    assert {turn.state for turn in stack.turns()} == {"excluded"}

    answer = await reward(http, episode, 1.0)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["state"], told["segments"], told["merged_turns"], told["reason"]) == ("settled", 2, 1, None)
    assert (told["counts"]["turns"], told["counts"]["samples"]) == (3, {"ready": 2})
    assert told["metadata"] == {"seed": 3}

    first, second, sub = stack.turns()
    merged, own = samples(stack)
    assert merged.tokens == [*second.prompt_ids, *second.response_ids]
    assert merged.tokens[: len(first.prompt_ids)] == first.prompt_ids
    sampled = [
        id for id, mask in zip(merged.tokens[-merged.response_length :], merged.loss_mask or [], strict=True) if mask
    ]
    assert sampled == [*first.response_ids, *second.response_ids]
    assert own.tokens == [*sub.prompt_ids, *sub.response_ids]
    assert merged.reward == own.reward == 1.0
    assert stack.metric("openclaw_episodes_total", event="settled_samples") == 1
    assert stack.metric("openclaw_episode_segments_total") == 2
    assert stack.metric("openclaw_episode_merged_turns_total") == 1
    outcome = (await http.get(f"/v1/turns/{second.id}")).json()
    assert (outcome["state"], outcome["sample"]) == ("excluded", "ready")


async def test_a_rewritten_history_begins_a_new_segment(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http)
    said = await ask(stack, episode, TASK, "I look.")
    compacted = [*TASK[:1], {"role": "user", "content": "So far: looked."}]
    await ask(stack, episode, compacted, "Go on.")
    await ask(stack, episode, [*said, {"role": "user", "content": "A branch."}], "One.")
    await ask(stack, episode, [*said, {"role": "user", "content": "Another."}], "Two.")
    told = (await reward(http, episode, -1.0)).json()
    assert (told["segments"], told["merged_turns"]) == (3, 1)
    trained = [sum(sample.loss_mask or []) for sample in samples(stack)]
    assert sum(trained) == told["counts"]["generated_tokens"], "each sampled token is trained once"


async def test_an_agent_gets_the_policys_own_sampling_whatever_it_asks_for(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    episode = await create(http)
    await ask(stack, episode, TASK, "Yes.", temperature=0.0, top_p=0.5, seed=7)
    sampling = stack.engine.requests[-1]["sampling_params"]
    assert (sampling["temperature"], sampling["top_p"]) == (
        stack.service.config.temperature,
        stack.service.config.top_p,
    )
    [turn] = stack.turns()
    assert (turn.temperature, turn.reason) == (stack.service.config.temperature, "episode")


async def test_a_group_waits_for_its_members(stack: Stack, http: httpx.AsyncClient) -> None:
    members = [await create(http, group="g", group_size=2) for _ in range(2)]
    for member in members:
        await three_turns(stack, member)
    assert (await reward(http, members[0], 1.0)).json()["state"] == "closed"
    assert samples(stack) == []
    assert (await reward(http, members[1], -1.0)).json()["state"] == "settled"
    assert [round(sample.reward, 3) for sample in samples(stack)] == [0.707, 0.707, -0.707, -0.707]


async def test_a_reward_is_given_once(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http)
    await three_turns(stack, episode)
    first = await reward(http, episode, 1.0)
    assert (await reward(http, episode, 1.0)).json() == first.json()
    assert len(samples(stack)) == 2
    other = await reward(http, episode, 0.5)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "episode_ended")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"status": "infra_error", "reward": 1.0}, "reward"),
        ({"status": "ok", "reward": 1.5}, "reward"),
        ({"status": "ok", "reward": float("nan")}, "reward"),
        ({"reward": 1.0}, "status"),
        ({"status": "ok", "reward": 1.0, "more": 1}, "more"),
        ({"status": "ok", "reward": 1.0, "scores": {"chatcmpl-1": 1.5}}, "scores"),
        ({"status": "ok", "reward": 1.0, "scores": {"chatcmpl-1": float("nan")}}, "scores"),
        ({"status": "ok", "reward": 1.0, "scores": {"chatcmpl-1": "1"}}, "scores"),
        ({"status": "ok", "reward": 1.0, "scores": [1.0]}, "scores"),
        ({"status": "ok", "reward": 1.0, "scores": {"chatcmpl-1": 1.0}}, "scores"),
        ({"status": "timeout", "scores": {"chatcmpl-1": 1.0}}, "scores"),
    ],
)
async def test_a_reward_that_cannot_be_is_refused(
    stack: Stack, http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    episode = await create(http)
    text = str(body).replace("'", '"').replace("nan", "NaN")
    headers = {"Content-Type": "application/json"}
    answer = await http.post(f"/v1/episodes/{episode['id']}/reward", content=text, headers=headers)
    assert answer.status_code == 400, answer.text
    if "NaN" not in text:
        assert answer.json()["error"]["param"] == param
    assert stack.ledger.episodes.get(episode["id"]).state == "open"


async def test_scores_of_replies_join_the_reward(stack: Stack, http: httpx.AsyncClient) -> None:
    episode, other = await create(http), await create(http)
    for each in (episode, other):
        await ask(stack, each, TASK, "I look.")
    first, stranger = (turn.id for turn in stack.turns())
    path, body = f"/v1/episodes/{episode['id']}/reward", {"status": "ok", "reward": 0.5}

    async def give(**scores: float) -> httpx.Response:
        return await http.post(path, json={**body, "scores": {first: -0.25, **scores}})

    refused = await give(**{stranger: 1.0})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_turn")
    assert stranger in refused.json()["error"]["message"]
    await ask(stack, episode, TASK, "The key works on.")
    last = stack.turns()[-1].id
    told = (await give(**{last: 1.0})).json()
    assert (told["state"], told["reward"], told["scores"]) == ("settled", 0.5, {first: -0.25, last: 1.0})
    assert (await give(**{last: 1.0})).json() == told
    assert (await give()).json()["error"]["code"] == "episode_ended"
    assert {sample.reward for sample in samples(stack)} == {0.5 + 0.375}


async def test_a_key_stays_ended_if_another_request_rewards_meanwhile(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = await create(http)
    await ask(stack, episode, TASK, "Done.")
    close = stack.ledger.episodes.close

    def second(episode_id: str, *given: Any) -> bool:
        try:
            return close(episode_id, *given)
        finally:
            monkeypatch.setattr(stack.ledger.episodes, "close", close)
            close(episode_id, "ok", 1.0)

    monkeypatch.setattr(stack.ledger.episodes, "close", second)
    body = {"status": "ok", "reward": 1.0, "scores": {"chatcmpl-1": 1.0}}
    assert (await http.post(f"/v1/episodes/{episode['id']}/reward", json=body)).status_code == 400
    assert not len(stack.service.episodes.keys)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"task": "t"},
        {"task": "t", "ttl_s": 0},
        {"task": "", "ttl_s": 1},
        {"task": "t", "ttl_s": 1, "group": "g"},
        {"task": "t", "ttl_s": 1, "group": "g", "group_size": 1},
    ],
)
async def test_an_episode_that_cannot_be_is_refused(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await http.post("/v1/episodes", json=body)).status_code == 400


async def test_a_key_has_a_bounded_number_of_open_episodes(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes_module, "OPEN_EPISODES", replace(OPEN_EPISODES, most=1))
    await create(http)
    refused = await http.post("/v1/episodes", json={"task": "t", "ttl_s": 1})
    assert (refused.status_code, refused.headers["x-limit"]) == (409, "open_episodes")
    assert stack.metric("openclaw_limit_hits_total", limit="open_episodes") == 1


async def test_an_infrastructure_error_closes_without_samples(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http)
    await three_turns(stack, episode)
    told = (await reward(http, episode, None, "infra_error")).json()
    assert (told["state"], told["reason"], told["counts"]["reasons"]) == ("settled", "infra_error", {"infra_error": 3})
    assert samples(stack) == []


async def test_a_reward_waits_for_the_reply_under_way(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http)
    stack.engine.pause()
    asking = asyncio.create_task(ask(stack, episode, TASK, "Slow."))
    await stack.engine.wait_for(lambda: len(stack.engine.requests) == 1)
    giving = asyncio.create_task(reward(http, episode, 1.0))
    await eventually(lambda: len(stack.service.episodes.keys), 0)
    assert not giving.done()
    stack.engine.resume("1")
    await asking
    told = (await giving).json()
    assert (told["segments"], told["counts"]["turns"]) == (1, 1)


async def test_a_reply_that_does_not_end_keeps_the_episode_open(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes_module, "EPISODE_WAIT", Bound("episode_wait", 0, "seconds", ""))
    episode = await create(http)
    stack.engine.pause()
    asking = asyncio.create_task(ask(stack, episode, TASK, "Slow."))
    await stack.engine.wait_for(lambda: len(stack.engine.requests) == 1)
    await eventually(lambda: stack.service.replies.under_way, 1)
    answer = await reward(http, episode, 1.0)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "replies_under_way")
    assert answer.headers["x-limit"] == "episode_wait"
    stack.engine.resume("1")
    await ask(stack, episode, await asking, "Still here.")
    assert (await reward(http, episode, 1.0)).json()["state"] == "settled"


async def test_an_agent_that_leaves_early_is_not_trained_on_the_rest(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http)
    await ask(stack, episode, TASK, "Whole.")
    stack.engine.token_gate = asyncio.Semaphore(1)
    stack.say("A long answer that nobody waits for.")
    stream = await agent(episode).chat.completions.create(model="any", messages=TASK, stream=True)
    async for _ in stream:
        await stream.close()
        break
    await eventually(lambda: stack.service.replies.under_way, 0)
    stack.engine.token_gate = None
    told = (await reward(http, episode, 1.0)).json()
    assert (told["segments"], told["counts"]["aborted"]) == (1, 1)
    assert {turn.finish_reason: turn.reason for turn in stack.turns()} == {"stop": None, "abort": "aborted"}


async def test_a_key_survives_a_restart_and_ends_with_its_time(start: Starter) -> None:
    first = await start()
    async with httpx.AsyncClient(base_url=first.url, trust_env=False) as http:
        episode = await create(http)
        await ask(first, episode, TASK, "Before.")
    second = await start()
    episode["base_url"] = f"{second.url}/v1"
    await ask(second, episode, TASK, "After.")
    assert {turn.reason for turn in second.turns()} == {"episode"}
    second.clock[0] += 60.0
    with pytest.raises(AuthenticationError):
        await ask(second, episode, TASK, "Too late.")
    await second.service.episodes.sweep()
    assert second.ledger.episodes.get(episode["id"]).reason == "expired"
    assert second.metric("openclaw_episodes_total", event="settled_expired") == 1
    assert samples(second) == []


async def test_an_episode_goes_on_behind_a_gateway_that_crashed(start: Starter) -> None:
    first = await start()
    async with httpx.AsyncClient(base_url=first.url, trust_env=False) as http:
        episode = await create(http)
        said = await ask(first, episode, TASK, "I look.")
    second = await start()
    second.engine.version = "2"
    episode["base_url"] = f"{second.url}/v1"
    await ask(second, episode, [*said, {"role": "user", "content": "Go on."}], "There are two.")
    async with httpx.AsyncClient(base_url=second.url, trust_env=False) as http:
        assert (await reward(http, episode, 1.0)).json()["merged_turns"] == 1
    (sample,) = samples(second)
    before, after = second.turns()
    sampled = [
        id for id, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask or [], strict=True) if mask
    ]
    assert sampled == [*before.response_ids, *after.response_ids]
    start_of_second = sample.response_length - len(after.response_ids)
    assert sample.weight_spans == [
        [before.weight_versions[0].version, 0, len(before.response_ids)],
        ["2", start_of_second, sample.response_length],
    ]


async def test_an_episode_is_forgotten_with_all_its_turns(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http, metadata={"fruit": "marmalade"})
    await three_turns(stack, episode)
    await reward(http, episode, 1.0)
    gone = (await http.delete(f"/v1/episodes/{episode['id']}")).json()
    assert (gone["deleted"], gone["turns"], gone["samples"]) == (True, 3, 2)
    assert stack.turns() == []
    for answer in (
        await http.get(f"/v1/episodes/{episode['id']}"),
        await http.delete(f"/v1/episodes/{episode['id']}"),
        await reward(http, episode, 1.0),
    ):
        assert answer.status_code == 404
    with pytest.raises(AuthenticationError):
        await ask(stack, episode, TASK, "No.")


async def test_a_repeated_request_gets_the_same_episode_with_a_new_key(stack: Stack, http: httpx.AsyncClient) -> None:
    """A driver whose answer was lost sends its request again: no second episode takes a place of the group."""
    wanted = {"group": "g", "group_size": 2, "request_id": "request-1", "metadata": {"try": 1}}
    lost = await create(http, **wanted)
    stack.clock[0] += 1
    again = await create(http, **wanted)
    assert (again["id"], again["expires_at"]) == (lost["id"], lost["expires_at"])
    assert stack.metric("openclaw_episodes_total", event="created") == 1
    with pytest.raises(AuthenticationError):
        await ask(stack, lost, TASK, "no")
    stack.replies.clear()
    await ask(stack, again, TASK, "yes")
    assert (await reward(http, again, 1.0)).status_code == 200

    await create(http, group="g", group_size=2, request_id="request-2")
    for changes in ({}, {"metadata": {"try": 2}}):
        refused = await http.post("/v1/episodes", json={"task": "count", "ttl_s": 60.0, **wanted, **changes})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "episode_conflict")
        assert "use a new one" in refused.json()["error"]["message"]


async def test_a_driver_sees_how_much_waits_for_the_trainer(stack: Stack, http: httpx.AsyncClient) -> None:
    episode = await create(http)
    told = (await http.get("/v1/episodes")).json()
    assert told == {"object": "episodes", "trains_rewards": True, "ready": 0, "open": 1}
    await three_turns(stack, episode)
    await reward(http, episode, 1.0)
    assert (await http.get("/v1/episodes")).json() == {**told, "ready": 1, "open": 0}
