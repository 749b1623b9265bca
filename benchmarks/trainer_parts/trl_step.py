"""TRL's GRPO step, on request, in TRL's own environment: `PYTHON -m benchmarks.trainer_parts.trl_step SETTINGS.json`.

The trainer is TRL's own, run by its own ``train()``; only the generation is replaced by the batch that we train on too. A
step is what lies between its callbacks: forward and backward over all micro-batches, clipping and AdamW. No reference and no
pass for old log probabilities, as in our step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.trainer_parts.meter import Meter
from slime.args import Arguments

GROUP = 2


class GivenCompletions(GRPOTrainer):
    """GRPO on samples that are given."""

    given: dict[str, Any]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        return dict(self.given)


class InTurn(TrainerCallback):
    """Waits for a request before a step and answers after it."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_step_begin(self, args: Arguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait."""
        if self.meter.wait() is None:
            sys.exit(0)
        self.meter.begin()

    def on_step_end(self, args: Arguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Answer."""
        self.meter.end()


def padded(rows: list[list[int]], device: torch.device, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask ``[B, longest]``."""
    width = max(len(row) for row in rows)
    ids, mask = (torch.zeros(len(rows), width, dtype=torch.long, device=device) for _ in range(2))
    for number, row in enumerate(rows):
        part = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, part] = torch.tensor(row, device=device)
        mask[number, part] = 1
    return ids, mask


def as_trl_has_them(data: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Our training data as what TRL's generation returns: prompts padded on the left, completions on the right."""
    split = [len(ids) - response for ids, response in zip(data["tokens"], data["response_lengths"], strict=True)]
    prompts = [ids[:at] for ids, at in zip(data["tokens"], split, strict=True)]
    replies = [ids[at:] for ids, at in zip(data["tokens"], split, strict=True)]
    prompt_ids, prompt_mask = padded(prompts, device, left=True)
    completion_ids, completion_mask = padded(replies, device, left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(data["rewards"], device=device),
        "num_items_in_batch": completion_mask.sum(),
    }


def main() -> None:
    """Command line."""
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    device = torch.device(given["device"])
    meter = Meter(device)
    data = json.loads(Path(given["batch"]).read_text())
    count = len(data["tokens"])
    config = GRPOConfig(
        output_dir=given["folder"],
        use_cpu=device.type == "cpu",
        bf16=device.type == "cuda",
        per_device_train_batch_size=given["micro_batch"],
        gradient_accumulation_steps=count // given["micro_batch"],
        num_generations=GROUP,
        max_steps=100_000,
        learning_rate=1e-6,
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GivenCompletions(
        model=AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * max(8, count)),
        processing_class=AutoTokenizer.from_pretrained(given["model"]),
        callbacks=[InTurn(meter)],
    )
    trainer.given = as_trl_has_them(data, device)
    meter.answer({})
    trainer.train()


if __name__ == "__main__":
    main()
