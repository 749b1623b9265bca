"""`python -m openclaw.models`: a whole checkpoint where the scripts look for it, or one line that says what to type."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.models import __main__ as command
from openclaw.models import places
from openclaw.models.__main__ import main
from openclaw.models.places import KNOWN, download_command, hub_name, missing_files, place_of
from tests.helpers.hub import StandInHub, stand_in_hub

WEIGHTS = bytes(range(256)) * 4000
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "LICENSE": b"free",
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}).encode(),
    FIRST: WEIGHTS,
    SECOND: WEIGHTS[:5000],
    "pytorch_model.bin": b"another format",
    "README.md": b"a page",
}
NEEDED = set(FILES) - {"pytorch_model.bin", "README.md"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    monkeypatch.setattr(places, "REPOSITORY", tmp_path)
    monkeypatch.setattr(places, "FOLDER", tmp_path / "models")
    monkeypatch.setattr(command, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with stand_in_hub("Qwen/Qwen3-4B", FILES) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_scripts_find_what_was_downloaded(
    hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["Qwen3-4B"]) == 0
    assert content(tmp_path / "models" / "Qwen3-4B") == {name: FILES[name] for name in NEEDED}
    said = capsys.readouterr().out
    assert "Qwen/Qwen3-4B: 1.0 MB, licence apache-2.0, to models/Qwen3-4B" in said
    assert said.endswith("models/Qwen3-4B is complete\n")
    assert main(["qwen3-4b"]) == 0
    assert "nothing to download" in capsys.readouterr().out


def test_the_tokenizer_alone_has_no_weights(
    hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["Qwen3-4B", "--tokenizer"]) == 0
    assert set(content(tmp_path / "models" / "tokenizers" / "Qwen3-4B")) == {"config.json", "tokenizer.json", "LICENSE"}
    assert "HF_CKPT" not in capsys.readouterr().out
    assert main(["Qwen3-4B", "--tokenizer"]) == 0
    assert "nothing to download" in capsys.readouterr().out


def test_the_same_command_continues_within_a_file(
    hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = FIRST
    hub.break_after[name] = 300_000
    assert main(["Qwen3-4B"]) == 2
    assert f"broke off at {name}" in capsys.readouterr().err
    assert not (tmp_path / "models" / "Qwen3-4B").exists()
    hub.break_after.clear()
    hub.ranges.clear()
    assert main(["Qwen3-4B"]) == 0
    assert hub.ranges == ["bytes=300000-"]
    assert "continuing: 0.7 MB of 1.0 MB are left" in capsys.readouterr().out
    assert missing_files(tmp_path / "models" / "Qwen3-4B") == []
    assert content(tmp_path / "models" / "Qwen3-4B")[name] == WEIGHTS


def test_ctrl_c_says_what_continues(
    hub: StandInHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_download", interrupted)
    assert main(["Qwen3-4B"]) == 130
    assert "continue: python -m openclaw.models Qwen3-4B" in capsys.readouterr().err


def test_a_damaged_file_is_removed(hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = FIRST
    hub.digests[name] = "0" * 64
    assert main(["Qwen3-4B"]) == 2
    assert f"{name} arrived damaged and was removed" in capsys.readouterr().err
    assert not (tmp_path / "models" / ".Qwen3-4B.partial" / name).exists()


def test_a_full_disk_is_said_before_the_first_byte(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert main(["Qwen3-4B"]) == 2
    assert "models has 0.0 MB free, and Qwen/Qwen3-4B needs 1.0 MB" in capsys.readouterr().err
    assert not list((tmp_path / "models" / ".Qwen3-4B.partial").iterdir())


def test_no_network_is_one_line(
    hub: StandInHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["Qwen3-4B"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "http://127.0.0.1:9 does not answer" in said
    assert "HTTPS_PROXY" in said
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["Qwen3-4B"]) == 2
    assert "unset HF_HUB_OFFLINE" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [("Qwen3-5B", "has no model Qwen/Qwen3-5B"), ("a/b/c", "write OWNER/NAME")])
def test_a_wrong_name_is_one_line(name: str, words: str, hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words in said


def test_a_folder_of_something_else_is_left_alone(
    hub: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert main(["Qwen3-4B", "--folder", str(tmp_path / "mine")]) == 2
    assert "mine exists but lacks model.safetensors" in capsys.readouterr().err


def test_without_a_name_the_models_of_the_scripts(hub: StandInHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(each.name in said and each.licence in said for each in KNOWN)


def test_every_script_has_a_known_model(repository: Path) -> None:
    shapes = {
        words[words.index("--model") + 1]
        for script in repository.glob("openclaw-*/run_qwen*.sh")
        if "--model" in (words := script.read_text().split())
    }
    assert {place_of(shape).name for shape in shapes} == {each.name for each in KNOWN}


def test_the_command_of_a_missing_folder() -> None:
    assert download_command(places.FOLDER / "Qwen3-4B") == "python -m openclaw.models Qwen3-4B"
    assert download_command(places.TINY / "0123456789abcdef") == "bash scripts/build_tiny_models.sh"
    assert download_command("models/nope") == "python -m openclaw.models Qwen3-4B --folder models/nope"
    assert download_command("/data/my tiny", "tiny") == "bash scripts/build_tiny_models.sh --output '/data/my tiny'"
    folder = places.tokenizer_of("Qwen/Qwen3-4B-Instruct-2507")
    assert download_command(folder) == "python -m openclaw.models Qwen3-4B-Instruct-2507 --tokenizer"
    other = download_command(places.tokenizer_of("meta-llama/Llama-3.1-8B"), "tiny")
    assert other == "python -m openclaw.models OWNER/Llama-3.1-8B --tokenizer"
    assert download_command("/data/Qwen3-8B") == "python -m openclaw.models Qwen3-8B --folder /data/Qwen3-8B"
    assert hub_name("qwen3-vl-8B") == hub_name("qwen3.5-vl") == "Qwen/Qwen3-VL-8B-Instruct"
    assert download_command("/m/qwen3-7b") == "python -m openclaw.models qwen3-8B --folder /m/qwen3-7b"
    assert download_command("/m/Qwen3-VL-8B") == "python -m openclaw.models Qwen3-VL-8B --folder /m/Qwen3-VL-8B"
    assert hub_name("qwen3-7b") == "Qwen/Qwen3-8B", "there is no Qwen3-7B"
    assert hub_name("mistralai/Mistral-7B-v0.3") == "mistralai/Mistral-7B-v0.3"
