"""`execute_train`: which command it starts, in which environment, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.process import ChildProcess
from slime.utils.external_utils.command_utils import ExecuteTrainConfig, execute_train

SHAPE = ["--num-layers", "36"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A train script that writes down how it was called, and exits with what STATUS says."""
    file = tmp_path / "my_train.py"
    file.write_text(
        "import json, os, pathlib, sys\n"
        "pathlib.Path(__file__).with_suffix('.json').write_text(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
        "sys.exit(int(os.environ.get('STATUS', '0')))\n"
    )
    return file


def called(script: Path) -> tuple[list[str], dict[str, str]]:
    words, environment = json.loads(script.with_suffix(".json").read_text())
    return words, environment


def test_flags_come_after_what_the_arguments_stand_for(script: Path) -> None:
    text = "--hf-checkpoint 'a folder' \n --num-layers 5  --lr 1e-6 "
    execute_train(text, 4, None, train_script=str(script))
    expected = ["--hf-checkpoint", "a folder", "--num-layers", "5", "--lr", "1e-6"]
    assert called(script)[0] == ["--num-gpus-per-node", "4", *expected]


def test_the_shape_of_a_model(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"MODEL_ARGS_ROTARY_BASE": 5000000}
    execute_train("--num-rollout 1", 8, "qwen3-4B", str(script), extra_env_vars=variables)
    words = called(script)[0]
    assert words[words.index(SHAPE[0]) : words.index(SHAPE[0]) + 2] == SHAPE
    assert words[words.index("--rotary-base") + 1] == "5000000"
    assert words[-4:] == ["--num-gpus-per-node", "8", "--num-rollout", "1"]
    with pytest.raises(ConfigError, match=r"no model shape 'qwen9-4B'.*here are: .*qwen3-4B"):
        execute_train("", 8, "qwen9-4B", str(script))


@pytest.mark.parametrize("given", [{"A": 1, "B": "two words"}, "A=1 B='two words'"])
def test_variables_of_the_run(script: Path, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B", "of the caller")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    execute_train("", 1, None, str(script), extra_env_vars={"C": 3}, config=ExecuteTrainConfig(extra_env_vars=given))
    environment = called(script)[1]
    assert [environment[name] for name in "ABC"] == ["1", "two words", "3"]
    assert environment["PYTHONPATH"].split(os.pathsep)[-1] == "/somewhere"
    execute_train("", 1, None, str(script), extra_env_vars={"A": 2}, config=ExecuteTrainConfig(extra_env_vars=given))
    assert called(script)[1]["A"] == "2"
    assert os.environ["B"] == "of the caller"


def test_several_machines(script: Path) -> None:
    execute_train("", 8, None, str(script), config=ExecuteTrainConfig(num_nodes=2))
    assert called(script)[0] == ["--num-gpus-per-node", "8", "--num-nodes", "2"]


def test_the_hook_comes_after_the_checks_and_before_the_run(script: Path) -> None:
    seen: list[bool] = []

    def hook() -> None:
        seen.append(script.with_suffix(".json").exists())

    with pytest.raises(ConfigError, match=r"no train script .*missing\.py; use train.py"):
        execute_train("", 1, None, "missing.py", before_ray_job_submit=hook)
    with pytest.raises(ConfigError, match="extra_env_vars: 'A' is not an assignment; write NAME=VALUE"):
        execute_train("", 1, None, str(script), hook, config=ExecuteTrainConfig(extra_env_vars="A"))
    assert seen == []
    execute_train("", 1, None, str(script), before_ray_job_submit=hook)
    assert seen == [False]


def test_a_run_that_fails_is_an_error(script: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        execute_train("", 1, None, str(script), extra_env_vars={"STATUS": 3})
    assert caught.value.returncode == 3


def test_an_interrupt_asks_the_run_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import pathlib, signal\n"
        "folder = pathlib.Path(__file__).parent\n"
        "def stop(*rest):\n"
        "    (folder / 'stopped').touch()\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "(folder / 'started').touch()\n"
        "signal.pause()\n"
    )
    wait, runs = ChildProcess.wait, []

    def interrupted(self: ChildProcess, timeout: float | None = None) -> int:
        while not (tmp_path / "started").exists():
            with pytest.raises(subprocess.TimeoutExpired):
                wait(self, 0.01)
        runs.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChildProcess, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute_train("", 1, None, str(script))
    assert (tmp_path / "stopped").exists()
    assert not runs[0].alive()


def test_the_train_script_of_the_core(capfd: pytest.CaptureFixture[str]) -> None:
    execute_train("--help", 1, None)
    assert "--rollout-batch-size" in capfd.readouterr().out
