"""Episodes at the gateway: an agent's key, its reward, and its samples.

``/v1/episodes``, ``.../{id}``, ``.../{id}/reward`` and ``.../groups/close``. An agent's requests go the way of
everybody's: the same routes, sessions and capture. Only the owner of the turns differs.

Guarantees: a client acts only on episodes that it reaches (`openclaw.gateway.auth`), and closes its own groups only; any
other id gets the 404 of an unknown one. The guard refuses the key of an episode on all of these routes. After a 200 the
change is in the ledger. The key works until the episode is rewarded, is deleted or expires, also after a restart of the
gateway. A reward waits for the replies under way, so that no reply of a rewarded episode is missing. What did not get a
reward in time has none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from openclaw.config.bounds import (
    EPISODE_BODY,
    EPISODE_GROUP,
    EPISODE_NAME,
    EPISODE_SECONDS,
    EPISODE_WAIT,
    OPEN_EPISODES,
)
from openclaw.credit.episodes import EpisodeRules, settle
from openclaw.gateway.auth import Client, EpisodeKey, EpisodeKeys, key_digest, new_key
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.guard import client_of
from openclaw.gateway.limits import parse_body, take_body
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.schema import AtMost
from openclaw.gateway.stream import json_response
from openclaw.ledger.episodes import INFRA_ERROR, Episode, Settled
from openclaw.ledger.exceptions import (
    EpisodeConflictError,
    LedgerFullError,
    OpenEpisodesError,
    UnknownRecordError,
    UnknownTurnError,
)
from openclaw.ledger.sessions import Forgotten
from openclaw.ledger.store import Ledger
from openclaw.owners import EPISODE, owns
from openclaw.sessions import Sessions

logger = logging.getLogger(__name__)

ID_LENGTH = 12


class EpisodeDesk:
    """Creates, rewards and deletes episodes; owns ``keys``, those of the open ones."""

    def __init__(
        self,
        store: Ledger,
        sessions: Sessions,
        metrics: GatewayMetrics,
        rules: EpisodeRules,
        quiet: Callable[[str, float], Awaitable[int]],
        *,
        clock: Callable[[], float],
    ) -> None:
        """Create the desk; ``quiet`` waits for an owner's replies under way (`openclaw.gateway.reply.Replies.quiet`)."""
        self._store = store
        self._sessions = sessions
        self._metrics = metrics
        self._rules = rules
        self._quiet = quiet
        self._clock = clock
        self.keys = EpisodeKeys(clock)

    def keep(self, keys: EpisodeKeys) -> None:
        """Use ``keys`` from now on, with those of the episodes that an earlier process left open."""
        keys.clock = self._clock
        self.keys = keys
        for episode in self._store.episodes.open():
            self._accept(episode)

    async def create(self, wanted: EpisodeRequest, client: Client, base_url: str) -> dict[str, Any]:
        """Create an episode of the client, and return its key; a repeated request gets a new key of the same episode.

        Raises:
            ApiError: 409 if its group is full or different, if too many episodes are open, or if the ``request_id`` was of an
                episode that has ended or is another one.
        """
        key, now = new_key(), self._clock()
        episode = Episode(
            id=f"{EPISODE}{_id_of(wanted, client)}",
            owner=client.owner,
            key_name=client.name,
            key_digest=key_digest(key),
            task=wanted.task,
            created_at=now,
            expires_at=now + wanted.ttl_s,
            group=wanted.group,
            group_size=wanted.group_size,
            metadata=wanted.metadata,
        )
        try:
            earlier = await asyncio.to_thread(self._store.episodes.create, episode, OPEN_EPISODES.most)
        except EpisodeConflictError as error:
            limit = OPEN_EPISODES.name if isinstance(error, OpenEpisodesError) else None
            raise ApiError(409, str(error), code="episode_conflict", limit=limit) from error
        if earlier is None:
            self._metrics.episodes.labels(event="created").inc()
        else:
            self.keys.end(episode.id)
            episode = earlier
        self._accept(episode)
        body = {"id": episode.id, "object": "episode", "api_key": key, "base_url": base_url}
        return {**body, "expires_at": episode.expires_at}

    async def reward(self, episode_id: str, given: RewardRequest, client: Client) -> dict[str, Any]:
        """End an episode, and return what `tell` does.

        Raises:
            ApiError: 404 for an episode that is unknown or not the client's, 409 if it has ended in another way or its
                agent still waits for a reply, 400 for a score of a reply that it does not have.
        """
        episode = await self._find(episode_id, client)
        if episode.state == "open":
            await self._stop(episode)
        try:
            closed = await asyncio.to_thread(
                self._store.episodes.close, episode_id, given.status, given.reward, given.scores
            )
        except UnknownTurnError as error:
            await self._go_on(episode_id)
            raise bad_request(str(error), param="scores", code="unknown_turn") from error
        except EpisodeConflictError as error:
            raise ApiError(409, str(error), code="episode_ended") from error
        except UnknownRecordError as error:
            raise _unknown(episode_id) from error
        self.keys.end(episode_id)
        if closed:
            self._metrics.episodes.labels(event=f"closed_{given.status}").inc()
            await self._settle()
        return await self.tell(episode_id, client)

    async def close_group(self, given: GroupRequest, client: Client) -> dict[str, Any]:
        """Settle a group as the members that it has, and return how many gave samples, and why others did not.

        Raises:
            ApiError: 404 for a group that is unknown or another owner's, 409 if an episode of it is open.
        """
        try:
            ended = await asyncio.to_thread(
                self._store.episodes.close_group, client.owner, given.group, end_open=given.end_open
            )
        except EpisodeConflictError as error:
            raise ApiError(409, str(error), code="group_open", param="group") from error
        except UnknownRecordError as error:
            raise ApiError(404, f"there is no group {given.group!r}", code="group_not_found", param="group") from error
        for item in ended:
            self.keys.end(item.id)
            self._metrics.episodes.labels(event=f"closed_{INFRA_ERROR}").inc()
        self._count(ended)
        await self._settle()
        result = await asyncio.to_thread(self._store.episodes.group, client.owner, given.group)
        reasons = Counter(episode.reason for episode in result if episode.reason is not None)
        trained = sum(episode.state == "settled" and episode.reason is None for episode in result)
        return {"object": "episode_group", "group": given.group, "trained": trained, "reasons": dict(reasons)}

    async def overview(self, client: Client) -> dict[str, Any]:
        """Return whether rewards train, the client's rollouts that wait for the trainer, and its open episodes.

        An admin sees the rollouts of all owners.
        """
        samples = self._store.samples
        count = samples.ready_count if client.admin else partial(samples.ready_count_of, client.owner)
        ready = await asyncio.to_thread(count)
        opened = await asyncio.to_thread(self._store.episodes.open)
        own = sum(episode.owner == client.owner for episode in opened)
        return {"object": "episodes", "trains_rewards": self._rules.trains_rewards, "ready": ready, "open": own}

    async def tell(self, episode_id: str, client: Client) -> dict[str, Any]:
        """Return an episode's state and counts.

        Raises:
            ApiError: 404 for an episode that is unknown or not the client's.
        """
        episode = await self._find(episode_id, client)
        counts = await asyncio.to_thread(self._store.episodes.counts, episode)
        names = ("id", "task", "group", "group_size", "metadata", "state", "status", "reward", "scores", "reason")
        times = ("segments", "merged_turns", "created_at", "expires_at", "closed_at", "settled_at")
        body = {name: getattr(episode, name) for name in (*names, *times)}
        return {"object": "episode", **body, "counts": asdict(counts)}

    async def forget(self, episode_id: str, client: Client) -> dict[str, Any]:
        """Delete an episode with all its sessions.

        Raises:
            ApiError: 404 for an episode that is unknown or not the client's, 507 if the disk is full.
        """
        try:
            await self._find(episode_id, client, deleted=True)
            self.keys.end(episode_id)
            episode = await asyncio.to_thread(self._store.episodes.delete, episode_id)
            gone = Forgotten(0, 0, 0)
            for session in await asyncio.to_thread(self._store.episodes.sessions, episode):
                with suppress(UnknownRecordError):  # another request deletes it, too
                    gone = _sum(gone, await self._sessions.forget(session))
        except UnknownRecordError as error:
            raise _unknown(episode_id) from error
        except LedgerFullError as error:
            logger.error("an episode could not be deleted: %s", error)
            raise ApiError(
                507,
                "the server's disk is full, so the episode is not deleted; ask its operator to free some space, "
                "then send the request again",
                code="disk_full",
            ) from error
        erased = await self._sessions.erase()
        self._metrics.episodes.labels(event="deleted").inc()
        return {"id": episode_id, "object": "episode", "deleted": True, **asdict(gone), "erased": erased}

    async def sweep(self, jump: float = 0.0) -> None:
        """End the episodes whose time is over, and settle those that wait for nothing.

        If the clock has jumped by ``jump`` seconds, open episodes keep the time that they had left.
        """
        if jump:
            await asyncio.to_thread(self._store.episodes.move_expiry, jump)
            self.keys.move_expiry(jump)
        expired = await asyncio.to_thread(self._store.episodes.expire)
        for settled in expired:
            self.keys.end(settled.id)
        self._count(expired)
        await self._settle()

    async def forget_quiet(self, since: float) -> None:
        """Delete settled episodes that ended before ``since`` and have no session left."""
        await asyncio.to_thread(self._store.episodes.delete_quiet, since)

    async def _settle(self) -> None:
        self._count(await asyncio.to_thread(settle, self._store, self._rules))

    def _count(self, settled: Sequence[Settled]) -> None:
        for item in settled:
            self._metrics.episodes.labels(event=f"settled_{item.reason or 'samples'}").inc()
            self._metrics.episode_segments.inc(item.segments)
            self._metrics.episode_merged_turns.inc(item.merged_turns)

    async def _find(self, episode_id: str, client: Client, *, deleted: bool = False) -> Episode:
        """Return an episode that the client reaches; ``deleted``: also one of which only sessions are left."""
        try:
            episode = await asyncio.to_thread(self._store.episodes.get, episode_id, deleted=deleted)
        except UnknownRecordError as error:
            raise _unknown(episode_id) from error
        if not (client.admin or owns(client.owner, episode.owner)):
            raise _unknown(episode_id)
        return episode

    async def _stop(self, episode: Episode) -> None:
        """End an episode's key and wait for its replies; raise ApiError, with the key valid again, if one takes long."""
        self.keys.end(episode.id)
        running = await self._quiet(episode.turn_owner, EPISODE_WAIT.most)
        if running:
            self._accept(episode)
            raise ApiError(
                409,
                f"{running} replies of the episode are under way; end the agent, then send the request again",
                code="replies_under_way",
                limit=EPISODE_WAIT.name,
            )

    async def _go_on(self, episode_id: str) -> None:
        """Accept an episode's key again, unless the episode has ended meanwhile."""
        with suppress(UnknownRecordError):
            episode = await asyncio.to_thread(self._store.episodes.get, episode_id)
            if episode.state == "open":
                self._accept(episode)

    def _accept(self, episode: Episode) -> None:
        if episode.key_digest is not None:
            key = EpisodeKey(episode.id, episode.turn_owner, episode.key_name, episode.expires_at)
            self.keys.add(episode.key_digest, key)


