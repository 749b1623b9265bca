"""The routes of episodes: ``/v1/episodes``, ``.../{id}``, ``.../{id}/reward`` and ``.../groups/close``.

Guarantees: a client acts only on episodes that it reaches (`openclaw.gateway.auth`); any other id gets the 404 of an unknown
one. A client closes its own groups only. The guard refuses the key of an episode on all of them. Stateless; `openclaw.gateway.episodes` does the work.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from openclaw.gateway.access_log import client_of
from openclaw.gateway.bodies import take_body
from openclaw.gateway.chat import ChatService
from openclaw.gateway.client_connection import json_response
from openclaw.gateway.episode_requests import (
    EPISODES_PATH,
    GROUP_CLOSE_PATH,
    REWARD_PATH,
    parse_episode,
    parse_group,
    parse_reward,
)


def add_episode_routes(app: FastAPI, service: ChatService) -> None:
    """Add the routes for episodes."""

    @app.post(EPISODES_PATH)
    async def create_episode(request: Request) -> Response:
        """Create an episode for one run of an agent; the answer has its key, which is shown once."""
        wanted = parse_episode(take_body(request.scope))
        return json_response(await service.episodes.create(wanted, client_of(request.scope), f"{request.base_url}v1"))

    @app.get(EPISODES_PATH)
    async def overview(request: Request) -> Response:
        """Return what a driver of episodes asks for: whether rewards train, and how much of the client's waits for the trainer."""
        return json_response(await service.episodes.overview(client_of(request.scope)))

    @app.post(GROUP_CLOSE_PATH)
    async def close_group(request: Request) -> Response:
        """Settle an unfinished group as the members that it has; again, it changes nothing."""
        given = parse_group(take_body(request.scope))
        return json_response(await service.episodes.close_group(given, client_of(request.scope)))

    @app.post(REWARD_PATH)
    async def reward_episode(episode_id: str, request: Request) -> Response:
        """End an episode with its reward; the same reward again changes nothing."""
        given = parse_reward(take_body(request.scope))
        return json_response(await service.episodes.reward(episode_id, given, client_of(request.scope)))

    @app.get("/v1/episodes/{episode_id}")
    async def episode(episode_id: str, request: Request) -> Response:
        """Return an episode's state, its counts of turns and tokens, and its samples."""
        return json_response(await service.episodes.tell(episode_id, client_of(request.scope)))

    @app.delete("/v1/episodes/{episode_id}")
    async def forget_episode(episode_id: str, request: Request) -> Response:
        """Delete all data of an episode; `erased` is false while another reader keeps old bytes on disk."""
        return json_response(await service.episodes.forget(episode_id, client_of(request.scope)))
