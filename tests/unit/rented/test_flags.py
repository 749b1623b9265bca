"""Flags of a run at a service: which work, which are refused by name, and what a person is told before anything starts."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from lab.tiny_models.cache import SHIPPED
from slime.args import Arguments
from slime.arguments import parse_args
from slime.arguments.placement import describe_placement
from slime.arguments.tinker import read_prices
from slime.backends.tinker_utils import service as module
from slime.backends.tinker_utils.service import Meter, Service
from slime.backends.tinker_utils.trainer import Rented
from tests.helpers.arguments import refusal

tinker = pytest.importorskip("tinker", reason="install the tinker extra")
REPOSITORY = Path(__file__).resolve().parents[3]
WORDS = [
    *("--train-backend", "tinker", "--tinker-model", "tiny", "--hf-checkpoint", str(SHIPPED), "--use-lora"),
    *("--use-rollout-logprobs", "--advantage-estimator", "grpo", "--disable-rewards-normalization"),
    *("--rollout-batch-size", "4", "--num-rollout", "3", "--disable-rollout-global-dataset", "--device", "cpu"),
    *("--data-source-path", "openclaw.training.rollout.LedgerDataSource"),
]


def test_a_run_at_a_service_needs_no_gpu(tmp_path: Path) -> None:
    args = parse_args([*WORDS, "--run-dir", str(tmp_path), "--prm-enable"])
    placement = describe_placement(args)
    assert (placement.total, placement.actor, placement.rollout, placement.judge) == (0, (), (), ())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tinker-model", ""], "needs --tinker-model NAME"),
        (["--attn-implementation", "eager"], "--attn-implementation: without effect where a service trains"),
        (["--gradient-checkpointing", "--lora-alpha", "8"], "--gradient-checkpointing, --lora-alpha: without effect"),
        (["--eps-clip-c", "3"], "--eps-clip-c: without effect"),
        (["--adapter-per-person"], "--adapter-per-person: without effect"),
        (["--canary-engine", "--before-push-path", "openclaw.gate.plugin.decide"], "--canary-engine: without effect"),
        (["--advantage-estimator", "gspo"], "choose of grpo, on_policy_distillation, step_wise"),
        (["--rollout-temperature", "0.6"], "trains at temperature 1"),
        (["--loss-type", "sft_loss"], "has losses of its own"),
        (["--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3"], "add --kl-loss-type k1 --use-unbiased-kl"),
        (["--tinker-prices", "train=cheap"], "'train=cheap' is no price"),
        (["--tinker-judge-model", "wise"], "--tinker-judge-model wise needs --prm-model-path FOLDER"),
        (["--update-weights-interval", "2"], "--update-weights-interval: without effect"),
        (["--tinker-epochs", "0"], "--tinker-epochs 0: give 1 or more"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told in refusal(capsys, [*WORDS, "--run-dir", str(tmp_path), *words])


def test_its_flags_mean_nothing_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [word for word in WORDS if word not in ("--train-backend", "tinker")]
    told = refusal(capsys, [*words, "--run-dir", str(tmp_path)])
    assert "--tinker-model: only with --train-backend tinker" in told


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"tinker_path": "tinker://run/weights/x", "model": "tiny"}, None),
        ({"tinker_path": "tinker://run/weights/x", "model": "huge"}, "is of huge: give --tinker-model huge"),
        ({}, "state/.metadata is missing"),
    ],
)
def test_a_checkpoint_is_whole_if_the_service_has_the_state(
    meta: dict[str, Any], told: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "iter_0000003"
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({"rollout_id": 2, "lora": True, "role": "policy", **meta}))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    words = [*WORDS, "--run-dir", str(tmp_path), "--save", str(tmp_path), "--resume"]
    if told is None:
        assert parse_args(words).resume
    else:
        assert told in refusal(capsys, words)


def test_a_state_of_a_service_is_no_start_for_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000003"
    folder.mkdir()
    meta = {"rollout_id": 2, "lora": True, "role": "policy", "tinker_path": "tinker://run/weights/x", "model": "tiny"}
    (folder / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    words = [word for word in WORDS if word not in ("--train-backend", "tinker", "--tinker-model", "tiny")]
    told = refusal(capsys, [*words, "--run-dir", str(tmp_path), "--save", str(tmp_path), "--resume"])
    assert "holds a state of a service: add --train-backend tinker" in told


def test_tokens_have_prices() -> None:
    meter = Meter(read_prices("prefill=1,cached=0.5,sample=2,train=4"))
    for kind, tokens in (("prefill", 100_000), ("cached", 200_000), ("sample", 300_000), ("train", 400_000)):
        meter.add(kind, tokens)
    assert meter.metrics()["tinker/dollars"] == pytest.approx(0.1 + 0.1 + 0.6 + 1.6)
    assert meter.line() == "100,000 prefill, 200,000 cached, 300,000 sample, 400,000 train tokens, 2.40 dollars"


def test_what_a_crash_lost_was_paid_for_too(tmp_path: Path) -> None:
    first = Meter({})
    first.keep_in(tmp_path / "used.json", goes_on=False)
    first.add("train", 5)
    first.keep()
    again = Meter({})
    again.keep_in(tmp_path / "used.json", goes_on=True)
    again.keep_in(tmp_path / "used.json", goes_on=True)
    again.add("train", 7)
    assert again.metrics() == {"tinker/train_tokens": 12.0}


class Offers:
    """The package at a service that has the model ``tiny``, of 512 tokens."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses

    def get_server_capabilities(self) -> Any:
        def result() -> Any:
            if self.refuses:
                import httpx

                response = httpx.Response(401, request=httpx.Request("GET", "http://service"))
                raise tinker.AuthenticationError("no", response=response, body=None)
            return SimpleNamespace(supported_models=[SimpleNamespace(model_name="tiny", max_context_length=512)])

        return SimpleNamespace(result=result)


