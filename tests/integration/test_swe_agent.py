"""The standalone evaluation: a scripted model behind an OpenAI-compatible server mends, fails, and loses its middle as in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import eval_swe
import pytest

from agentrl.rollout.chat_policy import FIRST_RATIO, Lengths
from agentrl.tasks.swe.generate import draft_of
from agentrl.tasks.swe.prompts import SUBMIT
from tests.helpers.scripted_chat import said, scripted_chat
from tests.helpers.swe_agents import oracle

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh"),
]
FIRST = "swe/pages/heldout/0"


def block(command: str) -> Any:
    return said(f"THOUGHT: on.\n\n```bash\n{command}\n```")


async def test_a_model_is_evaluated_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_random_model: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1")
    script = [
        block("seq 3000"),
        said("no block"),
        block("seq 3000"),
        block("seq 3000"),
        block(oracle(FIRST)),
        block(SUBMIT),
    ]
    out = tmp_path / "out"
    words = ["--max-instances", "1", "--output-dir", str(out), "--context-length", "12000", "--max-tokens", "500"]
    words += ["--tokenizer", str(tiny_random_model)]
    async with scripted_chat(script) as chat:
        options = eval_swe.build_parser().parse_args([*words, "--api-base", chat.url])
        source = eval_swe.InstanceSource(benchmark="local")
        ids = eval_swe.chosen(source, shuffle=False, most=1)
        assert await eval_swe.evaluate(options, source, ids) == 0
        asked = len(chat.asked)
        assert await eval_swe.evaluate(options, source, ids) == 0
        assert len(chat.asked) == asked == len(script)
    assert (ids, set(chat.keys)) == ([FIRST], {"Bearer sk-secret-1"})
    (result,) = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert (result["resolved"], result["ending"], result["steps"], result["malformed"]) == (True, "done", 5, 1)
    (prediction,) = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert draft_of(FIRST).mistake.right in prediction["model_patch"]
    assert (out / "swe__pages__heldout__0" / "patch.diff").read_text() == prediction["model_patch"]
    whole = json.loads((out / "swe__pages__heldout__0" / "traj.json").read_text())
    assert [message["role"] for message in whole].count("assistant") == len(script), "the trajectory keeps what is cut"
    assert result["context_cuts"] >= 1
    assert any("earlier exchanges are left out" in str(request["messages"]) for request in chat.asked)
    everything = "".join(file.read_text() for file in out.rglob("*") if file.is_file())
    assert "sk-secret-1" not in everything
    assert "test_issue" not in everything
    figures = eval_swe.summary([result], 0)
    assert (figures["resolve_rate"], figures["instances"], figures["no_patch"]) == (1.0, 1, 0)


def test_lengths_follow_the_servers_count() -> None:
    messages = [{"role": "user", "content": "x" * 100}]
    lengths = Lengths(None)
    assert lengths.of(messages) == round(100 * FIRST_RATIO)
    lengths.learn(messages, 20)
    lengths.learn(messages, None)
    assert lengths.of(messages) == 20
    assert Lengths(lambda given: 7).of(messages) == 7
