"""Evaluation sets from YAML and from pairs: what a set says itself, what it inherits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from slime.args import Arguments
from slime.arguments import parse_args
from tests.helpers.checkpoints import config_only


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    model = config_only(tmp_path / "model")
    return f"--hf-checkpoint {model} --rollout-batch-size 4 --num-rollout 2 --rollout-max-response-len 64".split()


def parsed(base: list[str], tmp_path: Path, text: str, *words: str) -> Arguments:
    file = tmp_path / "eval.yaml"
    file.write_text(dedent(text))
    return parse_args([*base, "--eval-config", str(file), *words])


def test_a_set_goes_before_defaults_and_those_before_flags(base: list[str], tmp_path: Path) -> None:
    text = """
    eval:
      defaults:
        temperature: 0.2
        n_samples: 4
        rm_type: math
        label_key: gold
      datasets:
        - name: easy
          path: a.jsonl
        - name: hard
          path: b.jsonl@[0:10]
          temperature: 1
          n_samples_per_eval_prompt: 16
          max_response_len: 512
          min_new_tokens: 2
          top_k: 5
          input_key: question
          tool_key: functions
          custom_rm_path: my.reward
          custom_generate_function_path: my.generate
    """
    easy, hard = parsed(base, tmp_path, text, "--eval-top-p", "0.9", "--label-key", "answer").eval_datasets
    assert (easy.name, easy.temperature, easy.n_samples_per_eval_prompt, easy.rm_type) == ("easy", 0.2, 4, "math")
    assert (easy.label_key, easy.top_p, easy.top_k, easy.max_response_len) == ("gold", 0.9, -1, 64)
    assert (hard.temperature, hard.n_samples_per_eval_prompt, hard.max_response_len) == (1, 16, 512)
    assert (hard.input_key, hard.tool_key, hard.top_k, hard.min_new_tokens) == ("question", "functions", 5, 2)
    assert (hard.rm_type, hard.custom_rm_path) == (None, "my.reward")
    assert hard.custom_generate_function_path == "my.generate"


def test_pairs_take_the_flags(base: list[str]) -> None:
    words = [
        "--eval-prompt-data",
        "math",
        "m.jsonl",
        "aime",
        "a.jsonl",
        "--n-samples-per-eval-prompt",
        "2",
        "--eval-temperature",
        "0",
    ]
    found = parse_args([*base, *words]).eval_datasets
    assert [(one.name, one.path, one.n_samples_per_eval_prompt, one.temperature) for one in found] == [
        ("math", "m.jsonl", 2, 0.0),
        ("aime", "a.jsonl", 2, 0.0),
    ]
    assert [one.name for one in parse_args([*base, "--eval-prompt-data", "x.jsonl"]).eval_datasets] == ["eval"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets: []", "needs `eval:` with `datasets:`"),
        ("eval: {datasets: []}", "needs `eval:` with `datasets:`"),
        ("eval: [", "is not YAML"),
        ("eval: {datasets: [{name: a}]}", "dataset 0 needs name and path"),
        ("eval: {datasets: [a]}", "dataset 0 needs `key: value` lines"),
        ("eval: {datasets: [{name: a, path: b, temprature: 1}]}", "no key 'temprature'; did you mean temperature?"),
        ("eval: {datasets: [{name: a, path: b, n_samples: 1.5}]}", "n_samples must be a whole number, not 1.5"),
        ("eval: {datasets: [{name: a, path: b, top_p: high}]}", "top_p must be a number, not 'high'"),
        ("eval: {datasets: [{name: a, path: b, top_p: true}]}", "top_p must be a number, not True"),
        ("eval: {datasets: [{name: 3, path: b}]}", "name must be text, not 3"),
        ("eval: {datasets: [{name: a, path: b}], default: {}}", "eval has defaults and datasets, not default"),
        ("eval: {datasets: [{name: a, path: b}, {name: a, path: c}]}", "have the same name: a"),
        ("eval: {datasets: [{name: a, path: b, rm_type: maths}]}", "evaluation set a: rm_type: no grader 'maths'"),
        ("eval: {datasets: [{name: a, path: b, rm_type: dapo}]}", "choose one with --eval-reward-key score"),
        ("eval: {datasets: [{name: a, path: b, rm_type: remote_rm}]}", "rm_type remote_rm needs --rm-url"),
        (
            "eval: {datasets: [{name: a, path: b, rm_type: f1, custom_rm_path: x.y}]}",
            "has no effect with custom_rm_path",
        ),
        ("eval: {datasets: [{name: a, path: b, n_samples: 0}]}", "must be 1 or more"),
    ],
)
def test_what_a_file_gets_wrong_is_named(
    text: str, message: str, base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(base, tmp_path, text)
    assert message in capsys.readouterr().err
