"""`python -m openclaw.server`: what its command line means, and what is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import judged_sample
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.conversations import CONVERSATIONS_NAME
from openclaw.ledger.store import Ledger
from openclaw.server import options
from openclaw.server.options import ServerOptions, build_parser, read_options
from openclaw.server.run import export


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    return folder


def read(*words: str, gpus: int = 0, **environment: str) -> ServerOptions:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "visible_gpus", lambda: gpus)
        return read_options(build_parser().parse_args(words), environment)


def runtime(found: ServerOptions, **environment: str) -> RuntimeConfig:
    return RuntimeConfig.from_env({**environment, **found.runtime})


def test_the_documented_command(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--port", "8000", "--backend", "sglang", "--enable-rl-intercept", "--rl-buffer-dir", "./rl_buffer"]
    found = read("--model-path", "model", *words)
    assert (found.model, found.device, found.folder) == (str(model), "cpu", tmp_path / "rl_buffer")
    config = runtime(found)
    assert (config.port, config.host, config.tokenizer) == (8000, "127.0.0.1", str(model))
    assert (config.context_length, config.serve_rollouts, config.method) == (2048, True, None)
    assert config.ledger == str(tmp_path / "rl_buffer" / "ledger.sqlite")


def test_variables_stand_in_for_options_and_options_win(model: Path) -> None:
    environment = {"BASE_MODEL_PATH": str(model), "OPENCLAW_PORT": "9000", "OPENCLAW_HOST": "::1"}
    config = runtime(read(**environment), **environment)
    assert (config.port, config.host) == (9000, "::1")
    config = runtime(read("--port", "9001", **environment), **environment)
    assert (config.port, config.host) == (9001, "::1")


def test_the_model_has_every_name_that_the_launcher_knows(model: Path) -> None:
    for name in ("BASE_MODEL_PATH", "HF_CKPT", "MODEL_PATH"):
        assert read(**{name: str(model)}).model == str(model)
    with pytest.raises(ConfigError, match="HF_CKPT and BASE_MODEL_PATH name the same thing and differ"):
        read(HF_CKPT="one", BASE_MODEL_PATH="other")


def test_without_the_intercept_nothing_is_kept(model: Path) -> None:
    found = read("--model-path", str(model))
    assert found.folder is None
    assert "OPENCLAW_LEDGER" not in found.runtime
    assert not runtime(found).serve_rollouts


def test_a_context_longer_than_the_models_is_refused(model: Path) -> None:
    words = ["--model-path", str(model)]
    assert runtime(read(*words, CONTEXT_LENGTH="2048"), CONTEXT_LENGTH="2048").context_length == 2048
    with pytest.raises(ConfigError) as refused:
        read(*words, CONTEXT_LENGTH="2049")
    assert str(refused.value) == (
        f"CONTEXT_LENGTH=2049 is more than the 2048 tokens that {model}/config.json allows; write CONTEXT_LENGTH=2048, "
        "or leave it out"
    )
    read(*words, CONTEXT_LENGTH="2049", SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1")
    read(*words, "--engine-url", "http://127.0.0.1:9", CONTEXT_LENGTH="2049")


def test_gpus_of_the_engine(model: Path) -> None:
    found = read("--model-path", str(model), "--gpu-ids", "1,3", gpus=4)
    assert (found.device, found.gpu_ids) == ("cuda", (1, 3))
    assert read("--model-path", str(model), "--gpu-ids", "2", gpus=4).gpu_ids == (2,)
    assert read("--model-path", str(model), gpus=4).gpu_ids == (0,)
    assert read("--model-path", str(model), "--device", "cpu", gpus=4).device == "cpu"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--model-path"),
        (["--model-path", "m", "--rl-buffer-dir", "d"], "--enable-rl-intercept"),
        (["--model-path", "m", "--gpu-ids", "5"], "the machine has 2 GPUs; use other ids"),
        (["--model-path", "m", "--gpu-ids", "a"], "neither a count nor a list"),
        (["--model-path", "m", "--device", "cpu", "--gpu-ids", "0"], "leave --gpu-ids out"),
        (["--model-path", "m", "--engine-url", "http://h:1", "--gpu-ids", "0"], "leave --gpu-ids"),
        (["--model-path", "m", "--export-seconds", "0"], "above 0"),
    ],
)
def test_what_cannot_be_started_is_refused(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read(*words, gpus=2)


def test_a_machine_without_gpus_gets_the_option_to_write() -> None:
    with pytest.raises(ConfigError, match="the machine has 0 GPUs; write --device cpu in its place"):
        read("--model-path", "m", "--gpu-ids", "0,1", gpus=0)


def test_the_export_replaces_the_old_one(tmp_path: Path) -> None:
    export(tmp_path)
    assert list(tmp_path.iterdir()) == []
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for count in (1, 2):
        judged_sample(ledger, f"turn-{count}", session_id=f"s{count}")
        export(tmp_path)
        lines = (tmp_path / CONVERSATIONS_NAME).read_text().splitlines()
        assert [json.loads(line)["session_id"] for line in lines] == ["s1", "s2"][:count]
    ledger.close()


def test_a_missing_model_is_one_line(repository: Path) -> None:
    command = [sys.executable, str(repository / "openclaw-combine" / "serve_model.py"), "--port", "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 2
    assert done.stderr.strip().endswith("write --model-path FOLDER or set BASE_MODEL_PATH")
    assert len(done.stderr.splitlines()) == 1


def test_the_engine_is_sglang_or_vllm(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.server.options.vllm_missing", lambda python: None)
    words = ["--model-path", str(model), "--backend", "vllm"]
    assert (read(*words).backend, read(*words[:2]).backend) == ("vllm", "sglang")
    with pytest.raises(ConfigError, match="leave --backend vllm out"):
        read(*words, "--engine-url", "http://127.0.0.1:9")
    monkeypatch.setattr("openclaw.server.options.vllm_missing", lambda python: "run scripts/setup_vllm.sh")
    with pytest.raises(ConfigError, match="setup_vllm"):
        read(*words)
    assert read(*words, "--dry-run").backend == "vllm"
