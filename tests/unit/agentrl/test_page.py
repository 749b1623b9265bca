"""The examples of instructions/agents.md work as they are written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from agentrl import client as http_client
from agentrl.environment import Registry, Weight
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import Answer, EvaluateRequest, LeaseRequest, RenewRequest, ResetRequest, StepRequest
from agentrl.web.app import STATUS, STATUS_OF_CODE, create_app

MODELS = {
    "lease": LeaseRequest,
    "renew": RenewRequest,
    "reset": ResetRequest,
    "step": StepRequest,
    "evaluate": EvaluateRequest,
}


def page(repository: Path) -> str:
    return (repository / "instructions" / "agents.md").read_text()


async def test_the_examples(repository: Path, tmp_path: Path, monkeypatch: Any) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page(repository), re.MULTILINE | re.DOTALL):
        exec(block, names)
    registry, ledger = CollectorRegistry(), ProcessLedger(tmp_path / "pool.sqlite")
    pool = Pool(Registry([names["Guess"]]), Capacity(1, Weight(64, 1.0)), ledger, PoolMetrics(registry))
    await pool.start()
    transport = httpx.ASGITransport(create_app(pool, registry, key="the key"))
    client = http_client.HttpLeases
    names["HttpLeases"] = lambda url, key: client(url, key, transport=transport)
    verdict = await names["play"]("the key")
    assert (verdict.status, verdict.score) == ("ok", 1.0)
    assert await pool.stop(20) == 0
    ledger.close()


def test_the_tables(repository: Path) -> None:
    text = page(repository)
    for name, model in MODELS.items():
        (row,) = [line for line in text.splitlines() if line.startswith("| `POST") and f"/{name}`" in line]
        assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(model.model_fields) - {"request_id"}
    codes = [*STATUS.values(), *STATUS_OF_CODE.values()]
    rows = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", text, re.MULTILINE)
    assert {kind for kind, _ in rows} == STATUS.keys()
    assert sorted(int(code) for _, found in rows for code in found.split(",")) == sorted(codes)


def test_an_answer_without_fields_is_json() -> None:
    from agentrl.web.app import _ok

    assert json.loads(bytes(_ok(Answer()).body)) == {"ok": True}
