"""A real run with a gate: a refused step never serves, a rank that is killed during a probe loses nothing, and a rollback on command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.testkit.logged import logged_records
from lab.testkit.processes import assert_all_gone
from slime.checkpoints.versions import saved_versions
from slime.updates.rollback import ask_rollback, asked_rollback
from tests.helpers.driver import Driver, live_version
from tests.helpers.gate_plugin import PROBES, answers_file

FLAGS = (
    *("--before-push-path", "tests.helpers.gate_plugin.decide", "--num-rollout", "3", "--serve-when-done"),
    *("--save-interval", "1", "--save-keep", "0"),
)


@torch.no_grad()
def expected(folder: Path) -> list[Any]:
    """Return what transformers' model of ``folder`` answers to the plugin's probes."""
    hf: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for probe in PROBES:
        prompt = torch.tensor([probe.prompt_ids])
        reply: list[int] = []
        if probe.max_new_tokens:
            told: Any = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": probe.max_new_tokens}
            reply = hf.generate(prompt, **told, do_sample=False)[0, prompt.size(1) :].tolist()
        logits = hf(torch.tensor([[*probe.prompt_ids, *probe.reply_ids]])).logits[0, len(probe.prompt_ids) - 1 : -1]
        scores = logits.log_softmax(-1).gather(-1, torch.tensor([probe.reply_ids]).long().view(-1, 1)).squeeze(-1)
        found.append((scores.tolist(), reply))
    return found


def agrees(answers: list[Any], wanted: list[Any]) -> bool:
    """Whether a version's answers are those of a folder."""
    replies = all(answer[1] == reply for answer, (_, reply) in zip(answers, wanted, strict=True))
    scores = [answer[0] for answer in answers]
    return replies and all(
        own == pytest.approx(other, abs=1e-4) for own, (other, _) in zip(scores, wanted, strict=True)
    )


def engine_says(url: str) -> list[int]:
    """Return the engine's greedy reply to the first probe."""
    limits = {"temperature": 0.0, "max_new_tokens": PROBES[0].max_new_tokens}
    body = {"input_ids": list(PROBES[0].prompt_ids), "sampling_params": limits}
    return httpx.post(f"{url}/generate", json=body, timeout=60.0).json()["output_ids"]


@pytest.mark.timeout(900)
def test_refuse_kill_and_roll_back(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    run_dir = tmp_path / "run"
    flags = (*FLAGS, "--save-hf", str(run_dir / "hf-{rollout_id}"))
    run_dir.mkdir()
    (run_dir / "gate-hold").touch()
    driver = Driver(repository, run_dir, tiny_random_model, *flags)
    driver.wait_until((run_dir / "gate-held").exists, "a decision about the third rollout")
    url = driver.engine_url()
    assert live_version(url) == "1", "neither the refused step nor the undecided one serves"
    said = "step 1 is undone: worse on 2 of 3 probes; weights 1 keep serving, training goes on"
    assert said in driver.text()
    accepted = expected(run_dir / "hf-0")
    assert engine_says(url) == accepted[0][1]
    driver.member("ray::FSDPTrainActor").kill()
    (run_dir / "gate-hold").unlink()
    driver.wait_for("continuing at rollout 2")
    driver.wait_for("serving until")
    assert live_version(driver.engine_url()) == "2"

    heard = [json.loads(answers_file(run_dir, rollout_id).read_text()) for rollout_id in range(3)]
    assert [each["versions"] for each in heard] == [["0", "1"], ["1", "2"], ["1", "2"]]
    last = expected(run_dir / "hf-2")
    assert agrees(heard[0]["serving"], expected(tiny_random_model))
    assert agrees(heard[0]["candidate"], accepted)
    assert heard[1]["serving"] == heard[2]["serving"] == heard[0]["candidate"], (
        "what serves after the refusal, bit for bit"
    )
    assert not agrees(heard[1]["candidate"], accepted)
    assert agrees(heard[2]["candidate"], last)
    weights = [(run_dir / f"hf-{rollout_id}" / "model.safetensors").read_bytes() for rollout_id in range(3)]
    assert weights[0] == weights[1] != weights[2]
    logged = logged_records(run_dir)
    decisions = {row["rollout/step"]: row["gate/accepted"] for row in logged if "gate/accepted" in row}
    assert list(decisions.values()) == [1.0, 0.0, 1.0]

    ask_rollback(run_dir, 1)
    driver.wait_for("weights 1 serve again, as version 3")
    driver.wait_until(lambda: asked_rollback(run_dir) is None, "the note's end")
    assert (live_version(url), engine_says(url)) == ("3", accepted[0][1])
    assert [(saved.weight_version, saved.rollout_id) for saved in saved_versions(run_dir / "checkpoints")] == [
        ("1", 0), ("1", 1), ("3", 2),
    ]  # fmt: skip
    family = driver.family()
    driver.process.kill()
    driver.process.wait()
    assert_all_gone(family)
