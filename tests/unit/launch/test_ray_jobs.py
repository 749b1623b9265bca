"""In the copy of the repository that `ray job submit --working-dir` makes, nothing that must stay is written or looked for."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from openclaw.launch import flags, resolve
from openclaw.launch.methods import REPOSITORY, home_of
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import GPU8
from openclaw.launch.resolve import make_plan
from slime.arguments import parse_args
from slime.arguments.checkpoint import in_rays_copy

COPY = "ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's copy of the repository; the environment is nobody's."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(metadata, "distribution", no_distribution)
    folder = tmp_path / COPY
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "my checkout"
    (folder / "openclaw" / "launch").mkdir(parents=True)
    return folder


def no_distribution(name: str) -> metadata.Distribution:
    raise metadata.PackageNotFoundError(name)


def test_a_copy_is_known_by_its_path(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_rays_copy(copy)
    assert in_rays_copy(copy / "checkpoints")
    assert not in_rays_copy(REPOSITORY)
    monkeypatch.chdir(copy)
    assert in_rays_copy(Path("checkpoints"))


def test_outside_a_job_the_repository_is_the_home(checkout: Path) -> None:
    assert home_of(checkout) == checkout


def test_in_a_job_it_is_the_repository_around_the_environment(
    copy: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home_of(copy) == copy, "nobody knows another"
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    assert home_of(copy) == checkout


@pytest.mark.parametrize(("name", "folder"), [("slime", "slime"), ("openclaw-rl", "")])
def test_in_a_job_it_is_the_repository_that_pip_installed(
    name: str, folder: str, copy: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "site" / f"{name.replace('-', '_')}-0.1.0.dist-info"
    made.mkdir(parents=True)
    url = (checkout / folder).as_uri()
    (made / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}, "url": url}))
    installed = {name: metadata.Distribution.at(made)}
    monkeypatch.setattr(metadata, "distribution", lambda asked: installed.get(asked) or no_distribution(asked))
    assert "%20" in url
    assert home_of(copy) == checkout


def test_models_and_runs_are_those_of_the_home(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (flags, resolve):
        monkeypatch.setattr(module, "HOME", checkout)
    args = make_plan(Recipe("rl", "qwen3-4B", GPU8), [], {}, "mine").args
    assert args.hf_checkpoint == str(checkout / "models" / "Qwen3-4B")
    assert args.run_dir == str(checkout / "runs" / "mine")
    assert args.save == str(checkout / "runs" / "mine" / "checkpoints")


def test_checkpoints_in_a_copy_are_refused(
    copy: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy)
    model = repository / "lab" / "tiny_models" / "shipped"
    words = f"--hf-checkpoint {model} --rollout-batch-size 4 --num-rollout 1 --device cpu --rollout-max-response-len 9"
    words = [*words.split(), "--actor-num-gpus-per-node", "1", "--disable-rollout-global-dataset"]
    parse_args(words)
    with pytest.raises(SystemExit) as stopped:
        parse_args([*words, "--save", "checkpoints/mine"])
    said = capsys.readouterr().err
    assert (stopped.value.code, said.count("\n")) == (2, 1)
    assert "Ray deletes this copy of the job's folder after the job; name one that stays, as an absolute path" in said
