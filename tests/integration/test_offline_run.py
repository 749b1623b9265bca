"""Training from a log on the tiny model: real scores, and an end of its own; in the long tests a kill -9 in the middle and a resumed run.

A story, told once; the tests look at what it left behind.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.testkit.live_run import LiveRun, wait_until
from lab.testkit.processes import alive
from openclaw.judge.teacher import TOLERANCE
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import TurnRecord
from tests.helpers.tolerance import MODEL, tolerance

pytestmark = pytest.mark.timeout(900)

BATCH_SIZE = 4
CONVERSATIONS = 26
TEMPERATURE = 0.6
KEEP = {"OPENCLAW_FUSES": "off", "SAVE_INTERVAL": 1, "OPENCLAW_HYGIENE": ""}


@dataclass
class Story:
    """What happened; ``steps``: those before the kill, if there was one."""

    killed: bool
    model: Path
    steps: list[int]
    resumed: list[int]
    exit_code: int
    end: str
    left_after_kill: list[psutil.Process]
    turns: list[TurnRecord]
    counts: dict


def write_log(path: Path) -> None:
    """Write conversations of one reply and its reaction; a person likes every second reply."""
    from word_problems.feedback import approval, complaint
    from word_problems.problems import draw_short

    rng = random.Random(3)
    lines = []
    for number in range(CONVERSATIONS):
        problem = draw_short(rng, "held")
        liked = number % 2 == 0
        text = (
            f"Here is how: so the answer is {problem.answer}."
            if liked
            else f"**Solution** The answer is {problem.answer}."
        )
        reaction = approval(rng, "held", problem.question) if liked else complaint(rng, "held")
        said = [("user", problem.question), ("assistant", text), ("user", reaction)]
        lines.append(json.dumps({"messages": [{"role": role, "content": words} for role, words in said]}))
    path.write_text("\n".join(lines))


@pytest.fixture(
    scope="module", params=[pytest.param(False, id="whole"), pytest.param(True, id="killed", marks=pytest.mark.long)]
)
def story(request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    from lab.tiny_models.build import ensure_built

    model, folder = ensure_built(0), tmp_path_factory.mktemp("offline")
    write_log(folder / "log.jsonl")
    settings = {"BATCH_SIZE": BATCH_SIZE, "DATA_PATH": folder / "log.jsonl", **KEEP}
    steps, left = killed_after_two_steps(repository, folder, model, settings) if request.param else ([], [])
    again = LiveRun(repository, folder, model, "combine", *["--resume"] * request.param, **settings)
    try:
        wait_until(lambda: again.process.poll() is not None or None, lambda: f"the end:\n{again.text()[-4000:]}")
        exit_code = again.wait_end()
    finally:
        if again.process.poll() is None:
            again.process.kill()
    ledger = Ledger(again.ledger_path)
    return Story(
        request.param,
        model,
        steps,
        again.steps(),
        exit_code,
        again.text(),
        left,
        list(ledger.views.turn_records()),
        ledger.views.counts(),
    )


def killed_after_two_steps(
    repository: Path, folder: Path, model: Path, settings: dict[str, Any]
) -> tuple[list[int], list[psutil.Process]]:
    """Run the first part; return its steps, and the processes that the kill left."""
    run = LiveRun(repository, folder, model, "combine", **settings)
    try:
        wait_until(lambda: len(run.steps()) >= 2 or None, lambda: f"two steps:\n{run.text()[-4000:]}")
        family = run.family()
        run.process.kill()
        run.wait_end()
        return run.steps(), alive(family)
    finally:
        if run.process.poll() is None:
            run.process.kill()


def test_the_run_ends_by_itself_when_its_data_is_used(story: Story) -> None:
    assert story.exit_code == 0, story.end
    [line] = [line for line in story.end.splitlines() if line.startswith("data ")]
    assert f"{len(story.turns)} turns scored from text" in line
    assert "24 samples in 6 steps, 2 left, too few for a batch of 4" in line
    assert f"26 conversations, {0 if story.killed else 26} new turns" in story.end
    assert ("26 turns were already in the ledger" in story.end) == story.killed


def test_every_sample_is_trained_exactly_once(story: Story) -> None:
    """Also across a kill."""
    assert story.left_after_kill == []
    assert story.resumed
    assert story.resumed[0] <= (story.steps[-1] + 1 if story.killed else 0)
    used = [[sample for sample in record.samples if sample.state == "trained"] for record in story.turns]
    assert all(len(samples) <= 1 for samples in used)
    trained = sum(map(len, used))
    left = story.counts["samples"].get("ready", 0)
    with_sample = sum(record.turn.reason is None for record in story.turns)
    assert trained + left == with_sample
    assert left < BATCH_SIZE
    assert trained == BATCH_SIZE * story.counts["steps"] >= BATCH_SIZE * 3
    assert story.counts["samples"].get("leased", 0) == 0


def test_every_turn_is_marked_as_scored_by_the_weights_that_it_trains(story: Story) -> None:
    assert story.counts["scored"] == CONVERSATIONS
    versions = {record.turn.weight_versions[0].version for record in story.turns}
    assert len(versions) > 1, "scores follow the weights"
    for record in story.turns:
        assert record.turn.scored
        assert all(sample.sample.metadata["scored"] for sample in record.samples)
        for sample in record.samples:
            if sample.state == "trained":
                assert int(sample.weight_version or 0) - int(sample.sample.weight_versions[0]) <= 5


def test_the_scores_are_those_of_the_model(story: Story) -> None:
    """The first weights are those of the checkpoint, so transformers gives the same numbers."""
    model = AutoModelForCausalLM.from_pretrained(story.model, dtype=torch.float32).eval()
    versions = [int(record.turn.weight_versions[0].version) for record in story.turns]
    first = [record.turn for record in story.turns if int(record.turn.weight_versions[0].version) == min(versions)]
    for turn in first[:4]:
        ids = torch.tensor([[*turn.prompt_ids, *turn.response_ids]])
        with torch.no_grad():
            rows = torch.log_softmax(model(ids).logits[0].float() / TEMPERATURE, -1)
        start = len(turn.prompt_ids)
        expected = rows[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        error = (torch.tensor(turn.response_logprobs) - expected).abs().max().item()
        assert error <= TOLERANCE + tolerance(10.0, roundings=MODEL)
