"""`--device`: what the demo runs on, what it says about it, and what it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import demo
from lab.tiny_demo import options as tiny_options
from lab.tiny_demo.planned import refuse_bad_plan
from openclaw.launch.methods import methods_of
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import PROFILES, TINY_CPU, TINY_GPU
from openclaw.launch.resolve import make_plan
from tests.unit.tiny.test_demo_resume import stopped_run

METHODS = sorted(method.config.name for method in methods_of() if not method.variant)


@pytest.mark.parametrize(
    ("built_for", "devices", "device"), [(None, 1, "cpu"), ("13.0", 0, "cpu"), ("13.0", 1, "cuda")]
)
def test_the_default_is_the_gpu_where_environment_and_machine_have_it(
    built_for: str | None, devices: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_options, "torch_build", lambda: ("2.14.1", built_for))
    monkeypatch.setattr(tiny_options, "cuda_facts", lambda: SimpleNamespace(devices=devices))
    assert demo.parse([]).device == device


def test_the_run_gets_the_profile_of_its_device_and_a_folder_that_says_so(tmp_path: Path) -> None:
    for device, profile, folder in (("cpu", "tiny_cpu", "tiny-cpu-rl-"), ("cuda", "tiny_gpu", "tiny-gpu-rl-")):
        options = demo.parse(["--device", device, "--method", "rl"])
        assert demo.settings_of(options).launcher_words == ["--profile", profile, "--method", "rl"]
        assert options.run_dir.name.startswith(folder)
    run_dir = stopped_run(tmp_path / "run", "--device", "cuda")
    assert demo.parse(["--run-dir", str(run_dir), "--resume"]).device == "cuda", "a resumed demo stays where it was"


def test_a_machine_without_a_gpu_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["demo.py", "--device", "cuda", "--run-dir", str(run_dir)])
    monkeypatch.setattr(demo, "ensure_built", lambda console: pytest.fail("it must not get that far"))
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("run_tiny_cpu.sh: --device cuda: ")
    assert "--device cpu" in said.err
    assert not run_dir.exists()


@pytest.mark.parametrize(("device", "names"), [("cpu", "CPU"), ("cuda", "GPU")])
def test_the_console_names_the_device(
    device: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lab.tiny_demo.planned.missing_devices", lambda *_: [])
    monkeypatch.setattr(demo.LaunchedRun, "check_port", lambda run: None)
    monkeypatch.setattr(demo, "ensure_built", lambda console: tmp_path)
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    options = demo.parse(["--device", device, "--run-dir", str(tmp_path / "run")])
    assert demo.prepare(options) == tmp_path
    assert f"on this machine's {names}" in " ".join(capsys.readouterr().out.split())


def test_the_demo_takes_the_other_engine(tmp_path: Path) -> None:
    engine = ["--backend", "vllm", "--vllm-python", sys.executable]
    settings = demo.settings_of(demo.parse(["--device", "cpu", "--run-dir", str(tmp_path / "run"), *engine]))
    refuse_bad_plan(settings, [])
    assert settings.launcher_words[-4:] == engine


@pytest.mark.parametrize("method", METHODS)
def test_the_profile_of_a_gpu_is_tuned_like_that_of_a_cpu(method: str) -> None:
    environment = {"HF_CKPT": str(Path(demo.model_path())), "GPU_MEMORY_GB": "16"}
    cpu, gpu = (
        make_plan(Recipe(method, None, PROFILES[name]), [], environment) for name in (TINY_CPU.name, TINY_GPU.name)
    )
    assert gpu.problems == ()
    differs = {name for name in cpu.variables if cpu.variables[name].value != gpu.variables[name].value}
    assert differs == {"num_gpus", "mem_fraction_static"}
    assert (gpu.args.device, gpu.args.share_gpu, gpu.args.lr) == ("cuda", True, cpu.args.lr)
