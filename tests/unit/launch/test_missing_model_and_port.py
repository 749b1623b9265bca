"""A missing model and a port in use are one line before anything starts; it names what was given and what to type."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.launch.__main__ import main as launch
from openclaw.models import places
from openclaw.models.places import missing_model
from openclaw.server import run
from openclaw.server.__main__ import main as server
from tests.helpers.checkpoints import config_only

CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
TINY = ["--method", "rl", "--profile", "tiny_cpu"]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = config_only(tmp_path / "model")
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"")
    return folder


def said_by_launcher(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **environment: str
) -> str:
    monkeypatch.setattr(os, "environ", CLEAN | environment)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(SystemExit) as ended:
        launch([*TINY, *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_launcher_names_a_missing_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nope"
    said = said_by_launcher([], monkeypatch, capsys, HF_CKPT=str(nowhere))
    assert said.splitlines() == [
        f"launch: --hf-checkpoint {nowhere}: no such folder; get it with: bash scripts/build_tiny_models.sh "
        f"--output {nowhere} (variables: HF_CKPT)"
    ]


def test_the_launcher_names_each_missing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = tmp_path / "Qwen3-8B"
    said = said_by_launcher([], monkeypatch, capsys, HF_CKPT=str(tmp_path / "nope"), PRM_MODEL_PATH=str(judge))
    assert len(said.splitlines()) == 3
    assert f"python -m openclaw.models Qwen3-8B --folder {judge} (variables: PRM_MODEL_PATH)" in said


def test_the_server_names_a_missing_model_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(CLEAN))
    monkeypatch.setattr(run, "running_engine", lambda *_: pytest.fail("an engine was started"))
    assert server(["--model-path", "models/nope", "--device", "cpu"]) == 2
    expected = "--model-path models/nope: no such folder; get a model with: python -m openclaw.models Qwen3-4B --folder models/nope"
    assert capsys.readouterr().err == f"openclaw.server: {expected}\n"
    assert server(["--model-path", "models/nope", "--device", "cpu", "--dry-run"]) == 0
    assert f"warning: not found on this machine: {expected}\n" in capsys.readouterr().out


def test_what_can_be_served(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert missing_model(str(model)) is None
    (model / "model.safetensors").unlink()
    assert "lacks model.safetensors" in str(missing_model(str(model)))
    assert missing_model(str(model), weights=False) is None
    assert missing_model("Qwen/Qwen3-4B") == (
        "Qwen/Qwen3-4B is not on this machine; download it with: python -m openclaw.models Qwen/Qwen3-4B"
    )
    monkeypatch.setattr(places, "_in_cache", lambda name: True)
    assert missing_model("Qwen/Qwen3-4B") is None
    assert "no such folder" in str(missing_model("model/gone"))  # model/ is a folder here


@pytest.mark.parametrize(
    ("words", "name", "setting"),
    [(["--port", "{}"], "", "--port"), ([], "PORT", "PORT"), ([], "OPENCLAW_PORT", "OPENCLAW_PORT")],
)
def test_the_server_names_what_set_the_port(
    words: list[str],
    name: str,
    setting: str,
    taken: int,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "environ", CLEAN | ({name: str(taken)} if name else {}))
    monkeypatch.setattr(run, "running_engine", lambda *_: pytest.fail("an engine was started"))
    given = [word.format(taken) for word in words]
    assert server(["--model-path", str(model), "--device", "cpu", *given]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"openclaw.server: the gateway cannot listen on 127.0.0.1:{taken} (Address already in use); "
        f"set {setting} to a free port\n"
    )


@pytest.mark.parametrize("name", ["PORT", "OPENCLAW_PORT"])
def test_the_launcher_names_what_set_the_port(
    name: str,
    taken: int,
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {"HF_CKPT": str(model), "RUN_DIR": str(tmp_path / "run"), name: str(taken)}
    said = said_by_launcher([], monkeypatch, capsys, **environment)
    assert said == (
        f"launch: the gateway cannot listen on 127.0.0.1:{taken} (Address already in use); set {name} to a free port\n"
    )