def _id_of(wanted: EpisodeRequest, client: Client) -> str:
    """Return the hexadecimal part of an episode's id: random, or always the same for a client's ``request_id``."""
    if wanted.request_id is None:
        return secrets.token_hex(ID_LENGTH)
    return hashlib.sha256(f"{client.owner}\0{wanted.request_id}".encode()).hexdigest()[: 2 * ID_LENGTH]


def _sum(one: Forgotten, other: Forgotten) -> Forgotten:
    return Forgotten(one.turns + other.turns, one.samples + other.samples, one.trained + other.trained)


def _unknown(episode_id: str) -> ApiError:
    return ApiError(404, f"there is no episode {episode_id!r}", code="episode_not_found", param="episode_id")


EPISODES_PATH = "/v1/episodes"
REWARD_PATH = "/v1/episodes/{episode_id}/reward"
GROUP_CLOSE_PATH = "/v1/episodes/groups/close"
Name = Annotated[str, Field(min_length=1), AtMost(EPISODE_NAME)]
Score = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class EpisodeRequest(BaseModel):
    """Creates an episode; ``group`` and ``group_size`` come together.

    The same ``request_id`` again gives the same episode with a new key, so a lost answer leaves no episode behind.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    task: Name
    ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=False), AtMost(EPISODE_SECONDS)]
    group: Name | None = None
    group_size: Annotated[int, Field(ge=2), AtMost(EPISODE_GROUP)] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    request_id: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{8,64}$")


class RewardRequest(BaseModel):
    """Ends an episode; ``infra_error`` takes no reward, and no status without a reward gives samples.

    ``scores`` are those of single replies, by the ids of their chat completions.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    reward: float | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    status: Literal["ok", "task_failed", "infra_error", "timeout"]
    scores: dict[str, Score] = Field(default_factory=dict[str, float])


