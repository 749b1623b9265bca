"""The command line, the environment and the address of engines."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.network import find_available_port
from slime.args import Arguments
from slime.arguments.placement import EngineSpec, Placement
from slime.backends.sglang_utils import router
from slime.backends.sglang_utils.server import CPU_STANDINS, engine_environment
from slime.backends.sglang_utils.server_args import command_line, server_command
from slime.backends.sglang_utils.server_hooks import HELD_ADAPTERS, NF4_BASE, PEOPLE, own_values
from slime.ray.engine_group import EngineGroup
from slime.ray.placement import ReservedPlacement
from slime.weight_sync import LOADER
from slime.weight_sync.people import people_folder


def arguments(**changes: Any) -> Arguments:
    values = {
        "hf_checkpoint": "policy",
        "prm_model_path": "judge",
        "seed": 7,
        "weight_update_mode": "retract",
        "sglang_router_port": 30000,
        "sglang_mem_fraction_static": 0.8,
        "sglang_context_length": 4096,
        "sglang_enable_metrics": True,
    }
    return Arguments.of({**values, **changes})


def options(command: list[str]) -> dict[str, str]:
    words = command[3:]
    return {
        word: "" if position + 1 == len(words) or words[position + 1].startswith("--") else words[position + 1]
        for position, word in enumerate(words)
        if word.startswith("--")
    }


def test_a_gpu_engine_takes_the_pass_through_options() -> None:
    given = options(server_command(arguments(), EngineSpec("policy", 1, 2), port=5, cpu=False))
    assert given["--model-path"] == "policy"
    assert (given["--tp-size"], given["--port"], given["--random-seed"]) == ("2", "5", "8")
    assert (given["--mem-fraction-static"], given["--context-length"]) == ("0.8", "4096")
    assert "--enable-metrics" in given
    assert "--device" not in given
    assert "--router-port" not in given


@pytest.mark.parametrize(
    ("judge", "algorithm", "speculates"), [("judge", "EAGLE3", False), ("judge", "NGRAM", True), (None, "EAGLE3", True)]
)
def test_a_judge_of_another_model_has_no_draft_model_of_the_policy(
    judge: str | None, algorithm: str, speculates: bool
) -> None:
    args = arguments(prm_model_path=judge, sglang_speculative_algorithm=algorithm)
    words = {role: server_command(args, EngineSpec(role, 0, 1), port=5, cpu=False) for role in ("policy", "prm")}
    assert {role: "--speculative-algorithm" in each for role, each in words.items()} == {
        "policy": True,
        "prm": speculates,
    }


def test_a_policy_engine_has_our_loader_where_a_push_needs_it() -> None:
    plain = server_command(arguments(), EngineSpec("policy", 0, 1), port=5, cpu=False)
    assert "--custom-weight-loader" not in plain
    wanted = arguments(check_weight_update_equal=True, sglang_custom_weight_loader=["mine.load"])
    command = server_command(wanted, EngineSpec("policy", 0, 1), port=5, cpu=False)
    place = command.index("--custom-weight-loader")
    assert command[place + 1 : place + 3] == ["mine.load", LOADER]
    assert LOADER not in server_command(wanted, EngineSpec("prm", 0, 1), port=5, cpu=False)


def test_a_policy_engine_serves_adapters_where_a_push_sends_them() -> None:
    lora = arguments(update_weight_mode="adapter", lora_rank=4, lora_target_modules=["q_proj", "o_proj"])
    command = server_command(lora, EngineSpec("policy", 0, 1), port=5, cpu=True)
    given = options(command)
    assert (given["--max-lora-rank"], given["--lora-backend"]) == ("4", "torch_native")
    assert command[command.index("--lora-target-modules") + 1 :][:2] == ["q_proj", "o_proj"]
    assert "--enable-lora" in given
    assert "--lora-backend" not in server_command(lora, EngineSpec("policy", 0, 1), port=5, cpu=False)
    assert "--enable-lora" not in server_command(lora, EngineSpec("prm", 0, 1), port=5, cpu=True)


def test_a_policy_engine_serves_each_persons_adapter_where_the_run_has_them(tmp_path: Path) -> None:
    lora = {"update_weight_mode": "adapter", "adapter_per_person": True, "run_dir": str(tmp_path)}
    given = options(server_command(arguments(**lora), EngineSpec("policy", 0, 1), port=5, cpu=True))
    assert given[PEOPLE] == str(people_folder(tmp_path))
    assert (given["--max-loras-per-batch"], given["--lora-drain-wait-threshold"]) == ("33", "1.0")
    own = {"sglang_max_loras_per_batch": 5, "sglang_max_loaded_loras": 12}
    given = options(server_command(arguments(**lora, **own), EngineSpec("policy", 0, 1), port=5, cpu=False))
    assert (given["--max-loras-per-batch"], given[HELD_ADAPTERS]) == ("5", "12")
    assert "--max-loaded-loras" not in given
    assert PEOPLE not in server_command(arguments(**lora), EngineSpec("prm", 0, 1), port=5, cpu=True)
    plain = arguments(update_weight_mode="adapter", run_dir=str(tmp_path))
    assert PEOPLE not in server_command(plain, EngineSpec("policy", 0, 1), port=5, cpu=True)


def test_our_options_with_a_value_are_not_sglangs() -> None:
    words = ["--model-path", "m", PEOPLE, "/run/people", NF4_BASE, HELD_ADAPTERS, "8", "--port", "5"]
    assert own_values(words) == ({PEOPLE: "/run/people", HELD_ADAPTERS: "8"}, ["--model-path", "m", "--port", "5"])


def test_a_cpu_engine_is_one_process_with_torch_kernels() -> None:
    given = options(server_command(arguments(), EngineSpec("prm", 0, 2), port=5, cpu=True))
    assert given["--model-path"] == "judge"
    assert (given["--tp-size"], given["--device"], given["--mem-fraction-static"]) == ("1", "cpu", "0.2")
    assert "--disable-radix-cache" not in given


def test_only_the_policys_engine_is_told_to_quantise_its_base() -> None:
    """By an own word: a checkpoint that others quantised with bitsandbytes is SGLang's to load."""
    nf4, theirs = arguments(base_quantization="nf4"), arguments(sglang_quantization="bitsandbytes")
    told = [
        NF4_BASE in server_command(args, EngineSpec(role, 0, 1), port=5, cpu=False)
        for args, role in ((nf4, "policy"), (nf4, "prm"), (theirs, "policy"))
    ]
    assert told == [True, False, False]


