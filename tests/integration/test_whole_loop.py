"""The whole loop on the tiny model: exact turns, a trainer killed in the middle of a step, a resumed run, a clean end.

One story in two runs, one of the launcher and one of the method's ``train_async.py`` on the ledger that the first left,
told once; the tests look at what it left behind.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from openai import APIError, AsyncOpenAI

from lab.testkit.live_run import FolderRun, LiveRun, call_tool, talk, wait_until
from lab.testkit.processes import alive
from openclaw.ledger.record_files import record_paths
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import TurnRecord
from tests.helpers.tolerance import MODEL, tolerance

pytestmark = pytest.mark.timeout(1500)

BATCH_SIZE = 8
TOLERANCE = tolerance(10.0, roundings=MODEL)
REPLY_SECONDS = 600.0
NO_RESTARTS = ("--max-trainer-restarts", "0")
NO_FUSES = {"OPENCLAW_FUSES": "off"}  # many steps from few problems may well narrow the tiny model
FIRST_EXPORTS, SECOND_EXPORTS = "hf-first", "hf-second"


@dataclass
class Story:
    """What happened, and where it is written."""

    folder: Path
    model: Path
    replies: list[str]
    turns: list[TurnRecord]
    samples_at_kill: list[int]
    restarted_at: float
    checkpoint_at_kill: int
    first_steps: list[int]
    second_steps: list[int]
    exit_code_after_kill: int
    exit_code_at_end: int
    left_after_kill: list[psutil.Process]
    left_at_end: list[psutil.Process]
    killed_text: str
    end_text: str
    end_counts: dict
    sample_rows: list
    lines: list[list[dict]]


def conversations(base_url: str, seed: int, count: int) -> list[str]:
    """Have ``count`` conversations at once, of every kind, and return the ids of the replies.

    Conversations that a dying server cuts off give nothing.
    """

    async def all_of_them() -> list[str]:
        rng = random.Random(seed)
        kinds = []
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=REPLY_SECONDS) as client:
            for number in range(count):
                own, session = random.Random(rng.random()), f"s{seed}-{number}"
                if number % 5 == 4:
                    kinds.append(call_tool(client, own, session))
                else:
                    kinds.append(talk(client, own, session, thinking=number % 5 == 3, stream=number % 2 == 0))
            found = await asyncio.gather(*kinds, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, APIError | httpx.TransportError):
                raise error
        return [reply for replies in found if not isinstance(replies, BaseException) for reply in replies]

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def story(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    from lab.tiny_models.build import ensure_built

    model = ensure_built(0)
    folder = tmp_path_factory.mktemp("loop")
    settings = {"BATCH_SIZE": BATCH_SIZE, "NUM_ROLLOUT": 1000, "SAVE_INTERVAL": 2, **NO_FUSES}
    hf = folder / FIRST_EXPORTS / "{rollout_id}"
    run = LiveRun(repository, folder, model, "combine", "--save-hf", str(hf), *NO_RESTARTS, **settings)
    try:
        run.wait_ready()
        replies = conversations(run.base_url, 0, 20)
        wait_until(lambda: len(run.steps()) >= 3 or None, lambda: f"three steps:\n{run.text()[-4000:]}")
        with ThreadPoolExecutor(1) as pool:
            cut_off = pool.submit(conversations, run.base_url, 1, 30)
            trainer = wait_until(run.trainer_in_a_step, lambda: f"another step:\n{run.text()[-4000:]}")
            family = run.family()
            trainer.kill()
            exit_code = run.wait_end()
            replies += cut_off.result()
        left_after_kill = alive(family)
    finally:
        if run.process.poll() is None:
            run.process.kill()
    ledger = Ledger(run.ledger_path)
    samples_at_kill = [record.id for record in ledger.views.sample_records()]
    checkpoint = int((folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())

    hf = folder / SECOND_EXPORTS / "{rollout_id}"
    resumed = FolderRun(
        repository, folder, model, "combine", "--resume", "--save-hf", str(hf), **settings | {"SAVE_INTERVAL": 1}
    )
    try:
        resumed.wait_ready()
        restarted_at = psutil.Process(resumed.process.pid).create_time()
        replies += conversations(resumed.base_url, 2, 25)
        wait_until(
            lambda: (
                ledger.views.counts()["turns"].get("pending", 0) == 0
                and ledger.samples.ready_count() < BATCH_SIZE
                and ledger.views.counts()["samples"].get("leased", 0) == 0
            ),
            lambda: f"every sample in a batch: {ledger.views.counts()}\n{resumed.text()[-4000:]}",
        )
        family = resumed.family()
        exit_at_end = resumed.stop()
        left_at_end = alive(family)
    finally:
        if resumed.process.poll() is None:
            resumed.process.kill()
    return Story(
        folder=folder,
        model=model,
        replies=replies,
        turns=list(ledger.views.turn_records()),
        samples_at_kill=samples_at_kill,
        restarted_at=restarted_at,
        checkpoint_at_kill=checkpoint,
        first_steps=run.steps(),
        second_steps=resumed.steps(),
        exit_code_after_kill=exit_code,
        exit_code_at_end=exit_at_end,
        left_after_kill=left_after_kill,
        left_at_end=left_at_end,
        killed_text=run.text(),
        end_text=resumed.text(),
        end_counts=ledger.views.counts(),
        sample_rows=ledger.views.sample_records(),
        lines=[[json.loads(line) for line in path.open()] for path in record_paths(run.ledger_path)],
    )


def test_every_reply_is_a_turn(story: Story) -> None:
    assert len(set(story.replies)) == len(story.replies) >= 100
    assert {record.turn.id for record in story.turns} >= set(story.replies)


def test_a_killed_trainer_ends_the_run_with_a_clear_line_and_nothing_left(story: Story) -> None:
    assert story.exit_code_after_kill not in (0, None)
    assert "rank 0" in story.killed_text
    assert not story.left_after_kill


def test_the_resumed_run_goes_on_at_the_checkpoint(story: Story) -> None:
    assert story.first_steps == list(range(len(story.first_steps)))
    assert 2 <= story.checkpoint_at_kill <= len(story.first_steps)
    start = story.checkpoint_at_kill
    assert story.second_steps == list(range(start, start + len(story.second_steps)))


def test_every_judged_turn_is_trained_once(story: Story) -> None:
    by_id = {record.id: record for record in story.sample_rows}
    states = {by_id[number].state for number in story.samples_at_kill}
    assert states == {"trained"}
    assert set(story.end_counts["samples"]) <= {"trained", "ready", "dropped"}
    assert story.end_counts["samples"].get("ready", 0) < BATCH_SIZE
    sizes: dict[int, int] = {}
    for record in story.sample_rows:
        if record.state == "trained":
            assert record.rollout_id is not None
            sizes[record.rollout_id] = sizes.get(record.rollout_id, 0) + 1
    assert set(sizes.values()) == {BATCH_SIZE}
    assert sorted(sizes) == list(range(len(sizes)))
    for record in story.turns:
        if record.turn.state == "judged":
            assert len(record.samples) == (record.turn.reason is None)


def test_every_turn_and_verdict_is_a_line_of_the_record_files(story: Story) -> None:
    """Neither the kill nor the restart loses or repeats one."""
    recorded, judged = ([line["turn"] for line in lines] for lines in story.lines)
    assert sorted(recorded) == sorted(record.turn.id for record in story.turns)
    assert set(judged) == {record.turn.id for record in story.turns if record.verdict is not None}
    numbers = [line["number"] for line in story.lines[1]]
    assert numbers == sorted(set(numbers))


def test_the_end_is_clean(story: Story) -> None:
    assert story.exit_code_at_end == 0
    assert "steps trained; checkpoints are in" in story.end_text
    assert not story.left_at_end


def exported(story: Story, version: str, after_restart: bool) -> Path | None:
    """The weights that a version stands for, if they were exported."""
    if version == "0":
        return story.model
    first, second = (story.folder / name / str(int(version) - 1) for name in (FIRST_EXPORTS, SECOND_EXPORTS))
    if int(version) <= story.checkpoint_at_kill:
        candidates: Sequence[Path] = (first,)
    else:
        candidates = (second,) if after_restart else ()
    return next((path for path in candidates if path.is_dir()), None)


def test_stored_logprobs_are_the_forwards(story: Story) -> None:
    """A float32 forward over the stored ids, with the weights that sampled each token, gives the stored logprobs."""
    import torch
    from transformers import AutoModelForCausalLM

    models: dict[Path, torch.nn.Module] = {}
    checked, worst, versions, kinds = 0, 0.0, set(), {"tool_calls": 0, "reasoning_content": 0, "spans": 0}
    for record in story.turns:
        turn = record.turn
        spans = [
            (span, exported(story, span.version, turn.created_at > story.restarted_at)) for span in turn.weight_versions
        ]
        if not spans or any(path is None for _, path in spans):
            continue
        ids = torch.tensor([[*turn.prompt_ids, *turn.response_ids]])
        for span, path in spans:
            assert path is not None
            if path not in models:
                models[path] = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
            with torch.no_grad():
                logits = models[path](ids).logits[0].float() / turn.temperature
            start = len(turn.prompt_ids)
            rows = logits[start - 1 + span.start : start - 1 + span.end].log_softmax(-1)
            sampled = ids[0, start + span.start : start + span.end]
            expected = rows.gather(-1, sampled[:, None])[:, 0]
            stored = torch.tensor(turn.response_logprobs[span.start : span.end])
            worst = max(worst, float((expected - stored).abs().max()))
            versions.add(span.version)
        checked += 1
        kinds["spans"] += len(spans) > 1
        for key in ("tool_calls", "reasoning_content"):
            kinds[key] += bool(turn.response_message.get(key))
    print(f"{checked} turns, worst difference {worst:.2e}, versions {sorted(versions)}, {kinds}")
    assert worst <= TOLERANCE
    assert checked >= 80
    assert len(versions) >= 3
    assert kinds["tool_calls"] >= 5
    assert kinds["reasoning_content"] >= 5