def args_of(**changes: Any) -> Arguments:
    values = {"tinker_model": "tiny", "tinker_judge_model": None, "tinker_prices": None, "rollout_max_context_len": 512}
    return Arguments(
        **{
            **values,
            "hf_checkpoint": str(SHIPPED),
            "prm_enable": False,
            "run_dir": "/nowhere",
            "resume": False,
            **changes,
        }
    )


def rented_of(args: Arguments) -> Rented:
    return Rented(args, Service(args))


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Offers:
    """The stand-in of the package; the service answers."""
    offers = Offers()
    client = SimpleNamespace(create_sampling_client=lambda base_model: SimpleNamespace(result=lambda: base_model))
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-a-test")
    monkeypatch.setattr(module.httpx, "get", lambda *_, **__: None)
    monkeypatch.setattr(tinker, "RestClient", lambda: offers)
    entered: AbstractContextManager[Any] = nullcontext(client)
    monkeypatch.setattr(tinker, "ServiceClient", lambda: entered)
    return offers


def test_without_a_key_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="type: export TINKER_API_KEY=tml-"):
        Service(args_of()).__enter__()


def test_a_service_that_is_away_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-a-test")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"nobody answers at http://127\.0\.0\.1:9 .*; start the service, or export"):
        Service(args_of()).__enter__()


@pytest.mark.usefixtures("reached")
def test_models_and_lengths_that_it_does_not_have_are_named() -> None:
    with pytest.raises(ConfigError, match="has no model huge; choose of: tiny"):
        Service(args_of(tinker_model="huge")).__enter__()
    with pytest.raises(ConfigError, match="has no model huge"):
        Service(args_of(tinker_judge_model="huge")).__enter__()
    with pytest.raises(ConfigError, match="set CONTEXT_LENGTH=512"):
        rented_of(args_of(rollout_max_context_len=1024)).__enter__()


