"""Plugins and prompts that are not there are named before anything starts; plugins that are there are not run for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments import parse_args
from slime.arguments.dry_run import missing_at_start
from slime.arguments.plugins import PLUGIN_OPTIONS, missing_plugins
from slime.contract import KINDS
from slime.ray.run import Run

SOURCE = """
raise SystemExit("this module was run")

from elsewhere import borrowed

def keep(args, group): ...

class Source: ...

if True:
    chosen = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a module and a package; both end the process that imports them."""
    (tmp_path / "audited.py").write_text(SOURCE)
    (tmp_path / "audited_package" / "inner").mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py", "inner/leaf.py"):
        (tmp_path / "audited_package" / file).write_text(SOURCE)
    (tmp_path / "audited_star.py").write_text("from os.path import *\n")
    (tmp_path / "audited_broken.py").write_text("def keep(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    assert not [name for name in sys.modules if name.startswith("audited")]


def missing(path: str) -> list[str]:
    return missing_plugins(Arguments(dynamic_sampling_filter_path=path))


@pytest.mark.parametrize(
    "path",
    [
        *("audited.keep", "audited.Source", "audited.borrowed", "audited.chosen", "audited_star.join"),
        *("audited_package.inner.leaf.keep", "audited_package.inner.keep", "math.sqrt"),
        "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
    ],
)
def test_what_is_there_is_found_without_running_it(folder: Path, path: str) -> None:
    assert missing(path) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("audited.kep", "has no 'kep'; did you mean 'keep'?"),
        ("audited.nothing_like_it", "has no 'nothing_like_it'"),
        ("audted.keep", "no module 'audted'; put its folder on PYTHONPATH"),
        ("audited_package.outer.leaf.keep", "no module 'audited_package.outer.leaf'"),
        ("audited.keep.more", "no module 'audited.keep'"),
        ("keep", "write MODULE.NAME or FILE.py:NAME"),
        ("audited_broken.keep", "audited_broken.py, line 1: "),
    ],
)
def test_what_is_not_there_is_named_with_its_flag(folder: Path, path: str, why: str) -> None:
    [line] = missing(path)
    assert line.startswith(f"--dynamic-sampling-filter-path {path}: ")
    assert why in line


def test_files_lists_and_evaluation_sets(folder: Path) -> None:
    file = folder / "audited.py"
    dataset = SimpleNamespace(name="facts", custom_rm_path="audited.other", custom_generate_function_path=None)
    args = Arguments(
        custom_rm_path=f"{file}:reward",
        rollout_sample_hook_path=["audited.keep", "audited.hook"],
        rollout_function_path="nowhere.rollout",
        eval_function_path="nowhere.rollout",
        eval_datasets=[dataset],
    )
    lines = missing_plugins(args)
    assert [line.split(": ")[0] for line in lines] == [
        "--rollout-function-path nowhere.rollout",
        f"--custom-rm-path {file}:reward",
        "--rollout-sample-hook-path audited.hook",
        "evaluation set facts",
    ]


def test_the_options_are_those_of_the_contract() -> None:
    assert {kind.option for kind in KINDS.values()} - set(PLUGIN_OPTIONS) == {"custom_arguments_path"}
    assert set(PLUGIN_OPTIONS) <= {kind.option for kind in KINDS.values()}


def test_prompts_are_there_before_a_run_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.touch()
    for given in (str(file), f"{file}@[0:3]"):
        assert missing_at_start(Arguments(prompt_data=given)) == []
    assert missing_at_start(Arguments(prompt_data="gone.jsonl@[:3]")) == ["--prompt-data gone.jsonl@[:3]: no such file"]
    for own in ({"rollout_global_dataset": False}, {"data_source_path": "slime.utils.types.Sample"}):
        assert missing_at_start(Arguments(**own)) == []
    with pytest.raises(ConfigError, match="no prompts: add --prompt-data FILE"):
        Run(Arguments())._start()
    words = "--num-rollout 1 --rollout-batch-size 1 --device cpu --actor-num-gpus-per-node 1 --dry-run"
    for prompts, code, says in (
        ([], 2, "no prompts: add"),
        (["--prompt-data", "gone.jsonl"], 0, "gone.jsonl: no such file"),
    ):
        with pytest.raises(SystemExit) as ended:
            parse_args([*words.split(), "--hf-checkpoint", str(tmp_path), "--rollout-max-response-len", "8", *prompts])
        assert ended.value.code == code
        printed = capsys.readouterr()
        assert says in (printed.err if code else printed.out)


def test_neither_a_run_nor_a_dry_run_starts_with_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"--custom-loss-function-path audited\.loss: .* has no 'loss'"):
        Run(Arguments(custom_loss_function_path="audited.loss", rollout_global_dataset=False))._start()
    words = "--num-rollout 1 --rollout-batch-size 1 --disable-rollout-global-dataset --device cpu --actor-num-gpus-per-node 1"
    with pytest.raises(SystemExit) as ended:
        parse_args([*words.split(), "--hf-checkpoint", str(tmp_path), "--custom-rm-path", "audited.rm", "--dry-run"])
    assert ended.value.code == 2
    assert "--custom-rm-path audited.rm: " in capsys.readouterr().err
