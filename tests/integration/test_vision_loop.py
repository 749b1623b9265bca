"""The whole loop with pictures: prompts of ``--multimodal-keys``, a real engine that sees them, FSDP steps, pushes, an evaluation.

Its dumps are compared with a Transformers forward over the same pixel values: what the engine sampled before and after a push has the
logprobs of the weights it was sampled with, tower included.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from tests.helpers import tiny_vision
from tests.helpers.driver import Driver
from tests.helpers.pictures import picture, png
from tests.helpers.tolerance import MODEL, tolerance

# Both sides are float32, with log probabilities of up to 10; the largest difference measured is 2e-6.
TOLERANCE = tolerance(10.0, roundings=MODEL)
SIZES = [(16, 16), (33, 25), (24, 40), (300, 200)]


def write_prompts(folder: Path) -> Path:
    """Questions about one picture, two, and none; as files and as text of the row."""
    rows: list[dict[str, Any]] = []
    for number, size in enumerate(SIZES):
        file = folder / f"{number}.png"
        file.write_bytes(png(picture(*size)))
        inline = base64.b64encode(png(picture(16, 16))).decode()
        rows.append({"prompt": f"<image>press {number}", "pictures": [str(file)], "label": "a"})
        rows.append({"prompt": "from <image> to <image>", "pictures": [str(file), inline], "label": "b"})
        rows.append({"prompt": "no picture", "pictures": [], "label": "c"})
    path = folder / "pictures.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def difference(model: Any, samples: list[dict[str, Any]]) -> float:
    """The largest distance of the engine's logprobs from those of ``model`` with the samples' own pixel values."""
    worst = 0.0
    for sample in (
        sample for sample in samples if sample["response_length"]
    ):  # a placeholder may come first, and is cut off
        ids = torch.tensor([sample["tokens"]])
        media = sample["multimodal_train_inputs"] or {}
        kinds = (ids == model.config.image_token_id).int()
        with torch.no_grad():
            logits = model(input_ids=ids, mm_token_type_ids=kinds, **media).logits[0].float()
        start = len(sample["tokens"]) - sample["response_length"]
        expected = logits[start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        worst = max(worst, (expected - torch.tensor(sample["rollout_log_probs"])).abs().max().item())
    return worst


@pytest.mark.timeout(600)
def test_pictures_are_seen_trained_on_and_seen_again_with_new_weights(repository: Path, tmp_path: Path) -> None:
    start, run_dir = tiny_vision.build(tmp_path / "model"), tmp_path / "run"
    prompts = write_prompts(tmp_path)
    driver = Driver(
        *(repository, run_dir, start, "--num-rollout", "2", "--rollout-batch-size", "3", "--apply-chat-template"),
        *("--prompt-data", str(prompts), "--multimodal-keys", '{"image": "pictures"}', "--max-tokens-per-gpu", "256"),
        *("--save-debug-rollout-data", str(run_dir / "rollout_{rollout_id}.pt")),
        *("--save-interval", "1", "--save-hf", str(run_dir / "hf_{rollout_id}")),
        *("--eval-interval", "2", "--eval-prompt-data", "seen", f"{prompts}@[0:2]", "--skip-eval-before-train"),
        *("--eval-max-response-len", "8"),
        script="train.py",
    )
    driver.run_to_end()

    rollouts = [torch.load(run_dir / f"rollout_{number}.pt", weights_only=False)["samples"] for number in range(2)]
    counts = [len((sample["multimodal_inputs"] or {"images": []})["images"]) for sample in rollouts[0]]
    assert sorted(counts) == [0] * 4 + [1] * 4 + [2] * 4
    weights = [str(start), *(str(run_dir / f"hf_{number}") for number in range(2))]
    models = [Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval() for path in weights]
    before, after, _ = models
    assert difference(before, rollouts[0]) < TOLERANCE
    assert difference(after, rollouts[1]) < TOLERANCE
    assert difference(before, rollouts[1]) > 100 * TOLERANCE
    moved = {
        name.split(".")[1]
        for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True)
        if not torch.equal(old, new)
    }
    assert {"visual", "language_model"} <= moved
    blind = [
        {**sample, "multimodal_train_inputs": {**media, "pixel_values": torch.zeros_like(media["pixel_values"])}}
        for sample in rollouts[0]
        if (media := sample["multimodal_train_inputs"])
    ]
    assert difference(before, blind) > 100 * TOLERANCE  # the pictures matter
    lines = [line for line in driver.text().splitlines() if line.startswith("evaluation at ")]
    assert [line.split()[3] for line in lines] == ["seen"]
