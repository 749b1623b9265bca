"""Names that users of other guides know: every script and program of the training track is there and answers."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

METHODS = ("rl", "opd", "combine")
SCRIPTS = (
    *(f"openclaw-{method}/run_{model}_openclaw_{method}{ending}.sh"
      for method in METHODS for model in ("qwen3_4b", "qwen3_8b", "qwen35_4b") for ending in ("", "_lora")),
    *(f"openclaw-opd/run_{model}_openclaw_opd_topk{ending}.sh"
      for model in ("qwen3_4b", "qwen3_8b", "qwen35_4b") for ending in ("", "_lora")),
    "openclaw-rl/run_binary_rl.sh",
    "openclaw-opd/run_opd_training.sh",
    "openclaw-combine/run_combine_training.sh",
    "openclaw-test/run_eval.sh",
    "openclaw-test/launch_user_llm.sh",
    *(f"terminal-rl/{name}.sh" for name in
      ("terminal_qwen3_8b_rl", "terminal_qwen3_8b_prm_rl_2nodes", "run_terminal_rl", "run_terminal_agent")),
    *(f"gui-rl/{name}.sh" for name in
      ("gui_qwen3vl_4b_eval", "gui_qwen3vl_8b_rl", "gui_qwen3vl_8b_prm_rl", "run_gui_rl", "run_gui_agent")),
    *(f"toolcall-rl/{name}.sh" for name in
      ("retool_qwen3_4b_sft", "retool_qwen3_4b_rl", "retool_qwen3_4b_prm_rl", "run_toolcall_rl", "run_toolcall_agent")),
    *(f"swe-rl/{name}.sh" for name in ("run_swe_rl", "run_swe_agent", "scripts/run_swe_rl")),
)  # fmt: skip
PROGRAMS = (
    "openclaw-test/student_chat.py",
    "openclaw-test/ta_chat.py",
    "openclaw-test/teacher_chat.py",
    "openclaw-combine/serve_model.py",
    "openclaw-combine/collect_rollouts.py",
    "openclaw-combine/train_async.py",
    "slime/train.py",
    "slime/train_async.py",
    "slime/train_grpo.py",
    "slime/tools/merge_lora.py",
    "slime/tools/convert_fsdp_to_hf.py",
)


@pytest.mark.parametrize("name", [*SCRIPTS, *PROGRAMS])
def test_a_name_is_there(name: str, repository: Path) -> None:
    assert (repository / name).is_file()


@pytest.mark.parametrize("name", ["openclaw.server", "openclaw_combine.test_rollout"])
def test_a_module_is_there(name: str) -> None:
    module = importlib.import_module(f"{name}.__main__" if name == "openclaw.server" else name)
    assert callable(module.main)


def test_the_imports_of_guides() -> None:
    from openclaw_combine.utils import inspect_sessions

    assert callable(inspect_sessions)


@pytest.mark.parametrize(("script", "says"), [("run_eval.sh", "--eval-tasks"), ("launch_user_llm.sh", "--model-path")])
def test_the_scripts_of_the_tests_have_help(script: str, says: str, repository: Path) -> None:
    command = ["bash", str(repository / "openclaw-test" / script), "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository / "slime").stdout
    assert says in output


def test_grpo_is_train_with_its_estimator(repository: Path) -> None:
    from slime.arguments.parser import build_parser

    text = (repository / "slime" / "train_grpo.py").read_text()
    words = re.findall(r'"(--[a-z-]+)", "(\w+)"', text)[0]
    assert build_parser().parse_args(list(words)).advantage_estimator == "grpo"
