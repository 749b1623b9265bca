"""What a start would find out a minute later is one line of the dry run: models, folders, keys, GPUs, the port."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from openclaw.launch.__main__ import main
from openclaw.launch.machine import split_for
from openclaw.launch.methods import find_method
from openclaw.runtime.process import free_port, reserve_port
from tests.helpers.checkpoints import QWEN3_4B, config_only
from tests.helpers.other_models import other_tokenizer

CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
FILES = ("model.safetensors", "tokenizer.json")
Said = Callable[..., tuple[str, str]]


def model_in(folder: Path, **changes: object) -> Path:
    config_only(folder, **changes)
    for name in FILES:
        (folder / name).write_bytes(b"{}")
    return folder


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Said:
    """What a dry run says on both channels."""

    def run(*words: str, **environment: str) -> tuple[str, str]:
        given = {"HOME": str(tmp_path), "RUN_DIR": str(tmp_path / "run"), "GPU_MEMORY_GB": "80", **environment}
        monkeypatch.setattr(os, "environ", CLEAN | given)
        with suppress(SystemExit):
            main(["--method", "combine", "--dry-run", *words])
        return capsys.readouterr()

    return run


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": dict(zip("abcdef", names, strict=False))}).encode()


BROKEN: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no config": ({"config.json": None}, "it has no config.json; name the folder of a Hugging Face checkpoint"),
    "the model is below": ({"config.json": None, "snapshots/0/config.json": b"{}"}, "did you mean"),
    "broken config": ({"config.json": b"{"}, "its config.json is not JSON"),
    "binary config": ({"config.json": b"\xff\xfe"}, "its config.json is not JSON"),
    "deep config": ({"config.json": b"[" * 100_000}, "its config.json is not JSON"),
    "a list": ({"config.json": b"[]"}, "names no model_type"),
    "no type": ({"config.json": b"{}"}, "names no model_type"),
    "an unknown type": (
        {"config.json": json.dumps(QWEN3_4B | {"model_type": "qwem3"}).encode()},
        "unknown model_type 'qwem3'; did you mean qwen3?",
    ),
    "no weights": ({"model.safetensors": None}, "it lacks the weights model.safetensors"),
    "two shards are gone": (
        {"model.safetensors.index.json": index("x.safetensors", "y.safetensors")},
        "it lacks the weights x.safetensors and 1 more",
    ),
    "a broken index": ({"model.safetensors.index.json": b"[]"}, "its model.safetensors.index.json cannot be read"),
    "a pointer": ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "is a Git LFS pointer"),
    "no tokenizer": ({"tokenizer.json": None}, "it has no tokenizer (tokenizer.json)"),
}


@pytest.mark.parametrize("variable", ["HF_CKPT", "MODEL_PATH", "PRM_MODEL_PATH"])
@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_folder_that_is_no_model_is_refused(kind: str, variable: str, said: Said, tmp_path: Path) -> None:
    files, why = BROKEN[kind]
    broken = model_in(tmp_path / "broken")
    for name, content in files.items():
        (broken / name).parent.mkdir(parents=True, exist_ok=True)
        (broken / name).unlink(missing_ok=True) if content is None else (broken / name).write_bytes(content)
    out, err = said(**{"HF_CKPT": str(model_in(tmp_path / "whole")), variable: str(broken)} if variable == "PRM_MODEL_PATH"
                    else {variable: str(broken)})  # fmt: skip
    assert "the plan is valid" not in out
    lines = [line for line in err.splitlines() if why in line]
    assert len(lines) == 1
    assert f"{variable}={broken} is not a model: " in lines[0]


def test_a_model_is_accepted(said: Said, tmp_path: Path) -> None:
    own_code = model_in(tmp_path / "own", model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    out, err = said(HF_CKPT=str(model_in(tmp_path / "model")), PRM_MODEL_PATH=str(own_code))
    assert (out.splitlines()[-1], err) == ("dry run: the plan is valid, nothing was started", "")


def test_a_tokenizer_elsewhere_is_none_of_the_model(said: Said, tmp_path: Path) -> None:
    model = model_in(tmp_path / "model")
    (model / "tokenizer.json").unlink()
    judge = model_in(tmp_path / "judge")
    _, err = said(HF_CKPT=str(model), PRM_MODEL_PATH=str(judge), OPENCLAW_TOKENIZER=str(judge))
    assert f"HF_CKPT={model} is not a model: it has no tokenizer" in err


@pytest.mark.parametrize("variable", ["SAVE_CKPT", "RUN_DIR"])
def test_a_folder_that_cannot_be_written_is_refused(variable: str, said: Said, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place in (file, file / "below", Path("/proc/nothing/below")):
        _, err = said(**{variable: str(place)})
        assert f"{variable}={place}: cannot write" in err
    before = sorted(tmp_path.rglob("*"))
    out, err = said(**{variable: str(tmp_path / "new/folder")})
    assert (f"{variable}=" in err, "the plan is valid" in out) == (False, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_on_weights_and_biases_needs_a_key(said: Said, tmp_path: Path) -> None:
    for words in ((), ("--use-wandb",)):
        _, err = said(*words, **({} if words else {"USE_WANDB": "1"}))
        assert all(way in err for way in ("WANDB_API_KEY", "`wandb login`", "--wandb-mode offline"))
        assert err.count("\n") == 1
    for words, environment in (
        ((), {"WANDB_API_KEY": "k"}),
        ((), {"WANDB_KEY": "k"}),
        (("--wandb-mode", "offline"), {}),
        (("--wandb-mode", "disabled"), {}),
        (("--wandb-key", "k"), {}),
    ):
        out, err = said(*words, USE_WANDB="1", **environment)
        assert ("the plan is valid" in out, err) == (True, "")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password k\n")
    assert "the plan is valid" in said(USE_WANDB="1")[0]
    assert "the plan is valid" not in said("--wandb-host", "https://wandb.example.org", USE_WANDB="1")[0]


def test_too_few_gpus_are_answered_with_all_that_must_change(said: Said) -> None:
    _, err = said(NUM_GPUS="4")
    assert "run_qwen3_4b_openclaw_combine_lora.sh, or split them with ACTOR_GPUS=2" in err
    for number in range(3, 8):
        advice = split_for(find_method("combine").folder, number).rpartition("split them with ")[2]
        out, _ = said(NUM_GPUS=str(number), **dict(each.split("=") for each in advice.split()))
        assert "the plan is valid" in out, advice


def test_the_advice_of_a_dry_run_without_gpus_is_a_script(said: Said) -> None:
    out, _ = said(CUDA_VISIBLE_DEVICES="")
    assert "add --device cpu" not in out
    assert "bash openclaw-combine/run_tiny_cpu.sh" in out


def test_a_port_is_reserved_from_the_start_of_a_run() -> None:
    port = free_port("127.0.0.1", 0)
    first = reserve_port("127.0.0.1", port)
    with pytest.raises(
        OSError, match=f"another run that is starting will listen on 127.0.0.1:{port}; wait for it, or set P"
    ):
        reserve_port("127.0.0.1", port)
    assert free_port("127.0.0.1", port) == port  # the run itself may still bind it
    first.close()
    reserve_port("127.0.0.1", port).close()


@pytest.fixture
def other_tokens(tmp_path: Path) -> Path:
    """A folder with a tokenizer that is not the tiny model's."""
    other_tokenizer().save_pretrained(tmp_path / "other")
    return tmp_path / "other"