def test_updates_in_place_need_an_engine_without_prefix_cache() -> None:
    in_place = arguments(weight_update_mode="in_place")
    policy = options(server_command(in_place, EngineSpec("policy", 0, 1), port=5, cpu=True))
    judge = options(server_command(in_place, EngineSpec("prm", 0, 1), port=5, cpu=True))
    assert "--disable-radix-cache" in policy
    assert "--disable-radix-cache" not in judge


def test_lists_and_flags_on_the_command_line() -> None:
    words = command_line({"worker_urls": ["a", "b"], "flag": True, "off": False, "none": None, "size": 3})
    assert words == ["--worker-urls", "a", "b", "--flag", "--size", "3"]


def test_only_cpu_engines_see_the_standins() -> None:
    base = {"PYTHONPATH": "/mine", "RANK": "3", "WORLD_SIZE": "4"}
    cpu, gpu = engine_environment(base, cpu=True), engine_environment(base, cpu=False)
    assert cpu["PYTHONPATH"].split(":")[0] == str(CPU_STANDINS)
    assert str(CPU_STANDINS) not in gpu["PYTHONPATH"]
    assert gpu["PYTHONPATH"].endswith("/mine")
    assert "RANK" not in cpu
    assert cpu["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in gpu
    assert cpu["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert cpu["SGLANG_VLM_CACHE_SIZE_MB"] == gpu["SGLANG_VLM_CACHE_SIZE_MB"] == "0"


def test_router_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not router.check_router("auto", 1)
    assert router.check_router("auto", 2)
    with pytest.raises(ConfigError, match="--router direct needs a single engine"):
        router.check_router("direct", 2)
    monkeypatch.setattr(router, "ROUTER_PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="pip install sglang-router"):
        router.check_router("auto", 2)


class Started:
    """Stands in for the router process; keeps the words it was started with."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, words: list[str], **_: Any) -> Started:
        self.words = words
        return self


@pytest.mark.parametrize(("role", "ip", "same"), [("policy", None, True), ("prm", None, False), ("policy", "h", False)])
def test_a_router_port_alone_is_that_of_the_policys_router(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: Any, ip: str | None, same: bool
) -> None:
    started, port = Started(), find_available_port()
    monkeypatch.setattr(router, "spawn", started)
    monkeypatch.setattr(router, "_wait_until_all_serve", lambda child, port, urls: None)
    args = arguments(sglang_router_port=port, sglang_router_ip=ip, run_dir=str(tmp_path))
    address = router.serve_behind_one_address(args, role, ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    assert (address.port == port) is same
    assert options(started.words)["--port"] == str(address.port)


def test_one_engine_has_a_router_where_the_flag_wants_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = Started()
    monkeypatch.setattr(router, "spawn", started)
    monkeypatch.setattr(router, "_wait_until_all_serve", lambda child, port, urls: None)
    urls = ["http://127.0.0.1:1"]
    for choice, wanted in (("auto", False), ("direct", False), ("sglang", True)):
        args = arguments(sglang_router_port=None, run_dir=str(tmp_path), router=choice)
        address = router.serve_behind_one_address(args, "policy", urls)
        assert bool(started.words) == wanted
        assert (address.port == 1) != wanted


def test_a_router_gives_a_request_the_time_of_the_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = Started()
    monkeypatch.setattr(router, "spawn", started)
    monkeypatch.setattr(router, "_wait_until_all_serve", lambda child, port, urls: None)
    args = arguments(sglang_router_port=None, run_dir=str(tmp_path), sglang_router_request_timeout_secs=77)
    router.serve_behind_one_address(args, "policy", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    assert options(started.words)["--request-timeout-secs"] == "77"


def test_a_router_port_alone_is_that_of_the_only_engine() -> None:
    port = find_available_port()
    two = ReservedPlacement(Placement((), (0, 1), (2,)), None, ())
    one = ReservedPlacement(Placement((), (0,), (2,)), None, ())
    args = arguments(sglang_router_port=port, router="auto")
    assert EngineGroup(args, one, "policy")._ports == [port]
    assert EngineGroup(args, two, "policy")._ports == [0, 0]
    assert EngineGroup(args, one, "prm")._ports == [0]


def test_a_router_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--sglang-router-port {port}: the port is in use"):
            router.requested_port(arguments(sglang_router_port=port), "policy")
