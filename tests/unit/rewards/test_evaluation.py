"""Evaluation over a stand-in engine: several sets, their own sampling and graders, lists, aborts, progress, numbers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.images import at_model_size, open_image
from lab.testkit.rollout_engine import RolloutEngine, rollout_args, rollout_engine
from slime.args import Arguments
from slime.arguments.evaluation import EvalDataset
from slime.exceptions import SampleError
from slime.rollout import evaluation, sglang_rollout, stored_pictures
from slime.rollout.metrics import eval_metrics, pass_at_k, scores
from slime.utils.types import Sample
from tests.helpers.pictures import picture, png

LABELS = ["xxx", "y", "xxx y"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutEngine]:
    with rollout_engine(monkeypatch) as made:
        yield made


@pytest.fixture
def args(tiny_random_model: Path) -> Arguments:
    made = vars(rollout_args(tiny_random_model, custom_rm_path=None))
    return Arguments(**made)


def dataset(folder: Path, name: str, rows: list[dict[str, Any]] | None = None, **changes: Any) -> EvalDataset:
    file = folder / f"{name}.jsonl"
    rows = [{"q": f"f{n}", "a": label} for n, label in enumerate(LABELS)] if rows is None else rows
    file.write_text("\n".join(map(json.dumps, rows)))
    values: dict[str, Any] = {
        "input_key": "q",
        "label_key": "a",
        "tool_key": "tools",
        "n_samples_per_eval_prompt": 1,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_response_len": 8,
        "rm_type": "f1",
    }
    return EvalDataset(name=name, path=str(file), **(values | changes))


async def two_steps(args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> list[Sample]:
    assert evaluation is True
    step = {"index": sample.index, "tokens": [1, 2], "response_length": 1, "label": sample.label}
    first = Sample(**step, reward=float(sample.index == 0), status=Sample.Status.COMPLETED)
    return [first, Sample(**step, reward=9.0, status=Sample.Status.TRUNCATED)]


async def nothing(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    return []


async def group_reward(args: Arguments, samples: Any, **kwargs: Any) -> Any:
    return [len(samples) / 10 for _ in samples]


async def evaluated(args: Arguments, *datasets: EvalDataset) -> dict[str, dict[str, Any]]:
    args.eval_datasets = list(datasets)
    output, left = await sglang_rollout.eval_rollout(args, 0)
    assert left == []
    return output.data


async def test_every_set_has_its_own_sampling_and_grader(
    engine: RolloutEngine, args: Arguments, tmp_path: Path
) -> None:
    short = dataset(tmp_path, "short", max_response_len=2, temperature=0.3, top_k=7, min_new_tokens=1)
    twice = dataset(tmp_path, "twice", n_samples_per_eval_prompt=2, custom_rm_path=f"{__name__}.tenth", rm_type=None)
    data = await evaluated(args, short, twice)
    assert list(data) == ["short", "twice"]
    assert data["short"]["rewards"] == [0.0, 0.0, 0.0]  # "xx" is none of the labels
    assert data["short"]["truncated"] == [True] * 3
    assert data["twice"]["rewards"] == [0.1] * 6
    assert data["twice"]["groups"] == [0, 0, 1, 1, 2, 2]
    assert [sample.index for sample in data["twice"]["samples"]] == list(range(6))
    asked = {request["sampling_params"]["max_new_tokens"]: request["sampling_params"] for request in engine.requests}
    assert (asked[2]["temperature"], asked[2]["top_k"], asked[2]["min_new_tokens"]) == (0.3, 7, 1)
    assert (asked[8]["temperature"], "min_new_tokens" in asked[8]) == (0.0, False)
    assert (evaluation.PROGRESS.done, evaluation.PROGRESS.total) == (9, 9)


async def tenth(args: Arguments, sample: Any, **kwargs: Any) -> Any:
    return [0.1 for _ in sample] if isinstance(sample, list) else 0.1


async def test_a_sets_grader_goes_before_the_runs_reward_function(
    engine: RolloutEngine, args: Arguments, tmp_path: Path
) -> None:
    args.custom_rm_path = f"{__name__}.tenth"
    data = await evaluated(args, dataset(tmp_path, "graded"), dataset(tmp_path, "plain", rm_type=None))
    assert data["graded"]["rewards"] == pytest.approx([1.0, 0.0, 2 / 3])
    assert data["plain"]["rewards"] == [0.1] * 3


async def test_pictures_are_decoded_once_as_many_prompts_as_requests_and_put_away(
    engine: RolloutEngine, vision_processor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vars(rollout_args(vision_processor, custom_rm_path=None, sglang_server_concurrency=1))
    args = Arguments(**made)
    args.multimodal_keys, args.apply_chat_template = {"image": "pictures"}, True
    stored = ["data:image/png;base64," + base64.b64encode(png(picture(16, height))).decode() for height in (8, 16, 24)]
    rows = [{"q": "<image>", "a": "x", "pictures": [url]} for url in stored]
    answered_before: list[int] = []

    def decoded(image: Any, processor: Any) -> Any:
        answered_before.append(len(engine.requests))
        return at_model_size(image, processor)

    monkeypatch.setattr(stored_pictures, "at_model_size", decoded)
    data = await evaluated(args, dataset(tmp_path, "seen", rows))
    assert answered_before == [0, 1, 2]
    sent = [open_image(url).size for request in engine.requests for url in request["image_data"]]
    assert sent == [(16, 8), (16, 16), (16, 24)]
    samples = data["seen"]["samples"]
    assert [sample.multimodal_inputs["images"] for sample in samples] == [[url] for url in stored]
    assert all(sample.multimodal_train_inputs is None for sample in samples)


async def test_an_answer_in_several_pieces_counts_once(engine: RolloutEngine, args: Arguments, tmp_path: Path) -> None:
    data = await evaluated(args, dataset(tmp_path, "lists", custom_generate_function_path=f"{__name__}.two_steps"))
    assert data["lists"]["rewards"] == [1.0, 0.0, 0.0]
    assert data["lists"]["truncated"] == [True] * 3
    assert len(data["lists"]["samples"]) == 6


async def test_an_answer_of_no_piece_is_aborted(engine: RolloutEngine, args: Arguments, tmp_path: Path) -> None:
    data = await evaluated(args, dataset(tmp_path, "none", custom_generate_function_path=f"{__name__}.nothing"))
    assert (data["none"]["rewards"], data["none"]["aborted"]) == ([0.0] * 3, [True] * 3)


async def test_group_rewards_see_the_answers_to_a_prompt(
    engine: RolloutEngine, args: Arguments, tmp_path: Path
) -> None:
    args.group_rm = True
    own = {"custom_rm_path": f"{__name__}.group_reward", "rm_type": None, "n_samples_per_eval_prompt": 3}
    data = await evaluated(args, dataset(tmp_path, "grouped", **own))
    assert data["grouped"]["rewards"] == [0.3] * 9


async def test_a_file_is_checked_before_the_first_answer(
    engine: RolloutEngine, args: Arguments, tmp_path: Path
) -> None:
    bad = dataset(tmp_path, "bad", [{"q": "x", "a": "1"}, {"q": "y", "a": None}])
    with pytest.raises(SampleError, match=r"row 1: .* no label"):
        await evaluated(args, dataset(tmp_path, "fine"), bad)
    with pytest.raises(ConfigError, match=r"set empty: .* no prompt"):
        await evaluated(args, dataset(tmp_path, "empty", []))
    assert engine.requests == []


async def test_a_dict_reward_without_the_key_names_the_flag(
    engine: RolloutEngine, args: Arguments, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="score, acc, pred; choose one with --eval-reward-key"):
        await evaluated(args, dataset(tmp_path, "dict", rm_type="dapo"))
    args.eval_reward_key = "acc"
    data = await evaluated(args, dataset(tmp_path, "dict", rm_type="dapo"))
    assert data["dict"]["rewards"] == [0.0] * 3


async def test_without_sets_there_is_nothing(args: Arguments) -> None:
    assert await evaluated(args) == {}


async def test_the_end_of_a_rollout_waits_for_an_evaluation(
    engine: RolloutEngine, args: Arguments, tmp_path: Path
) -> None:
    state = sglang_rollout.GenerateState(args)
    state.submit_generate_tasks([])
    async with state.engines_lock:
        aborting = asyncio.create_task(sglang_rollout.abort(args, 0))
        data = await evaluation.eval_rollout_single_dataset(args, 0, dataset(tmp_path, "meanwhile"))
        assert engine.aborts == 0
        assert not any(data["meanwhile"]["aborted"])
    await aborting
    assert engine.aborts > 0


@pytest.mark.parametrize(
    ("passed", "rates"),
    [
        ([[1, 0]], {1: 0.5, 2: 1.0}),
        ([[1, 1], [0, 0]], {1: 0.5, 2: 0.5}),
        ([[1, 0, 0, 0]], {1: 0.25, 2: 0.5, 4: 1.0}),
        ([[1, 0, 0], [1]], {1: 2 / 3, 2: 2 / 3}),
        ([[0.99, 0.5]], {1: 0.0, 2: 0.0}),
        ([[1], [0]], {1: 0.5}),
        ([], {}),
    ],
)
def test_pass_at_k(passed: list[list[float]], rates: dict[int, float]) -> None:
    groups = [number for number, group in enumerate(passed) for _ in group]
    assert pass_at_k(groups, [reward for group in passed for reward in group]) == pytest.approx(rates)


def test_metrics_of_a_set_have_the_names_of_dashboards() -> None:
    samples = [Sample(tokens=[1] * 9, response_length=length) for length in (2, 4, 6, 8)]
    samples[3].metadata["grader_problem"] = "no_answer"
    result = {
        "rewards": [1, 0, True, 0.5],
        "truncated": [True, False, False, False],
        "aborted": [False] * 4,
        "groups": [0, 0, 1, 1],
        "samples": samples,
    }
    assert eval_metrics("aime", result) == {
        "eval/aime": 0.625,
        "eval/aime/answers": 4,
        "eval/aime-truncated_ratio": 0.25,
        "eval/aime-aborted_ratio": 0.0,
        "eval/aime-pass@1": 0.5,
        "eval/aime-pass@2": 1.0,
        "eval/aime/response_len/mean": 5.0,
        "eval/aime/response_len/median": 5.0,
        "eval/aime/response_len/max": 8,
        "eval/aime/response_len/min": 2,
        "eval/aime/grader_no_answer": 1,
    }


def test_one_answer_per_prompt_has_no_pass_rates() -> None:
    assert set(eval_metrics("one", {"rewards": [1, 0], "groups": [0, 1]})) == {"eval/one", "eval/one/answers"}


def test_a_custom_evaluation_may_give_rewards_only() -> None:
    metrics = eval_metrics("mine", {"rewards": [1.0, 0.0]}) | {"eval/step": 3, "eval/other": 1.0}
    assert metrics["eval/mine"] == 0.5
    assert scores(metrics) == {"mine": 0.5}
    assert eval_metrics("none", {"rewards": []}) == {}


async def test_an_evaluation_without_a_set_says_so(args: Arguments, caplog: pytest.LogCaptureFixture) -> None:
    assert await evaluated(args) == {}
    assert "nothing to evaluate: no set is given" in caplog.text
