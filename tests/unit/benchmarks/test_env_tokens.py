"""Merging turns processes each token once; one by one, every turn's whole prompt is processed again."""

from __future__ import annotations

from benchmarks.env_parts.tokens import episode_turns, processed


def test_merged_turns_process_the_last_prompt_and_its_reply() -> None:
    turns = episode_turns(10, 0)
    found = processed(1, 10)
    last = turns[-1]
    assert found["merged_tokens_per_episode"] == len(last.prompt_ids) + len(last.response_ids)
    assert found["single_tokens_per_episode"] == sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns)
    assert found["ratio"] > 3
