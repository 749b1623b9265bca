"""From the command line to the command line of an inference engine, and to who has which GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.args import Arguments
from slime.arguments import build_parser, parse_args
from slime.arguments.placement import EngineSpec, describe_placement
from slime.arguments.rollout import check_engines
from slime.arguments.sglang_flags import OWNED, recorded_flags
from slime.backends.sglang_utils.server_args import command_line, pass_through, server_command
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

GPU = ["--device", "cuda"]
ENGINE = {
    "--sglang-mem-fraction-static 0.7": "--mem-fraction-static 0.7",
    "--sglang-context-length 4096": "--context-length 4096",
    "--sglang-reasoning-parser qwen3": "--reasoning-parser qwen3",
    "--sglang-tool-call-parser qwen25": "--tool-call-parser qwen25",
    "--weight-update-mode in_place": "--disable-radix-cache",
}
ROLES = "--actor-num-gpus-per-node 4 --rollout-num-gpus 4 --prm-enable --prm-num-gpus 4"
# What changes of the placement of 4 actor, 4 rollout and 4 judge GPUs.
PLACES = {
    "--actor-num-gpus-per-node 2": ("actor", (0, 1)),
    "--rollout-num-gpus 2": ("rollout", (4, 5)),
    "--prm-num-gpus 2": ("judge", (8, 9)),
    "--rollout-num-gpus-per-engine 2": ("rollout_gpus_per_engine", 2),
    "--prm-num-gpus-per-engine 4": ("judge_gpus_per_engine", 4),
    "--debug-rollout-only": ("actor", ()),
    "--debug-train-only --load-debug-rollout-data x": ("rollout", ()),
    "--rollout-external --rollout-external-engine-addrs h:1 i:2": ("rollout", ()),
    "--prm-router-ip 127.0.0.1 --prm-router-port 9": ("judge", ()),
    "--advantage-estimator ppo --critic-num-gpus-per-node 3": ("critic", (4, 5, 6)),
    "--advantage-estimator ppo --critic-num-nodes 1": ("critic", (4, 5, 6, 7)),
}


def command(args: Arguments, role: str = "policy") -> str:
    """The engine's words after the program; one space around each."""
    spec = EngineSpec(role, 0, args.rollout_num_gpus_per_engine)  # type: ignore[arg-type]
    return f" {' '.join(server_command(args, spec, port=5, cpu=False)[3:])} "


@pytest.mark.parametrize("words", ENGINE)
def test_an_engine_is_started_with_it(base: list[str], words: str) -> None:
    assert f" {ENGINE[words]} " in command(parse_args([*base, *GPU, *words.split()]))
    assert f" {ENGINE[words]} " not in command(parse_args([*base, *GPU]))


@pytest.mark.parametrize("flag", ["--sglang-pp-size", "--sglang-pipeline-parallel-size"])
@pytest.mark.parametrize("way", ["", "--update-weight-mode delta", "--update-weight-transport shared"])
def test_pipeline_stages_get_weights_from_a_disk_only(
    base: list[str], capsys: pytest.CaptureFixture[str], flag: str, way: str
) -> None:
    words = [*base, *GPU, "--rollout-num-gpus", "2", "--rollout-num-gpus-per-engine", "2", flag]
    says = "--sglang-pp-size 2: broadcast and shared memory cannot update an engine with pipeline stages"
    assert says in refusal(capsys, [*words, "2", *way.split()])
    parse_args([*words, "1", *way.split()])
    for other in ("--update-weight-transport disk", "--debug-rollout-only"):
        assert " --tp-size 1 " in command(parse_args([*words, "2", *other.split()]))


def test_the_policys_engines_report_experts_where_they_are_replayed(base: list[str], tmp_path: Path) -> None:
    folder = config_only(tmp_path / "moe", model_type="qwen3_moe", num_experts=8, num_experts_per_tok=2)
    base = [*base, *GPU, "--hf-checkpoint", str(folder), "--train-backend", "megatron"]
    args = parse_args([*base, "--use-rollout-routing-replay"])
    assert args.use_routing_replay
    assert " --enable-return-routed-experts " in command(args)
    assert " --enable-return-routed-experts " not in command(args, "prm")
    for words in ([], ["--use-routing-replay"]):
        assert " --enable-return-routed-experts " not in command(parse_args([*base, *words]))