def test_a_state_that_cannot_be_deleted_is_a_line_in_the_log(reached: Offers, caplog: pytest.LogCaptureFixture) -> None:
    def deletes(path: str) -> Any:
        def result(timeout: float) -> None:
            raise TimeoutError("in vain")

        return SimpleNamespace(result=result)

    reached.delete_checkpoint_from_tinker_path = deletes  # type: ignore[attr-defined]
    Service(args_of()).forget("tinker://run/weights/1")
    assert "tinker://run/weights/1 could not be deleted: in vain" in caplog.text


def test_a_key_that_is_refused_is_named_without_its_value(reached: Offers) -> None:
    reached.refuses = True
    with pytest.raises(ConfigError, match="refuses the key in TINKER_API_KEY") as told:
        Service(args_of()).__enter__()
    assert "tml-of-a-test" not in str(told.value)


@pytest.mark.usefixtures("reached")
def test_policy_and_judge_have_addresses_and_a_sentence_says_what_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    args = args_of(prm_enable=True)
    with rented_of(args) as rented:
        found = rented.arguments(args)
    assert found.sglang_router_ip == found.prm_router_ip == "127.0.0.1"
    assert found.sglang_router_port != found.prm_router_port
    told = capsys.readouterr()
    assert "sends    prompts, replies, judge's questions and training data, as token ids, to" in told.out + told.err


def run_py(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "openclaw-tinker/run.py", *words],
        cwd=REPOSITORY, env={**kept, **variables}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_options_of_guides_reach_the_run() -> None:
    done = run_py(
        *("--method", "combine", "--model-name", "tiny", "--tokenizer", str(SHIPPED)),
        *(
            "--lora-rank",
            "8",
            "--learning-rate",
            "0.002",
            "--batch-size",
            "6",
            "--max-steps",
            "7",
            "--loss-fn",
            "cispo",
        ),
        *("--kl-loss-coef", "0.25", "--save-interval", "3", "--w-opd", "0.5", "--w-rl", "2", "--train-epochs", "2"),
        *("--prm-m", "5", "--prm-temperature", "0.4", "--prm-max-tokens", "99", "--proxy-port", "30123"),
        *("--tinker-prices", "train=1", "--dry-run", "--verbose"),
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 0, done.stderr
    command = done.stdout.partition("command:")[2].replace("\\\n", " ")
    for words in (
        "--train-backend tinker",
        "--tinker-model tiny",
        "--opd-teacher policy",
        "--lora-rank 8",
        "--lr 0.002",
        "--rollout-batch-size 6",
        "--num-rollout 7",
        "--tinker-loss cispo",
        "--kl-loss-coef 0.25 --kl-loss-type k1 --use-unbiased-kl",
        "--save-interval 3",
        "--opd-kl-coef 0.5",
        "--tinker-epochs 2",
        "--prm-m 5",
        "--prm-temperature 0.4",
        "--prm-max-new-tokens 99",
        "--tinker-prices train=1",
    ):
        assert words in " ".join(command.split()), words
    assert "--sglang" not in command
    assert "30123" in done.stdout


def test_another_model_of_the_service_teaches_and_judges() -> None:
    made = runpy.run_path(str(REPOSITORY / "openclaw-tinker" / "run.py"))["ServiceProgram"]
    program = made("tinker", "tiny", "")
    options, _ = program.parse(["--teacher-model-name", "wise"])
    assert program.words(options)[-2:] == ["--tinker-judge-model", "wise"]
    assert program.variables(options, "tiny", {})["OPENCLAW_OPD_TEACHER"] == "prm"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--api-key", "secret"], "type: export SGLANG_API_KEY=KEY"),
        (["--method", "rl", "--w-opd", "2"], "weights of combine"),
        (["--model-name", "Qwen/Qwen3-0"], "type: python -m openclaw.models Qwen/Qwen3-0 --tokenizer"),
    ],
)
def test_what_it_cannot_do_it_says(words: list[str], told: str) -> None:
    done = run_py(*words)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert "secret" not in done.stderr
