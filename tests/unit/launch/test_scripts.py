"""Every launch script: thin, the same from every folder, and a plan that works."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from openclaw.launch.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(
    str(path.relative_to(ROOT)) for path in ROOT.glob("openclaw-*/run_*.sh") if path.parent.name != "openclaw-test"
)
GPU_SCRIPTS = [script for script in SCRIPTS if not script.endswith("run_tiny_cpu.sh")]
MODELS = {"qwen3_4b": "qwen3-4B", "qwen3_8b": "qwen3-8B", "qwen35_4b": "qwen3.5-4B"}
SMALL = {"qwen3_1_7b": "qwen3-1.7B"}
VARIANTS = {"rl": ("", "_lora"), "opd": ("", "_lora", "_topk", "_topk_lora"), "combine": ("", "_lora")}
WRAPPERS = (
    "openclaw-rl/run_binary_rl.sh",
    "openclaw-opd/run_opd_training.sh",
    "openclaw-combine/run_combine_training.sh",
)
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
SOURCE_LINE = 'source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"'
# What a script would become, for each script from each folder: fields end in NUL, scripts in an empty field.
SHELL_PART = r"""
exec() { printf '%s\0' "$PYTHONPATH" "$@"; }
export -f exec
root="$1"; shift
for script in "$@"; do
    (cd "$root" && bash "$script" --dry-run); printf '\0'
    (cd "$root/slime" && bash "../$script" --dry-run); printf '\0'
    (cd "$root/${script%/*}" && bash "${script##*/}" --dry-run); printf '\0'
done
"""


@cache
def shell_parts() -> dict[str, list[list[str]]]:
    """Per script the command it becomes from the root, from ``slime/`` and from its own folder."""
    command = ["bash", "-euc", SHELL_PART, "bash", str(ROOT), *GPU_SCRIPTS]
    output = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=True).stdout
    commands = [part.split("\0") for part in output.removesuffix("\0\0").split("\0\0")]
    assert len(commands) == 3 * len(GPU_SCRIPTS)
    return {script: commands[3 * index : 3 * index + 3] for index, script in enumerate(GPU_SCRIPTS)}


def plan_words(script: str) -> list[str]:
    """Arguments of ``python -m openclaw.launch``."""
    command = shell_parts()[script][0]
    return command[command.index("openclaw.launch") + 1 :]


def test_every_script_that_guides_name_is_there() -> None:
    for method, endings in VARIANTS.items():
        for model in MODELS:
            for ending in endings:
                assert f"openclaw-{method}/run_{model}_openclaw_{method}{ending}.sh" in GPU_SCRIPTS
        assert f"openclaw-{method}/run_qwen3_1_7b_openclaw_{method}_24gb.sh" in GPU_SCRIPTS
    assert set(WRAPPERS) <= set(GPU_SCRIPTS)


@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_a_script_plans_the_same_run_from_every_folder(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = shell_parts()[script]
    assert others == [first, first]
    python_path, python, *_ = first
    assert python_path == f"{ROOT}:{ROOT / 'slime'}"
    assert python == str(ROOT / ".venv" / "bin" / "python")
    monkeypatch.setattr(os, "environ", CLEAN)
    main(plan_words(script))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "dry run: the plan is valid, nothing was started"
    words = " ".join(lines)
    assert ("--use-lora" in words) == ("_lora" in script or "24gb" in script)
    for file_name, shape in (MODELS | SMALL).items():
        if f"/run_{file_name}_" in script:
            assert f"/models/{shape.replace('qwen', 'Qwen')} " in words


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_nothing_but_its_model_and_method_lines(script: str) -> None:
    shebang, comment, source, call = (ROOT / script).read_text().splitlines()
    assert shebang == "#!/usr/bin/env bash"
    assert comment.startswith("# ")
    assert source == SOURCE_LINE
    assert re.fullmatch(r'(launch|demo) --method \S+( --model \S+)?( --\S+( [\w.]+)?)* "\$@"', call)
    assert os.access(ROOT / script, os.X_OK)


def test_no_two_scripts_do_the_same() -> None:
    calls = [(ROOT / script).read_text().splitlines()[-1] for script in GPU_SCRIPTS if script not in WRAPPERS]
    assert len(set(calls)) == len(calls)


def test_arrays_of_a_copied_script_reach_the_trainer(tmp_path: Path) -> None:
    script = tmp_path / "run_mine.sh"
    script.write_text(
        f'source "{ROOT}/scripts/launch.sh"\nOPTIMIZER_ARGS=(--lr 3e-6)\nPRM_ARGS=()\n'
        'SGLANG_ARGS=(--sglang-log-level "very quiet")\nlaunch --method rl --model qwen3-4B "$@"\n'
    )
    prefix = "exec() { printf '%s\\n' \"$@\"; }; export -f exec; "
    command = ["bash", "-euc", prefix + f'bash "{script}" --lr 1e-6']
    environment = CLEAN | {"LORA_ARGS": "--use-lora --lora-rank 64"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    added = [
        "--name",
        "run_mine",
        "--use-lora",
        "--lora-rank",
        "64",
        "--lr",
        "3e-6",
        "--sglang-log-level",
        "very quiet",
    ]
    assert output[3:] == [*added, "--method", "rl", "--model", "qwen3-4B", "--lr", "1e-6"]


def test_lora_is_an_option_of_every_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    main([*plan_words("openclaw-combine/run_combine_training.sh"), "--lora"])
    output = capsys.readouterr().out
    assert "method combine, profile gpu4_lora" in output
    assert "--use-lora" in output


def test_one_gpu_holds_all_roles(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    main(plan_words("openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh"))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  GPU ")] == [
        "  GPU 0  actor    rank 0",
        "  GPU 0  rollout  engine 0",
        "  GPU 0  judge    engine 0",
    ]


def test_help_names_the_options_and_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*plan_words(WRAPPERS[0]), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for word in ("--dry-run", "--lora", "--profile", "instructions/configuration.md"):
        assert word in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--sglang-quantization", "fp8"), "use --sglang-kv-cache-dtype fp8_e4m3"),
        (("--share-gpu",), "--share-gpu is for one trainer rank"),
        (("--train-backend", "fsdp", "--model", "qwen3-5B"), "no model shape 'qwen3-5B'"),
    ],
)
def test_what_cannot_work_is_said_in_the_dry_run(
    flags: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    with pytest.raises(SystemExit):
        main(["--method", "rl", "--dry-run", *flags])
    assert says in capsys.readouterr().err
