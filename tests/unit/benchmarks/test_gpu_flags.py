"""The flags that tests on a GPU set exist, and the parser takes them together: without a GPU nothing else would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.server_args import server_command
from slime.weight_sync import LOADER
from tests.helpers.adapter_checks import LORA
from tests.helpers.driver import COMMON
from tests.helpers.gpu_engine import run_on_gpu
from tests.helpers.shared_loop import CHECKED, ON_A_GPU


def test_the_loop_on_one_gpu_is_a_run(tiny_random_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    own = ("--hf-checkpoint", str(tiny_random_model), "--run-dir", str(tmp_path), "--prompt-data", str(prompts))
    args = parse_args([*COMMON, *own, *CHECKED, *ON_A_GPU])
    assert (args.device, args.share_gpu, args.check_weight_update_equal) == ("cuda", True, True)
    assert (args.update_weight_mode, args.update_weight_transport, args.train_dtype) == ("full", "shared", "bfloat16")


def test_the_engine_on_a_gpu_has_graphs_and_takes_checked_weights(tmp_path: Path) -> None:
    args = run_on_gpu(tmp_path, tmp_path, update_weight_transport="shared", share_gpu=True)
    command = server_command(args, EngineSpec("policy", 0, 1, (0,)), port=1, cpu=False)
    assert command[command.index("--custom-weight-loader") + 1] == LOADER
    assert command[command.index("--cuda-graph-max-bs-decode") + 1] == "8"
    assert not any(word.startswith("--disable-cuda-graph") for word in command)
    adapters = server_command(
        run_on_gpu(tmp_path, tmp_path, use_lora=True, **LORA), EngineSpec("policy", 0, 1, (0,)), port=1, cpu=False
    )
    assert "--enable-lora" in adapters
    with pytest.raises(TypeError, match="sglang_no_such_flag"):
        run_on_gpu(tmp_path, tmp_path, sglang_no_such_flag=1)
