"""A mistyped variable is refused or reported, in the launcher and in the server; it is never ignored in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from openclaw.launch.__main__ import main as launch
from openclaw.launch.guides import NAMES, NoEffect
from openclaw.launch.methods import find_method
from openclaw.launch.names import (
    MIN_LENGTH,
    check_names,
    known_names,
    name_warnings,
    near_misses,
    one_error,
    unknown_prefixed,
)
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import TINY_CPU
from openclaw.launch.resolve import make_plan
from openclaw.server.__main__ import main as server

CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
DEMANDS = ["--method", "rl", "--profile", "tiny_cpu", "--dry-run"]
# Set by shells, agents, job schedulers and other tools; none of them is a typing error.
OF_OTHERS = (
    *(
        "PATH",
        "HOME",
        "TMP",
        "TMPDIR",
        "SHELL",
        "HOSTNAME",
        "HOSTTYPE",
        "LOGNAME",
        "MANPATH",
        "MODULEPATH",
        "NODE_PATH",
    ),
    *("LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_MODE", "WANDB_DIR"),
    *("HF_HOME", "HF_HUB_OFFLINE", "SLURM_NNODES", "SLURM_JOB_ID", "CUDA_HOME", "OMP_NUM_THREADS", "PYTHONPATH"),
    *("KUBERNETES_PORT", "SSH_CLIENT", "OLDPWD", "TERM_PROGRAM", "XDG_RUNTIME_DIR", "VIRTUAL_ENV", "RAY_ADDRESS"),
)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("LEARNING_RATES", "LEARNING_RATE"),
        ("SAVE_CKP", "SAVE_CKPT"),
        ("BATCH_SIZ", "BATCH_SIZE"),
        ("RESUM", "RESUME"),
        ("HF_CKTP", "HF_CKPT"),
        ("batch_size", "BATCH_SIZE"),
        ("LEARNINGRATE", "LEARNING_RATE"),
        ("OPENCLW_REDACT", "OPENCLAW_REDACT"),
        ("NUM_GPU", "NUM_GPUS"),
        ("LEARNIG_RATE", "LEARNING_RATE"),
        ("BATCHSIZE", "BATCH_SIZE"),
    ],
)
def test_a_mistyped_name_is_refused_unless_another_program_reads_it(typed: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_names({typed: "4"})
    advice = f"If another program reads it, set OPENCLAW_OTHER_VARIABLES={typed}"
    assert str(refused.value) == f"{typed} is set, but nothing reads it; did you mean {meant}? {advice}"
    check_names({typed: "4", "OPENCLAW_OTHER_VARIABLES": f"QUUX {typed}"})
    check_names({typed: ""})


def test_each_name_with_one_error_is_refused() -> None:
    known = known_names()
    for name in (name for name in known if len(name) >= MIN_LENGTH):
        at = len(name) // 2
        typed = {name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:], name.lower()} - known
        environment = dict.fromkeys(typed, "4")
        refused = [*unknown_prefixed(environment, known), *near_misses(environment, known)[0]]
        assert {line.split()[0] for line in refused} == typed


def test_a_similar_name_is_a_warning() -> None:
    assert near_misses({"LERNIN_RATE": "4"}, known_names()) == (
        [],
        ["LERNIN_RATE is set, but nothing reads it; did you mean LEARNING_RATE?"],
    )


@pytest.mark.parametrize("name", [name for name, meaning in sorted(NAMES.items()) if isinstance(meaning, NoEffect)])
def test_a_name_of_another_guide_is_said_to_be_ignored(name: str) -> None:
    check_names({name: "x"}, find_method("combine"))
    assert name_warnings({name: "x"}, find_method("combine")) == [
        f"{name} is set, but it is ignored; {NAMES[name].why}"
    ]


def test_variables_of_other_programs_are_no_near_misses() -> None:
    assert near_misses(dict.fromkeys(OF_OTHERS, "1"), known_names()) == ([], [])


def test_every_known_variable_passes() -> None:
    environment = dict.fromkeys(known_names(), "1")
    assert near_misses(environment, known_names()) == ([], [])
    assert unknown_prefixed(environment, known_names()) == []


def test_two_errors_are_too_many() -> None:
    assert one_error("LERNING_RATE", "LEARNING_RATE")
    assert not one_error("LERNING_RATES", "LEARNING_RATE")
    assert not one_error("LOCAL_RANK", "LORA_RANK")


def test_unknown_openclaw_variables_are_refused_together() -> None:
    environment = {"OPENCLAW_REDCT": "off", "OPENCLAW_QUUX": "1", "OPENCLAW_EMPTY": "", "OPENCLAW_STATE_DIR": "/x"}
    assert unknown_prefixed(environment, known_names()) == [
        "OPENCLAW_QUUX is not a variable of this run; unset it: unset OPENCLAW_QUUX",
        "OPENCLAW_REDCT is not a variable of this run; did you mean OPENCLAW_REDACT?",
    ]
    with pytest.raises(ConfigError) as refused:
        check_names(environment | {"NUM_GPU": "4"})
    assert len(str(refused.value).splitlines()) == 4


def test_the_launcher_refuses_and_warns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", CLEAN | {"OPENCLAW_REDCT": "off"})
    with pytest.raises(SystemExit) as ended:
        launch(DEMANDS)
    said = capsys.readouterr().err
    assert (ended.value.code, said) == (
        2,
        "launch: OPENCLAW_REDCT is not a variable of this run; did you mean OPENCLAW_REDACT?\n",
    )
    monkeypatch.setattr(os, "environ", CLEAN | {"LERNIN_RATE": "1"})
    launch(DEMANDS)
    plan, end = capsys.readouterr().out.split(
        "warning: LERNIN_RATE is set, but nothing reads it; did you mean LEARNING_RATE?"
    )
    assert "you set" in plan
    assert "dry run: the plan is valid" in end


def test_the_server_refuses_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = ["--model-path", str(tmp_path), "--device", "cpu", "--dry-run"]
    monkeypatch.setattr(os, "environ", CLEAN | {"OPENCLAW_REDCT": "off"})
    assert server(words) == 2
    assert "did you mean OPENCLAW_REDACT?" in capsys.readouterr().err
    monkeypatch.setattr(os, "environ", CLEAN | {"CONTEXT_LENGHT": "128"})
    assert server(words) == 2
    assert "did you mean CONTEXT_LENGTH?" in capsys.readouterr().err


def test_a_variable_of_another_method_is_a_warning() -> None:
    environment = {"OPENCLAW_COMBINE_W_RL": "2"}
    assert name_warnings(environment, find_method("opd")) == [
        "OPENCLAW_COMBINE_W_RL is a variable of the method combine; --method opd does not read it"
    ]
    assert name_warnings(environment, find_method("combine")) == []


def test_a_folder_without_a_declaration_may_read_any_variable(tmp_path: Path) -> None:
    folder = tmp_path / "openclaw-quiet"
    folder.mkdir()
    make_plan(Recipe(str(folder), None, TINY_CPU), ["--rollout-function-path", "a.b"], {"OPENCLAW_QUUX": "1"})