class GroupRequest(BaseModel):
    """Closes a group, whose name is in the body because it may contain any character.

    ``end_open`` ends its open episodes as an ``infra_error`` does; without it they are a conflict.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    group: Name
    end_open: bool = False


def parse_episode(body: bytes) -> EpisodeRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond its bound.
    """
    request = parse_body(EpisodeRequest, body, EPISODE_BODY)
    if (request.group is None) != (request.group_size is None):
        raise bad_request("group and group_size come together; send both or neither", param="group_size")
    return request


def parse_reward(body: bytes) -> RewardRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond its bound.
    """
    request = parse_body(RewardRequest, body, EPISODE_BODY)
    if request.status == "infra_error" and request.reward is not None:
        raise bad_request(
            "an episode that ended by an infra_error has no reward; leave reward out and create another episode",
            param="reward",
        )
    if request.scores and request.reward is None:
        raise bad_request("scores add to a reward; send both, or leave scores out", param="scores")
    return request


def add_episode_routes(app: FastAPI, desk: EpisodeDesk) -> None:
    """Add the routes for episodes."""

    @app.post(EPISODES_PATH)
    async def create_episode(request: Request) -> Response:
        """Create an episode for one run of an agent; the answer has its key, which is shown once."""
        wanted = parse_episode(take_body(request.scope))
        return json_response(await desk.create(wanted, client_of(request.scope), f"{request.base_url}v1"))

    @app.get(EPISODES_PATH)
    async def overview(request: Request) -> Response:
        """Return what a driver of episodes asks for: whether rewards train, and how much of the client's waits for the trainer."""
        return json_response(await desk.overview(client_of(request.scope)))

    @app.post(GROUP_CLOSE_PATH)
    async def close_group(request: Request) -> Response:
        """Settle an unfinished group as the members that it has; again, it changes nothing."""
        given = parse_body(GroupRequest, take_body(request.scope), EPISODE_BODY)
        return json_response(await desk.close_group(given, client_of(request.scope)))

    @app.post(REWARD_PATH)
    async def reward_episode(episode_id: str, request: Request) -> Response:
        """End an episode with its reward; the same reward again changes nothing."""
        given = parse_reward(take_body(request.scope))
        return json_response(await desk.reward(episode_id, given, client_of(request.scope)))

    @app.get("/v1/episodes/{episode_id}")
    async def episode(episode_id: str, request: Request) -> Response:
        """Return an episode's state, its counts of turns and tokens, and its samples."""
        return json_response(await desk.tell(episode_id, client_of(request.scope)))

    @app.delete("/v1/episodes/{episode_id}")
    async def forget_episode(episode_id: str, request: Request) -> Response:
        """Delete all data of an episode; `erased` is false while another reader keeps old bytes on disk."""
        return json_response(await desk.forget(episode_id, client_of(request.scope)))
