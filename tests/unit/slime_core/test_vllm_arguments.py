"""``--backend vllm``: what its engines start with, and what a run with them refuses by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slime.arguments import parse_args
from slime.arguments.placement import EngineSpec
from slime.arguments.vllm import vllm_missing
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.vllm_utils.command import BEHIND, server_command, vllm_environment
from slime.backends.vllm_utils.engine import VLLMEngine, engine_type
from tests.helpers.arguments import refusal

POLICY = EngineSpec("policy", 0, 1)
VLLM = ["--backend", "vllm", "--vllm-python", sys.executable]


def options(command: list[str]) -> dict[str, str]:
    """Return vLLM's options and their first values."""
    words = command[command.index(BEHIND) + 4 :]
    return {
        word: "" if place + 1 == len(words) or words[place + 1].startswith("--") else words[place + 1]
        for place, word in enumerate(words)
        if word.startswith("--")
    }


def test_the_engine_is_that_of_the_flag(base: list[str]) -> None:
    assert engine_type(parse_args(base)) is SGLangEngine
    args = parse_args([*base, *VLLM, "--vllm-options", "--block-size 32", "--sglang-context-length", "512"])
    assert engine_type(args) is VLLMEngine
    assert args.update_weight_transport == "disk"
    command = server_command(args, POLICY, port=5, cpu=False)
    assert command[command.index(BEHIND) + 1] == args.vllm_python == sys.executable
    given = options(command)
    assert (given["--block-size"], given["--max-model-len"], args.vllm_options) == ("32", "512", "--block-size 32")
    assert given["--logprobs-mode"] == "processed_logprobs"
    assert "--enable-lora" not in given
    environment = vllm_environment(args, {"VLLM_CPU_KVCACHE_SPACE": "3", "VLLM_API_KEY": "x"}, cpu=True)
    assert "VLLM_API_KEY" not in environment, "the translator sends no key"
    assert (environment["VLLM_CPU_KVCACHE_SPACE"], environment["VLLM_SERVER_DEV_MODE"]) == ("3", "1")


def test_a_policys_engine_has_room_for_its_adapters(base: list[str]) -> None:
    lora = parse_args([*base, *VLLM, "--use-lora", "--lora-rank", "12", "--lora-target-modules", "q_proj,v_proj"])
    assert (lora.update_weight_mode, lora.update_weight_transport) == ("adapter", "nccl")
    given = options(server_command(lora, POLICY, port=5, cpu=True))
    assert (given["--max-lora-rank"], given["--lora-target-modules"], given["--dtype"]) == ("16", "q_proj", "float32")
    judge = server_command(lora, EngineSpec("prm", 0, 1), port=5, cpu=True)
    assert "--enable-lora" not in options(judge)
    assert "--adapters" not in judge


def test_an_engine_of_many_people_holds_as_many_adapters_as_sglangs(base: list[str]) -> None:
    words = [*base, *VLLM, "--use-lora", "--adapter-per-person"]
    command = server_command(parse_args(words), POLICY, port=5, cpu=True)
    given = options(command)
    assert (given["--max-loras"], given["--max-cpu-loras"]) == ("33", "129"), "the adapter of zeros has a place, too"
    assert command[command.index("--held-adapters") + 1] == "128"
    assert command[command.index("--people") + 1].endswith("/people")
    few = parse_args([*words, "--sglang-max-loras-per-batch", "6", "--sglang-max-loaded-loras", "3"])
    given = options(server_command(few, POLICY, port=5, cpu=True))
    assert (given["--max-loras"], given["--max-cpu-loras"]) == ("6", "6")
    assert "--people" not in server_command(few, EngineSpec("prm", 0, 1), port=5, cpu=True)


def test_updates_in_place_need_an_engine_without_prefix_cache(
    base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*base, *VLLM, "--weight-update-mode", "in_place"]
    args = parse_args(words)
    assert "--no-enable-prefix-caching" in options(server_command(args, POLICY, port=5, cpu=True))
    said = refusal(capsys, [*words, "--vllm-options=--enable-prefix-caching"])
    assert "the run itself sets --enable-prefix-caching" in said
    parse_args([*base, *VLLM, "--vllm-options=--enable-prefix-caching"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--colocate --device cuda", "--colocate, --offload and --offload-rollout"),
        ("--update-weight-mode delta", "--update-weight-mode delta"),
        ("--update-weight-transport shared", "--update-weight-transport shared"),
        ("--check-weight-update-equal", "--check-weight-update-equal"),
        ("--use-lora --sglang-max-loaded-loras 9", "--sglang-max-loaded-loras"),
        ("--rollout-num-gpus 2 --canary-engine", "--canary-engine"),
        ("--rollout-top-p 0.9", "--rollout-top-p 0.9"),
        ("--rollout-top-k 5", "--rollout-top-k 5"),
        ("--sglang-kv-cache-dtype fp8_e4m3", "--sglang-kv-cache-dtype"),
        ("--rollout-external-engine-addrs h:1", "--rollout-external-engine-addrs"),
        ("--use-lora --lora-rank 600", "--lora-rank 600"),
        ("--use-lora --lora-target-modules q_proj,lm_head", "--lora-target-modules lm_head"),
        ("--vllm-options --api-key=x", "the run itself sets --api-key"),
        ("--vllm-options --max_logprobs=5 -tp 2 --max-cpu-loras 9", "sets --max-cpu-loras, --max_logprobs, -tp;"),
        ("--vllm-options --logprobs_mode raw_logprobs -pp=2 -dp 2", "sets --logprobs_mode, -dp, -pp;"),
        ("--vllm-options --no-enable-lora --no_enable_scale_out", "sets --no-enable-lora, --no_enable_scale_out;"),
        ("--vllm-options --structured-outputs-config.backend=guidance", "sets --structured-outputs-config.backend;"),
        ("--vllm-options --tensor-par 2", "sets --tensor-par;"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name(
    base: list[str], capsys: pytest.CaptureFixture[str], words: str, named: str
) -> None:
    given = words.split(" ", 1) if words.startswith("--vllm-options") else words.split()
    if given[0] == "--vllm-options":
        given = [f"--vllm-options={given[1]}"]
    said = refusal(capsys, [*base, *VLLM, *given])
    assert any("vllm" in line and named in line for line in said.replace("; ", "; ").splitlines()), said


def test_its_flags_are_refused_without_it(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--vllm-python has no effect without --backend vllm" in refusal(capsys, [*base, *VLLM[2:]])


def test_a_missing_vllm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> Any:
        return None

    monkeypatch.setattr("slime.arguments.vllm.PACKAGES", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", found)
    assert "scripts/setup_vllm.sh" in str(vllm_missing(None))
    assert "--vllm-python /none" in str(vllm_missing("/none"))
    assert vllm_missing(sys.executable) is None
