"""A client of the gateway's episode routes.

Guarantees: a request whose answer was lost is sent again, and changes nothing a second time: the request for an episode has a
``request_id``, and the same reward or deletion again is none. A gateway that is away is asked again for a while, with growing
pauses. A wrong key is named as such, and no key is in an error. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from groundwork.exceptions import ConfigError

logger = logging.getLogger(__name__)
KEY_VARIABLE = "OPENCLAW_API_KEY"
EPISODES = "/v1/episodes"
AWAY_S = 600.0
"""Seconds after which a gateway that does not answer is given up."""
REPLIES_SECONDS = 120.0
"""Seconds for which a reward waits until the replies of an ended agent are over."""
FIRST_PAUSE_S = 0.1
MAX_PAUSE_SECONDS = 5.0
TIMEOUT = httpx.Timeout(60.0, connect=5.0)
"""A reward waits ten seconds for replies before it is answered."""
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
KEYS = frozenset({401, 403})
Status = Literal["ok", "task_failed", "timeout", "infra_error"]
M = TypeVar("M", bound="Told")


class AwayError(Exception):
    """A server did not answer for so long that the run ends; says which and what to do."""


class RefusedError(Exception):
    """The gateway refused a request.

    Attributes:
        code: machine-readable name of the problem.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Told(BaseModel):
    """An answer; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Overview(Told):
    """Whether rewards train, the rollouts that wait for the trainer, and this client's open episodes."""

    trains_rewards: bool
    ready: int
    open: int


class Created(Told):
    """A new episode and the key of its agent."""

    id: str
    api_key: str


class Counts(Told):
    """What an episode has; ``turns`` are replies."""

    turns: int


class Closed(Told):
    """A rewarded episode."""

    id: str
    counts: Counts


class GroupClosed(Told):
    """A closed group: how many members gave samples, and why others did not."""

    trained: int
    reasons: dict[str, int]


class _Model(Told):
    id: str


class _Models(Told):
    data: tuple[_Model, ...]


class _Gone(Told):
    deleted: bool


class EpisodeGateway:
    """The gateway behind a URL; `close` it after use."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        away_s: float = AWAY_S,
        replies_s: float = REPLIES_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare; connects on the first call.

        Args:
            url: of the gateway, without ``/v1``.
            key: that creates the episodes.
            away_s: see `AWAY_S`.
            replies_s: see `REPLIES_SECONDS`.
            transport: instead of the network.
        """
        self._url, self._away_s, self._replies_s = url, away_s, replies_s
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=TIMEOUT, transport=transport, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def overview(self) -> Overview:
        """Return what the gateway tells drivers; errors as `create`."""
        return await self._send("GET", EPISODES, Overview)

    async def model(self) -> str:
        """Return the name of the model that the gateway serves; errors as `create`."""
        return (await self._send("GET", "/v1/models", _Models)).data[0].id

    async def create(
        self, task: str, group: str, group_size: int, ttl_s: float, metadata: Mapping[str, object]
    ) -> Created:
        """Create an episode; a repetition after a lost answer creates no other.

        Raises:
            AwayError: the gateway did not answer for `AWAY_S` seconds.
            ConfigError: the key is wrong.
            RefusedError: the gateway refused the episode.
        """
        body = {"task": task, "group": group, "group_size": group_size, "ttl_s": ttl_s, "metadata": dict(metadata)}
        return await self._send("POST", EPISODES, Created, {**body, "request_id": secrets.token_hex(16)})

    async def reward(self, episode_id: str, status: Status, reward: float | None) -> Closed:
        """End an episode whose agent has ended, once its last replies are over; errors as `create`.

        Raises:
            RefusedError: also with ``replies_under_way`` if they take more than `REPLIES_SECONDS` seconds, and with
                ``episode_ended`` if the episode has expired.
        """
        clock = asyncio.get_running_loop().time
        latest = clock() + self._replies_s
        while True:
            try:
                body = {"status": status, "reward": reward}
                return await self._send("POST", f"{EPISODES}/{quote(episode_id, safe='')}/reward", Closed, body)
            except RefusedError as error:
                if error.code != "replies_under_way" or clock() >= latest:
                    raise
                await asyncio.sleep(FIRST_PAUSE_S)

    async def close_group(self, group: str) -> GroupClosed | None:
        """Settle a group as the rewarded members that it has, and end those that are open; errors as `create`.

        Returns:
            None if the gateway has no episode of it, so that there is nothing to settle.
        """
        try:
            return await self._send("POST", f"{EPISODES}/groups/close", GroupClosed, {"group": group, "end_open": True})
        except RefusedError as error:
            if error.code != "group_not_found":
                raise
            return None

    async def forget(self, episode_id: str) -> None:
        """Delete an episode with all its turns; errors as `create`."""
        try:
            await self._send("DELETE", f"{EPISODES}/{quote(episode_id, safe='')}", _Gone)
        except RefusedError as error:
            if error.code != "episode_not_found":
                raise

    async def _send(self, method: str, path: str, kind: type[M], body: Mapping[str, Any] | None = None) -> M:
        """Send a request until it is answered."""
        clock = asyncio.get_running_loop().time
        latest = clock() + self._away_s
        pause = FIRST_PAUSE_S
        while True:
            wait = random.uniform(pause / 2, pause)
            try:
                answer = await self._http.request(method, path, json=body)
                if answer.status_code not in BUSY:
                    return self._read(answer, kind)
                problem = f"it answers {answer.status_code}: {_error(answer)[0]}"
                wait = max(wait, _retry_after(answer))
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            if clock() + wait >= latest:
                raise AwayError(f"the gateway {self._url} does not answer ({problem}); is it running?")
            if pause == FIRST_PAUSE_S:
                logger.warning("the gateway %s does not answer (%s); asking again", self._url, problem)
            await asyncio.sleep(wait)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _read(self, answer: httpx.Response, kind: type[M]) -> M:
        """Return an answer, or raise the error that it holds."""
        if answer.status_code in KEYS:
            raise ConfigError(f"the gateway refuses {KEY_VARIABLE}: {_error(answer)[0]}")
        if not answer.is_success:
            raise RefusedError(*_error(answer))
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise ConfigError(f"--gateway-url {self._url} answers in another protocol; is it a gateway?") from error


def _error(answer: httpx.Response) -> tuple[str, str]:
    """Return message and code of a refusal."""
    try:
        error = answer.json()["error"]
        return str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.request.method} {answer.request.url.path} gives {answer.status_code}", "unknown"


def _retry_after(answer: httpx.Response) -> float:
    """Return the seconds that a refusal asks to wait."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdigit() else 0.0
