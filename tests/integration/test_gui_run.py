"""A whole run on screens: a pool of walled browsers, a vision model's engine, an FSDP step, and samples that are exact."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from agentrl.tasks.gui.miniwob.pages import task_name
from agentrl.tasks.gui.source import write_rows
from tests.helpers import tiny_vision
from tests.helpers.driver import Driver
from tests.helpers.gui_agents import needs_browser

pytestmark = [pytest.mark.integration, needs_browser]
BOUND = 1e-3


def worst_difference(model: Any, samples: list[dict[str, Any]]) -> tuple[float, int, int]:
    """Return how far stored log probabilities are from a forward pass over the same pixels; trained tokens; pictures."""
    worst, seen, pictures = 0.0, 0, 0
    for sample in samples:
        ids = torch.tensor([sample["tokens"]])
        media = sample["multimodal_train_inputs"] or {}
        kinds = (ids == model.config.image_token_id).int()
        with torch.no_grad():
            logits = model(input_ids=ids, mm_token_type_ids=kinds, **media).logits[0].float()
        start = len(sample["tokens"]) - sample["response_length"]
        expected = logits[start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        mask = torch.tensor(sample["loss_mask"]).bool()
        stored = torch.tensor(sample["rollout_log_probs"])
        worst = max(worst, (expected - stored)[mask].abs().max().item())
        seen += int(mask.sum())
        pictures += len(media.get("image_grid_thw", ()))
    return worst, seen, pictures


@contextmanager
def pool(folder: Path) -> Iterator[str]:
    """Run a pool of browsers as a process; yield its address."""
    words = ["--env", "agentrl.tasks.gui.miniwob.environment.MiniWobEnvironment", "--slots", "2", "--port", "0"]
    command = [sys.executable, "-m", "agentrl.pool", *words, "--ledger", str(folder / "pool.sqlite")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        address = next(line.split()[-1] for line in process.stdout if "listening on" in line)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_vision_model_trains_on_screens(repository: Path, tmp_path: Path) -> None:
    start, run_dir = tiny_vision.build(tmp_path / "model"), tmp_path / "run"
    with pool(tmp_path) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_POOL_URL", address)
        write_rows([task_name("click_test", "train", number) for number in range(4)], tmp_path / "tasks.jsonl")
        places = [repository / "gui-rl", repository / "slime", repository]
        driver = Driver(
            *(
                repository,
                run_dir,
                start,
                "--num-rollout",
                "1",
                "--rollout-batch-size",
                "2",
                "--n-samples-per-prompt",
                "2",
            ),
            *("--custom-generate-function-path", "generate_with_gui.generate", "--dynamic-history"),
            *("--custom-rm-path", "generate_with_gui.reward_func", "--reward-key", "score"),
            *(
                "--data-source-path",
                "gui_data_source.GuiMetaDataSource",
                "--prompt-data",
                str(tmp_path / "tasks.jsonl"),
            ),
            *("--rollout-max-context-len", "2048", "--rollout-max-response-len", "12", "--gui-max-steps", "2"),
            *("--rollout-stop-token-ids", *map(str, range(256, 290)), "--max-tokens-per-gpu", "4096"),
            *("--save-debug-rollout-data", str(run_dir / "rollout_{rollout_id}.pt")),
            script="train.py",
            through=["env", f"PYTHONPATH={os.pathsep.join(map(str, places))}"],
        )
        driver.run_to_end()
    samples = torch.load(run_dir / "rollout_0.pt", weights_only=False)["samples"]
    model = Qwen3VLForConditionalGeneration.from_pretrained(str(start), dtype=torch.float32).eval()
    worst, seen, pictures = worst_difference(model, samples)
    print(f"{seen} trained tokens, {pictures} pictures, worst difference {worst:.1e}")
    assert pictures >= 4
    assert seen > 8
    assert worst < BOUND
