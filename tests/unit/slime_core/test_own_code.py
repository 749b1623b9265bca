"""Python code that a model folder brings is never run: the folder is refused with one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from groundwork.exceptions import ConfigError
from groundwork.processors import load_processor, load_tokenizer
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.fsdp_utils.model import load_hf
from slime.backends.sglang_utils.server_args import server_command

CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
raise SystemExit
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that brings code for all that transformers loads."""
    names = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoProcessor": "own.Own"}
    tokenizer = {"auto_map": {"AutoTokenizer": ["own.Own", None], **names}, "tokenizer_class": "Own"}
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": names}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Own", "auto_map": names}))
    return tmp_path


def load_model(path: str) -> Any:
    return load_hf(Arguments(), path, AutoModelForCausalLM, torch.float32, empty=True)


@pytest.mark.parametrize("load", [load_tokenizer, load_processor, load_model])
def test_a_folder_that_needs_its_own_code_is_refused(folder: Path, load: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match=r"needs Python code of its own .*, which is never run; use a model that"):
        load(str(folder))
    assert not (folder / "ran").exists()


def test_engines_run_no_code_of_a_model() -> None:
    args = Arguments(hf_checkpoint="m", device="cpu", seed=1)
    for role in ("policy", "prm"):
        words = server_command(args, EngineSpec(role, 0, 1), port=9, cpu=True)  # type: ignore[arg-type]
        assert not [word for word in words if "remote-code" in word]
