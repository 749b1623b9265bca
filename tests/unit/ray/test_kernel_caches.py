"""Compiled kernels of engines and ranks are kept in one folder of the user and machine."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine_process import process_environment
from slime.ray.trainer import RemotePolicy, rank_class
from slime.utils import kernel_caches
from slime.utils.forwarded_environment import of_node, travels
from slime.utils.kernel_caches import FOLDERS, VARIABLE, keep_kernels, kernel_cache

SPEC = EngineSpec("policy", 0, 1, (0,))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (VARIABLE, "XDG_CACHE_HOME", *FOLDERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def no_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def missing(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", missing)


def in_a_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(folder / "file" / "kernels"))


def read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write to any folder


@pytest.mark.parametrize("fault", [no_home, in_a_file, read_only])
def test_a_folder_that_cannot_be_used_changes_nothing_and_is_told_once(
    fault: Callable[[pytest.MonkeyPatch, Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel_caches._tell.cache_clear()
    fault(monkeypatch, tmp_path)
    environment: dict[str, str] = {}
    for _ in range(2):
        keep_kernels(environment)
    assert environment == {}
    assert caplog.text.count(f"name a folder with {VARIABLE}") == 1


def test_the_folder_is_the_users_and_can_be_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    assert kernel_cache() == home / ".cache/openclaw-rl/kernels/node7", "machines may share a home"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert kernel_cache() == Path("/cache/openclaw-rl/kernels/node7")
    monkeypatch.setenv(VARIABLE, "~/kernels")
    assert kernel_cache() == home / "kernels"


def test_what_the_user_sets_for_one_compiler_stays(home: Path) -> None:
    environment = {"TRITON_CACHE_DIR": "/mine"}
    keep_kernels(environment)
    assert environment.pop("TRITON_CACHE_DIR") == "/mine"
    assert environment.keys() == FOLDERS.keys() - {"TRITON_CACHE_DIR"}
    assert {Path(value).is_relative_to(home / ".cache/openclaw-rl/kernels") for value in environment.values()} == {True}


def test_engines_on_a_gpu_and_ranks_keep_their_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    engine = process_environment(Arguments(device="cuda", run_dir="nowhere"), SPEC, {})
    assert {name: engine[name] for name in FOLDERS} == {name: str(tmp_path / part) for name, part in FOLDERS.items()}
    assert not process_environment(Arguments(device="cpu", run_dir="nowhere"), SPEC, {}).keys() & FOLDERS.keys()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert rank_class(f"{__name__}.seen", RemotePolicy, "cpu")().rank is None
    rank = rank_class(f"{__name__}.seen", RemotePolicy, "cuda")()
    assert rank.rank == str(tmp_path / "triton"), "set before the rank's own module is imported"


def seen() -> str | None:
    """Stand in for the class of a rank."""
    return os.environ.get("TRITON_CACHE_DIR")


def test_the_folder_is_the_machines_own() -> None:
    names = {VARIABLE, *FOLDERS}
    assert not any(map(travels, names))
    assert of_node(dict.fromkeys(names, "here")).keys() == names


def test_the_names_are_those_that_the_installed_libraries_read() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    text = (Path(spec.submodule_search_locations[0]) / "srt/environ.py").read_text()
    of_others = {"TVM_FFI_CACHE_DIR", "CUTE_DSL_CACHE_DIR"}
    assert [name for name in FOLDERS.keys() - of_others if name not in text] == []


def test_the_page_names_the_variable(repository: Path) -> None:
    page = (repository / "instructions/starting.md").read_text()
    assert kernel_caches.VARIABLE in page
