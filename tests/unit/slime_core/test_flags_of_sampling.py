"""From the command line to what an engine is asked for: sampling, its limits, and evaluation sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments import parse_args
from slime.rollout import generation
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta

SAMPLING = {
    "--rollout-temperature 0.5": {"temperature": 0.5},
    "--rollout-top-p 0.9": {"top_p": 0.9},
    "--rollout-top-k 7": {"top_k": 7},
    "--rollout-max-response-len 33": {"max_new_tokens": 33},
    "--rollout-stop END STOP": {"stop": ["END", "STOP"]},
    "--rollout-stop-token-ids 5 6": {"stop_token_ids": [5, 6]},
    "--rollout-skip-special-tokens": {"skip_special_tokens": True},
}
EVALUATES = "--eval-prompt-data held_out x.jsonl --eval-max-response-len 8"
EVALUATION = {
    "--eval-input-key q": {"input_key": "q"},
    "--eval-label-key gold": {"label_key": "gold"},
    "--eval-tool-key functions": {"tool_key": "functions"},
    "--n-samples-per-eval-prompt 4": {"n_samples_per_eval_prompt": 4},
    "--eval-temperature 0.1": {"temperature": 0.1},
    "--eval-top-p 0.8": {"top_p": 0.8},
    "--eval-top-k 3": {"top_k": 3},
    "--eval-max-response-len 17": {"max_response_len": 17},
    "--eval-min-new-tokens 2": {"min_new_tokens": 2},
    "--eval-max-prompt-len 100": {"max_prompt_len": 100},
    "--eval-max-context-len 64": {"max_prompt_len": 63},
}


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without a tokenizer and without an earlier run's state."""
    for name in ("load_tokenizer", "load_processor"):
        monkeypatch.setattr(generation, name, lambda *_, **__: None)
    monkeypatch.setattr(http_utils, "_http_client", None)
    monkeypatch.setattr(http_utils, "_proxy", None)
    SingletonMeta.clear(GenerateState)
    yield
    SingletonMeta.clear(GenerateState)


def state_of(args: Arguments) -> GenerateState:
    SingletonMeta.clear(GenerateState)
    return GenerateState(args)


@pytest.mark.parametrize("words", SAMPLING)
def test_a_flag_is_in_the_request(states: None, base: list[str], words: str) -> None:
    plain = state_of(parse_args(base)).sampling_params
    asked = state_of(parse_args([*base, *words.split()])).sampling_params
    assert asked == plain | SAMPLING[words]
    assert asked != plain


def test_a_seed_is_given_to_deterministic_engines(states: None, base: list[str]) -> None:
    seeds = state_of(parse_args([*base, "--rollout-seed", "9", "--sglang-enable-deterministic-inference"]))
    assert seeds.group_sampling_seeds is not None
    assert list(seeds.group_sampling_seeds[:3]) == [9, 10, 11]
    assert state_of(parse_args(base)).group_sampling_seeds is None


def test_requests_at_a_time_are_those_of_all_engines(states: None, base: list[str], monkeypatch: Any) -> None:
    words = "--sglang-server-concurrency 3 --rollout-num-gpus 4 --rollout-num-gpus-per-engine 2"
    args = parse_args([*base, *words.split()])
    assert state_of(args).semaphore._value == 6
    connections = []
    monkeypatch.setattr(http_utils, "_new_client", connections.append)
    http_utils.init_http_client(args)
    assert connections == [6]


@pytest.mark.parametrize("words", EVALUATION)
def test_a_flag_is_that_of_the_evaluation_set(base: list[str], words: str) -> None:
    plain, own = ([*base, *EVALUATES.split(), *more] for more in ([], words.split()))
    (before,), (after,) = parse_args(plain).eval_datasets, parse_args(own).eval_datasets
    assert vars(after) == vars(before) | EVALUATION[words]
    assert after != before


def test_sets_follow_the_rollout_where_no_flag_speaks(base: list[str]) -> None:
    words = (
        "--rollout-temperature 0.5 --rollout-top-p 0.9 --rollout-top-k 7 --rollout-max-response-len 33 --input-key i"
    )
    more = "--label-key l --tool-key t --eval-prompt-data held_out x.jsonl --rollout-max-context-len 99"
    (found,) = parse_args([*base, *words.split(), *more.split()]).eval_datasets
    assert (found.name, found.path, found.n_samples_per_eval_prompt) == ("held_out", "x.jsonl", 1)
    assert (found.temperature, found.top_p, found.top_k, found.max_response_len) == (0.5, 0.9, 7, 33)
    assert (found.input_key, found.label_key, found.tool_key, found.max_prompt_len) == ("i", "l", "t", 98)
