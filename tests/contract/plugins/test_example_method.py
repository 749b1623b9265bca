"""The example method keeps its contract, and what its rollout function collects is dumped, loaded and made into shards."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slime.arguments.placement import Placement
from slime.contract import check
from slime.contract.surroundings import surroundings
from slime.ray import rollout
from slime.ray.rollout import BatchMaker
from slime.utils.misc import load_function

PLUGINS = {
    "rollout": "example_rollout.generate_rollout",
    "eval": "example_rollout.generate_rollout",
    "generate": "example_generate.generate",
    "reward": "example_reward.reward_func",
    "dynamic_filter": "example_filter.keep_group",
    "data_source": "example_data_source.SumsDataSource",
}
WORDS = [
    "--custom-generate-function-path",
    "example_generate.generate",
    "--custom-rm-path",
    "example_reward.reward_func",
    "--reward-key",
    "score",
    "--dynamic-sampling-filter-path",
    "example_filter.keep_group",
    "--data-source-path",
    "example_data_source.SumsDataSource",
    "--rollout-function-path",
    "example_rollout.generate_rollout",
    "--loss-type",
    "custom_loss",
]


@pytest.fixture
def words(repository: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The example's flags, with its folder on the path."""
    folder = repository / "extensions" / "example-method"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    files = [
        "--custom-loss-function-path",
        f"{folder}/example_loss.py",
        "--custom-arguments-path",
        f"{folder}/example_arguments.py",
    ]
    return [*WORDS, *files]


@pytest.mark.parametrize("kind", PLUGINS)
def test_each_plugin_keeps_its_contract(kind: str, words: list[str]) -> None:
    check(kind, PLUGINS[kind], words)


def test_its_files_do_too(repository: Path, words: list[str]) -> None:
    folder = repository / "extensions" / "example-method"
    check("loss", f"{folder}/example_loss.py", words)
    check("arguments", f"{folder}/example_arguments.py", words)


def test_its_data_source_goes_on_after_the_rollout_that_was_saved(words: list[str], tmp_path: Path) -> None:
    source_class = load_function(PLUGINS["data_source"])
    args = SimpleNamespace(rollout_seed=1, n_samples_per_prompt=2, save=str(tmp_path), load=str(tmp_path))
    source = source_class(args)
    _, second = source.get_samples(2)
    source.add_samples([second])
    source.mark(0)
    again, third = source.get_samples(2)  # the next rollout, before the step of the first is saved
    again[0].metadata["changed"] = True
    source.save(0)
    resumed = source_class(args)
    resumed.load(0)
    found = resumed.get_samples(2)
    assert [[sample.index for sample in group] for group in found] == [[2, 3], [4, 5]]
    assert [group[0].prompt for group in found] == [second[0].prompt, third[0].prompt]
    assert found[0][0].metadata == {}
    source.mark(3)
    assert list(source.marks) == [3]


def test_what_is_dumped_is_what_is_loaded(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout.ray, "put", lambda shard: shard)
    dump = f"{tmp_path}/dump/{{rollout_id}}.pt"
    with surroundings([*words, "--save-debug-rollout-data", dump]) as around:
        batches = BatchMaker(around.args, Placement((0,), (), ()))
        source = load_function(around.args.data_source_path)(around.args)
        given, get_samples = [], source.get_samples
        source.get_samples = lambda count: given.extend(get_samples(count)) or given[-count:]
        collected = batches.generate(0, source, source.mark)
        around.args.load_debug_rollout_data = dump
        loaded = batches.generate(0, None, lambda _: pytest.fail("nothing is taken"))
    [shard], [again] = collected["shards"], loaded["shards"]
    assert shard == again
    assert len(shard["tokens"]) == 4
    assert all(0 in mask and 1 in mask for mask in shard["loss_masks"])
    assert collected["metrics"]["rollout/example_dropped"] == len(given) - 2
