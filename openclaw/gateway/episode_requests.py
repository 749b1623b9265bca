"""The bodies of the episode routes, and how they are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw.config.bounds import EPISODE_BODY, EPISODE_GROUP, EPISODE_NAME, EPISODE_SECONDS
from openclaw.gateway.bodies import too_large
from openclaw.gateway.errors import bad_request

EPISODES_PATH = "/v1/episodes"
REWARD_PATH = "/v1/episodes/{episode_id}/reward"
GROUP_CLOSE_PATH = "/v1/episodes/groups/close"
Body = TypeVar("Body", bound=BaseModel)
Score = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class EpisodeRequest(BaseModel):
    """Creates an episode; ``group`` and ``group_size`` come together.

    The same ``request_id`` again gives the same episode with a new key, so a lost answer leaves no episode behind.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str = Field(min_length=1, max_length=EPISODE_NAME.most)
    ttl_s: float = Field(gt=0, le=EPISODE_SECONDS.most, allow_inf_nan=False)
    group: str | None = Field(None, min_length=1, max_length=EPISODE_NAME.most)
    group_size: int | None = Field(None, ge=2, le=EPISODE_GROUP.most)
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

    group: str = Field(min_length=1, max_length=EPISODE_NAME.most)
    end_open: bool = False


def parse_episode(body: bytes) -> EpisodeRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond its bound.
    """
    request = _parse(EpisodeRequest, body)
    if (request.group is None) != (request.group_size is None):
        raise bad_request("group and group_size come together; send both or neither", param="group_size")
    return request


def parse_reward(body: bytes) -> RewardRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond its bound.
    """
    request = _parse(RewardRequest, body)
    if request.status == "infra_error" and request.reward is not None:
        raise bad_request(
            "an episode that ended by an infra_error has no reward; leave reward out and create another episode",
            param="reward",
        )
    if request.scores and request.reward is None:
        raise bad_request("scores add to a reward; send both, or leave scores out", param="scores")
    return request


def parse_group(body: bytes) -> GroupRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond its bound.
    """
    return _parse(GroupRequest, body)


def _parse(model: type[Body], body: bytes) -> Body:
    if len(body) > EPISODE_BODY.most:
        raise too_large(EPISODE_BODY.most, limit=EPISODE_BODY.name)
    try:
        return model.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise bad_request("the body is not JSON", code="invalid_json") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        raise bad_request(f"{field or 'the body'}: {first['msg']}", param=field) from error
