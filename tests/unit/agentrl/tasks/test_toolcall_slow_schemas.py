"""A schema or arguments that take for ever to check cost their own call, and no time of the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentrl.exceptions import InvalidError
from agentrl.tasks.toolcall import schemas
from agentrl.tasks.toolcall.schemas import check_foreign_schema, problems_of
from groundwork.exceptions import ConfigError
from slime.rollout.rm_hub.workers import GraderPool

pytestmark = pytest.mark.slow
SECONDS, LATEST = 0.5, 0.5
DOUBLING: dict[str, Any] = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}}
DOUBLING["$defs"]["d40"] = {}
MIXED: list[Any] = [[n] if n % 2 else {"a": n} for n in range(8000)]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    pool = GraderPool(1, 60.0, schemas.__name__)
    monkeypatch.setattr(schemas, "_pool", lambda: pool)
    yield pool
    pool.close()


async def lateness(call: Any) -> tuple[float, Any]:
    """Return the longest wait of a task that wants to run all the time, and what the call raised or returned."""
    doing = asyncio.ensure_future(call)
    worst, before = 0.0, time.perf_counter()
    while not doing.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        worst, before = max(worst, now - before), now
    return worst, doing.exception() or doing.result()


async def test_no_check_holds_the_loop(workers: Any) -> None:
    assert await problems_of({"type": "object", "properties": {"a": {"pattern": "^x$"}}}, {"a": "x"}) == []  # starts it
    workers._seconds = SECONDS
    hostile: list[tuple[dict[str, Any], Any]] = [
        ({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}, {"a": "a" * 40 + "!"}),
        ({"patternProperties": {"^(a|a)+$": {}}}, {"a" * 40 + "!": 1}),
        (DOUBLING | {"$ref": "#/$defs/d0"}, {}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": MIXED}),
    ]
    for schema, arguments in hostile:
        worst, found = await lateness(problems_of({"type": "object", **schema}, arguments))
        assert isinstance(found, InvalidError), schema
        assert "cannot be checked within" in found.message
        assert worst < LATEST
    endless = {"type": "object", "allOf": [{"$ref": "#"}]}
    workers._seconds = 60.0
    worst, found = await lateness(problems_of(endless, {}))
    assert "refer to themselves without an end" in found[0]
    assert worst < LATEST
    big = await problems_of(
        {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1] * 5000 + ["x"]}
    )
    assert big == ["a.5000: 'x' is not of type 'integer'"]


async def test_a_server_s_schema_is_checked_outside_of_the_loop(workers: Any) -> None:
    await check_foreign_schema("it", {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}})
    with pytest.raises(ConfigError, match=r"^it: its parameters refer to 'http://x'"):
        await check_foreign_schema("it", {"type": "object", "$ref": "http://x"})
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ConfigError, match=r"^it: "):
        await check_foreign_schema("it", {"type": "object", **deep})
