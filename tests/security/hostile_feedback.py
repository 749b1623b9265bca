"""An attack on what is trained: one user's replies and his own thumbs fill whole batches."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from lab.testkit.waiting import wait_until
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import LEDGER_NAME
from tests.security.attack import attack, brief
from tests.security.server import CHAT, Server

BATCH = 8
JUDGED_SECONDS = 60.0


@attack("M3", f"{BATCH} replies to one question, a thumb up for each", long=True, real=False)
def own_thumbs(server: Server) -> str:
    """One owner has at most half of a batch while another has ready samples."""
    answer = server.chat("alice", "fill the batch", n=BATCH, session="thumbs")
    assert answer.status_code == 200, brief(answer)
    first = answer.json()["id"]
    mine = [first, *(f"{first}.{number}" for number in range(1, BATCH))]
    with server.client("alice") as alice:
        for reply in mine:
            assert alice.post("/v1/feedback", json={"response_id": reply, "thumbs": "up"}).status_code == 200
    theirs = [_talk(server, number) for number in range(BATCH)]
    wait_until(
        lambda: _ready(server, theirs) == BATCH,
        lambda: f"{_ready(server, theirs)} of bob's {BATCH} turns are ready",
        JUDGED_SECONDS,
    )
    owners = _batch(server)
    share = sum(turn in mine for turn in owners)
    assert share <= BATCH // 2, f"{share} of {BATCH} samples of a batch are alice's"
    return f"{share} of {BATCH} samples are alice's, {sum(turn in theirs for turn in owners)} are bob's"


def _talk(server: Server, number: int) -> str:
    """Let bob talk in a session of his own, and return the turn that gets a next state."""
    question = {"role": "user", "content": f"a question {number}"}
    headers = {"x-session-id": f"batch-{number}"}
    with server.client("bob") as bob:
        reply = bob.post(CHAT, json={"messages": [question]}, headers=headers).json()
        more = [question, reply["choices"][0]["message"], {"role": "user", "content": "that is wrong"}]
        assert bob.post(CHAT, json={"messages": more}, headers=headers).status_code == 200
    return reply["id"]


def _ready(server: Server, turns: list[str]) -> int:
    records = {record.turn.id: record for record in server.records()}
    return sum(any(sample.state == "ready" for sample in records[turn].samples) for turn in turns)


def _batch(server: Server) -> list[str]:
    """Return the turns of the next batch, taken from a copy of the ledger."""
    from openclaw.training.rollout import LedgerDataSource, collect
    from tests.helpers.rollout_args import rollout_args

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / LEDGER_NAME
        with closing(sqlite3.connect(server.ledger_path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        data = LedgerDataSource(rollout_args(Path(folder), rollout_batch_size=BATCH))
        supervisor: Any = SimpleNamespace(check=lambda: None, restarts=0)
        samples, _, _ = collect(data.args, 0, data, supervisor)
        ids = {sample.metadata["ledger_id"] for sample in samples}
        ledger = Ledger(copy)
        try:
            rows = ledger.database.rows("SELECT id, turn_id FROM samples")
            return [cast(str, row["turn_id"]) for row in rows if row["id"] in ids]
        finally:
            ledger.close()
