"""The record of a short episode with an event of every kind."""

from __future__ import annotations

from pathlib import Path

from agentrl.rollout.records import EpisodeRecord
from lab.testkit.agent_rollouts import GUESS


def write_episode(folder: Path, name: str = "train-3-7-aa") -> EpisodeRecord:
    record = EpisodeRecord(folder, name)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Guess\nmy number."}]
    record.write("reset", task_id="guess-42", seed=5, messages=messages, tools=[GUESS])
    call = {"id": "a", "type": "function", "function": {"name": "guess", "arguments": '{"number": 7}'}}
    said = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    record.policy([1, 2, 3], [4, 5], [-0.1, -0.2], t=0, message=said, weight_spans=[["1", 0, 2]], finish="completed")
    record.write("action", t=0, action={"tool": "guess", "arguments": {"number": 7}})
    record.write("observation", t=0, text="wrong", ending=None)
    record.write("context", t=1, policy="drop_middle", dropped=(2, 3), shortened=(), tokens=[90, 40])
    spans = [["1", 0, 1], ["2", 1, 3]]
    plain = {"role": "assistant", "content": "42"}
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    record.policy(prompt, [9, 10, 11], [-1.5, -1 / 3, 0.0], t=1, message=plain, weight_spans=spans, finish="completed")
    record.write("malformed", t=1, message="write one")
    record.write("observation", t=1, text="right", ending="done")
    record.write("verdict", status="ok", score=1.0, passed=2, total=2, detail="all right")
    record.write("judge", step=f"{name}:0", score=0.5, votes=(1, None, 1, -1))
    record.write("end", ending="done", outcome=1.0, turns=2)
    return record