def test_a_plan_says_how_a_teacher_of_another_model_scores(
    said: Said, tiny_random_model: Path, other_tokens: Path
) -> None:
    url = "http://127.0.0.1:1"
    own = {"HF_CKPT": str(tiny_random_model), "OPENCLAW_JUDGE_CLASS": "builtins.object", "OPENCLAW_TEACHER_URL": url}
    away = "; turns wait until it answers: "
    out, err = said("--profile", "tiny_cpu", **own)
    assert f"\nteacher {url}, same tokenizer: exact{away}" in out, err
    other = own | {"OPENCLAW_TEACHER_TOKENIZER": str(other_tokens)}
    out, _ = said("--profile", "tiny_cpu", **other)
    assert f"\nteacher {url}, another tokenizer: aligned by spans{away}" in out
    _, err = said("--profile", "tiny_cpu", "--method", "opd_topk", **other)
    assert "compares the likeliest tokens of teacher and policy (--distill-topk 50)" in err
    _, err = said("--profile", "tiny_cpu", "--method", "rl", **own)
    assert "OPENCLAW_TEACHER_URL has no effect: the method has no teacher; unset it" in err
    out, _ = said("--profile", "tiny_cpu", **own | {"OPENCLAW_TEACHER_TOKENIZER": "/nowhere"})
    assert "not found on this machine: OPENCLAW_TEACHER_TOKENIZER=/nowhere: no such folder with a tokenizer" in out


def test_a_judge_that_teaches_is_named_too(said: Said, tiny_random_model: Path) -> None:
    out, err = said(
        "--profile",
        "tiny_cpu",
        HF_CKPT=str(tiny_random_model),
        PRM_MODEL_PATH=str(tiny_random_model),
        OPENCLAW_OPD_TEACHER="prm",
    )
    assert f"\nteacher {tiny_random_model}, same tokenizer: exact\n" in out, err