def test_every_flag_of_the_server_reaches_it() -> None:
    values = {
        "int": ["3"],
        "float": ["0.5"],
        "str": ["x"],
        "int+": ["3", "4"],
        "float+": ["0.5", "1.5"],
        "str+": ["x", "y"],
    }
    flags = {flag: kind for flag, kind in recorded_flags().items() if flag not in OWNED}
    words = [word for flag, kind in flags.items() for word in (f"--sglang-{flag}", *values.get(kind, []))]
    given = f" {' '.join(command_line(pass_through(build_parser().parse_args(words), cpu=False)))} "
    lost = [flag for flag, kind in flags.items() if f" --{' '.join([flag, *values.get(kind, [])])} " not in given]
    assert len(flags) > 400
    assert not lost


@pytest.mark.parametrize("flag", ["--sglang-api-key", "--sglang-admin-api-key", "--sglang-ssl-certfile"])
def test_engines_that_the_run_could_not_call_are_refused(flag: str) -> None:
    (problem,) = check_engines(build_parser().parse_args([flag, "s3cret"]))
    assert problem.startswith(f"{flag}: the run calls its engines without a key")
    assert "s3cret" not in problem
    assert not check_engines(build_parser().parse_args([]))


def test_a_context_longer_than_the_models_is_refused(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = config_only(tmp_path / "short", max_position_embeddings=4096)
    words = [*base, "--hf-checkpoint", str(short), "--sglang-context-length"]
    assert (
        refusal(capsys, [*words, "4097", "--rollout-max-response-len", "4096"])
        .splitlines()[-1]
        .endswith(
            f"--sglang-context-length 4097 is more than the 4096 tokens that {short}/config.json allows; "
            "write --sglang-context-length 4096 --rollout-max-response-len 2048"
        )
    )
    parse_args([*words, "4096"])
    parse_args([*words, "4097", "--debug-train-only", "--load-debug-rollout-data", "x"])
    parse_args([*words, "4097", "--sglang-json-model-override-args", '{"max_position_embeddings": 8192}'])
    assert "is not JSON" in refusal(capsys, [*words, "4097", "--sglang-json-model-override-args", "{"])
    monkeypatch.setenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
    parse_args([*words, "4097"])


@pytest.mark.parametrize(("kind", "allowed"), [("linear", True), ("dynamic", True), ("yarn", False), ("llama3", False)])
def test_a_scaling_that_multiplies_the_stated_context_allows_more(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, allowed: bool
) -> None:
    scaled = config_only(tmp_path / kind, max_position_embeddings=4096, rope_scaling={"rope_type": kind, "factor": 2.0})
    words = [*base, "--hf-checkpoint", str(scaled), "--sglang-context-length"]
    if allowed:
        parse_args([*words, "8192"])
    assert "tokens that" in refusal(capsys, [*words, "8193"])
    parse_args([*words, "4096"])
    if not allowed:
        assert "is more than the 4096 tokens" in refusal(capsys, [*words, "4097"])


def test_a_judge_has_a_context_of_its_own(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = config_only(tmp_path / "short", max_position_embeddings=1024)
    words = [*base, "--sglang-context-length", "4096", "--prm-model-path", str(short)]
    judge = ["--prm-enable", "--prm-num-gpus", "1"]
    said = refusal(capsys, [*words, *judge])
    assert f"1024 tokens that {short}/config.json allows; write --sglang-context-length 1024" in said
    assert said.rstrip().endswith("--prm-max-new-tokens 512")
    parse_args([*base, "--sglang-context-length", "4096", *judge])


def test_models_seeds_and_sizes_of_engines(base: list[str], tmp_path: Path) -> None:
    judge = config_only(tmp_path / "judge")
    words = f"--seed 11 --rollout-num-gpus-per-engine 4 --prm-enable --prm-num-gpus 1 --prm-model-path {judge}"
    args = parse_args([*base, *GPU, *words.split()])
    policy = command(args)
    assert f" --model-path {base[1]} " in policy
    assert " --random-seed 11 " in policy
    assert " --tp-size 4 " in policy
    assert f" --model-path {judge} " in command(args, "prm")


@pytest.mark.parametrize("words", PLACES)
def test_a_role_has_its_gpus(base: list[str], words: str) -> None:
    name, expected = PLACES[words]
    before = describe_placement(parse_args([*base, *GPU, *ROLES.split()]))
    after = describe_placement(parse_args([*base, *GPU, *ROLES.split(), *words.split()]))
    assert getattr(after, name) == expected
    assert getattr(before, name) != expected
