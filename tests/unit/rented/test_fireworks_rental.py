"""What a run rents at a stand-in of Fireworks: in which order, what a crash leaves, what is refused, and that nothing is forgotten."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped
from lab.tiny_models.cache import SHIPPED
from slime.args import Arguments
from tests.helpers.arguments import refusal

pytest.importorskip("tinker", reason="install the tinker extra")

from slime.backends.fireworks_utils import control, http
from slime.backends.fireworks_utils.control import NOTE, Note, Rental, delete
from slime.backends.fireworks_utils.http import Connection
from tests.helpers.fireworks import DEPLOYMENT_SHAPE, KEY, MODEL, SHAPE, Fireworks
from tests.unit.rented.test_flags import WORDS

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def fireworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fireworks]:
    monkeypatch.setattr(control, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(http, "PATIENCE_SECONDS", 0.2)
    with Fireworks() as service:
        monkeypatch.setenv("FIREWORKS_BASE_URL", service.address)
        monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
        yield service


def args_of(folder: Path, **changes: Any) -> Arguments:
    values = {
        **{
            "run_dir": str(folder),
            "tinker_model": MODEL,
            "lora_rank": 8,
            "lr": 1e-4,
            "fireworks_training_shape": SHAPE,
        },
        **{"fireworks_deployment": None, "fireworks_gpus": None, "fireworks_keep": False},
        "fireworks_wait_minutes": 1.0,
    }
    return Arguments(**{**values, **changes})


def rental(folder: Path, patience: float = 0.2, stop: Any = None, **changes: Any) -> Rental:
    return Rental(args_of(folder, **changes), Connection(stop, patience))


def names(fireworks: Fireworks) -> list[str]:
    return [each.replace("/v1/accounts/me", "") for each in fireworks.calls]


def test_the_trainer_comes_first_then_a_deployment_that_loads_from_it(fireworks: Fireworks, tmp_path: Path) -> None:
    noted: list[Any] = []
    fireworks.before = lambda what: noted.append((what, Note.read(tmp_path)))
    with rental(tmp_path, fireworks_gpus=9) as rented:
        note = rented.note
        [(trainer, job)], [(deployment, serves)] = fireworks.trainers.items(), fireworks.deployments.items()
        assert (trainer, deployment) == (note.trainer_path, note.deployment_path)
        assert job["trainingConfig"] == {"baseModel": MODEL, "loraRank": 8, "learningRate": 1e-4}
        assert (serves["hotLoadTrainerJob"], serves["deploymentShape"]) == (trainer, DEPLOYMENT_SHAPE)
        assert (serves["enableHotLoad"], serves["hotLoadTransitionType"], serves["forTraining"]) == (True, "SYNC", True)
        assert serves["minReplicaCount"] == serves["maxReplicaCount"] == 2, "(9 - 4 of the trainer) / 2 of a replica"
        assert rented.context == 512
    assert noted == [("trainer", note), ("deployment", note)], "it is written before anything exists"
    assert names(fireworks) == [
        *("POST /rlorTrainerJobs", "POST /deployments"),
        *(f"DELETE /deployments/{note.deployment}", f"DELETE /rlorTrainerJobs/{note.trainer}"),
    ]
    assert not (tmp_path / NOTE).exists()


def test_a_run_that_was_killed_finds_what_it_rented(fireworks: Fireworks, tmp_path: Path) -> None:
    killed = rental(tmp_path).__enter__()
    with rental(tmp_path) as again:
        assert again.note == killed.note
    assert [each for each in names(fireworks) if each.startswith("POST")] == [
        "POST /rlorTrainerJobs",
        "POST /deployments",
    ]
    assert not fireworks.deployments


@pytest.mark.parametrize("what", ["trainer", "deployment"])
def test_a_kill_between_note_and_creation_leaves_nothing_unknown(
    what: str, fireworks: Fireworks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(Rental, "_create_trainer" if what == "trainer" else "_deploy", dies)
    monkeypatch.setattr(Rental, "__exit__", lambda *_: None)  # a killed process deletes nothing
    with pytest.raises(Killed):
        rental(tmp_path).__enter__()
    noted = Note.read(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(control, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("FIREWORKS_BASE_URL", fireworks.address)
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    with rental(tmp_path) as again:
        assert again.note == noted
        assert list(fireworks.trainers) == [again.note.trainer_path]


def test_a_create_that_is_sent_again_is_done_once(fireworks: Fireworks, tmp_path: Path) -> None:
    """The answer is lost, and Fireworks says that the job exists."""
    fireworks.refuses["POST /v1/accounts/me/rlorTrainerJobs"] = []

    def lost(what: str) -> None:
        if what == "trainer" and len(fireworks.trainers) == 0:
            note = Note.read(tmp_path)
            assert note is not None
            job = {"name": note.trainer_path, "state": "", "left": ["RUNNING"], "trainingConfig": {}}
            fireworks.trainers[note.trainer_path] = job

    fireworks.before = lost
    with rental(tmp_path):
        assert len(fireworks.trainers) == 1


def test_a_trainer_that_stopped_goes_on(fireworks: Fireworks, tmp_path: Path) -> None:
    first = rental(tmp_path).__enter__()
    fireworks.trainers[first.note.trainer_path]["state"] = "FAILED"
    with rental(tmp_path) as again:
        assert again.note == first.note
    assert f"POST /rlorTrainerJobs/{first.note.trainer}:resume" in names(fireworks)


def test_a_trainer_that_was_deleted_is_replaced_and_the_deployment_loads_from_the_new_one(
    fireworks: Fireworks, tmp_path: Path
) -> None:
    first = rental(tmp_path).__enter__()
    fireworks.trainers[first.note.trainer_path]["state"] = "DELETED"
    with rental(tmp_path) as again:
        assert again.note.trainer != first.note.trainer
        assert again.note.deployment == first.note.deployment
        assert fireworks.deployments[again.note.deployment_path]["hotLoadTrainerJob"] == again.note.trainer_path
        assert Note.read(tmp_path) == again.note


def test_a_trainer_that_a_running_run_replaces_gets_its_deployment(fireworks: Fireworks, tmp_path: Path) -> None:
    with rental(tmp_path) as rented:
        first = rented.note
        fireworks.trainers[first.trainer_path]["state"] = "ARCHIVED"
        rented.revive()
        assert rented.note.trainer != first.trainer
        assert fireworks.deployments[first.deployment_path]["hotLoadTrainerJob"] == rented.note.trainer_path
        assert Note.read(tmp_path) == rented.note


def test_a_trainer_that_is_not_found_is_noted_before_it_is_created_again(fireworks: Fireworks, tmp_path: Path) -> None:
    with rental(tmp_path) as rented:
        del fireworks.trainers[rented.note.trainer_path]
        (tmp_path / NOTE).unlink()
        noted: list[Note | None] = []
        fireworks.before = lambda _: noted.append(Note.read(tmp_path))
        rented.revive()
        assert noted == [rented.note]


def test_the_end_deletes_without_the_file_and_nothing_is_created_after_it(fireworks: Fireworks, tmp_path: Path) -> None:
    with rental(tmp_path) as rented:
        (tmp_path / NOTE).unlink()
    assert not fireworks.deployments
    assert fireworks.trainers[rented.note.trainer_path]["state"] == "DELETED"
    fireworks.trainers.clear()
    with pytest.raises(Stopped):
        rented.revive()
    assert not fireworks.trainers
    assert not (tmp_path / NOTE).exists()


def test_the_end_waits_for_a_create_and_deletes_it(fireworks: Fireworks, tmp_path: Path) -> None:
    rented = rental(tmp_path).__enter__()
    fireworks.trainers.clear()
    creates, go = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        creates.set()
        assert go.wait(10)

    fireworks.before = slow
    with ThreadPoolExecutor(2) as threads:
        worker = threads.submit(rented.revive)
        assert creates.wait(10)
        end = threads.submit(rented.__exit__)
        assert not wait([end], timeout=0.2).done
        go.set()
        end.result()
        worker.exception()  # it meets a trainer that is gone, or has just finished
    assert {each["state"] for each in fireworks.trainers.values()} == {"DELETED"}


def test_a_trainer_that_fails_is_told_with_its_reason_and_deleted(fireworks: Fireworks, tmp_path: Path) -> None:
    fireworks.boot = ["CREATING", "FAILED"]
    fireworks.before = lambda what: None
    with pytest.raises(ConfigError, match=r"rlorTrainerJobs/openclaw-\w+ is FAILED: "):
        rental(tmp_path).__enter__()
    assert {each["state"] for each in fireworks.trainers.values()} == {"DELETED"}
    assert not (tmp_path / NOTE).exists()


def test_waiting_has_an_end_that_says_what_to_do(fireworks: Fireworks, tmp_path: Path) -> None:
    fireworks.boot = ["PENDING"]
    with pytest.raises(
        ConfigError, match=r"has no accelerators yet after .* raise --fireworks-wait-minutes, or choose"
    ):
        rental(tmp_path, fireworks_wait_minutes=0.001).__enter__()
    assert {each["state"] for each in fireworks.trainers.values()} == {"DELETED"}


def test_a_signal_ends_the_wait_and_nothing_stays(fireworks: Fireworks, tmp_path: Path) -> None:
    fireworks.boot = ["PENDING"]
    with pytest.raises(Stopped):
        rental(tmp_path, stop=True).__enter__()
    assert {each["state"] for each in fireworks.trainers.values()} == {"DELETED"}


@pytest.mark.parametrize(
    ("where", "status", "told"),
    [
        ("GET /v1/accounts", 401, "export a key with training rights in FIREWORKS_API_KEY"),
        ("POST /v1/accounts/me/rlorTrainerJobs", 402, "no credit"),
        ("POST /v1/accounts/me/rlorTrainerJobs", 403, "private preview"),
        ("GET /v1/accounts/fireworks/trainingShapes", 404, "check --tinker-model and --fireworks-training-shape"),
        ("POST /v1/accounts/me/deployments", 400, "Fireworks refuses: 400 for POST .*: no: 400"),
    ],
)
def test_a_refusal_is_one_line_without_the_key(
    where: str, status: int, told: str, fireworks: Fireworks, tmp_path: Path
) -> None:
    fireworks.refuses[where] = [status]
    with pytest.raises(ConfigError, match=told) as found:
        rental(tmp_path).__enter__()
    assert "\n" not in str(found.value)
    assert KEY not in repr(found.value) + repr(found.value.__cause__)
    assert not fireworks.deployments
    assert {each["state"] for each in fireworks.trainers.values()} <= {"DELETED"}


def test_what_passes_is_tried_again_as_late_as_asked(
    fireworks: Fireworks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Connection, "pause", lambda _, seconds: pauses.append(seconds))
    fireworks.refuses["POST /v1/accounts/me/rlorTrainerJobs"] = [{"retry-after": "7"}, 503, 500]
    with rental(tmp_path, patience=60.0):
        pass
    assert pauses[:3] == [7.0, 2.0, 4.0]


def test_a_quota_that_does_not_come_back_is_named(
    fireworks: Fireworks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "pause", lambda *_: None)
    fireworks.refuses["POST /v1/accounts/me/rlorTrainerJobs"] = [429] * 100_000
    with pytest.raises(ConfigError, match="quota is used up"):
        rental(tmp_path, patience=0.0).__enter__()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fireworks_gpus": 5}, "--fireworks-gpus 5: .* trains on 4, and a replica .* has 2; give 6 or more"),
        ({"fireworks_deployment": "taken"}, "there is a deployment taken, and not of this run"),
        ({"mode": "POLICY_TRAINER"}, "is of mode POLICY_TRAINER, and this trains an adapter"),
    ],
)
def test_what_cannot_work_costs_nothing(
    changes: dict[str, Any], told: str, fireworks: Fireworks, tmp_path: Path
) -> None:
    fireworks.mode = changes.pop("mode", fireworks.mode)
    fireworks.deployments["accounts/me/deployments/taken"] = {"left": [], "state": "READY"}
    with pytest.raises(ConfigError, match=told):
        rental(tmp_path, **changes).__enter__()
    assert fireworks.calls == []


def test_another_model_does_not_get_the_old_trainer(fireworks: Fireworks, tmp_path: Path) -> None:
    rental(tmp_path).__enter__()
    with pytest.raises(
        ConfigError, match=r"a trainer of another rank; set it as before, or type: python openclaw-fire"
    ):
        rental(tmp_path, lora_rank=16).__enter__()
    assert fireworks.deployments, "it is not deleted by a run that was refused"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"fireworks_gpus": 10},
            r"--fireworks-gpus 10: that makes 3 replicas, and \S+ has 2; leave it out .* or type: ",
        ),
        (
            {"fireworks_deployment": "new"},
            r"--fireworks-deployment new: \S+ names mine; leave it out .* or type: python",
        ),
    ],
)
def test_what_would_change_nothing_of_what_was_found_is_refused(
    changes: dict[str, Any], told: str, fireworks: Fireworks, tmp_path: Path
) -> None:
    before = {"fireworks_deployment": "mine", "fireworks_gpus": 9}
    rental(tmp_path, **before).__enter__()
    with pytest.raises(ConfigError, match=told):
        rental(tmp_path, **{**before, **changes}).__enter__()
    assert fireworks.deployments, "it is not deleted by a run that was refused"
    with rental(tmp_path, **before):
        pass


def test_an_address_of_something_else_is_one_line(
    fireworks: Fireworks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = httpx.Response(200, text="<html>", request=httpx.Request("GET", f"{fireworks.address}/v1/accounts"))
    monkeypatch.setattr(httpx.Client, "request", lambda *_, **__: page)
    with pytest.raises(ConfigError, match=r"/v1/accounts answers 200 without a JSON object; check FIREWORKS_BASE_URL$"):
        rental(tmp_path).__enter__()


def test_what_is_kept_is_named_with_its_end(
    fireworks: Fireworks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rental(tmp_path, fireworks_keep=True) as rented:
        pass
    told = capsys.readouterr().out
    assert f"keeps    {rented.note.trainer_path} and {rented.note.deployment_path}, which cost; to delete:" in told
    assert f"python openclaw-fireworks/run.py --delete {tmp_path}" in told
    assert len(fireworks.deployments) == 1
    assert exit_code("--delete", str(tmp_path)) == 0
    assert not fireworks.deployments


def test_what_could_not_be_deleted_is_not_forgotten(
    fireworks: Fireworks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rental(tmp_path):
        fireworks.refuses["DELETE /v1/accounts/me/rlorTrainerJobs"] = [400]
    told = capsys.readouterr().out
    assert "may still cost, because it could not be deleted" in told
    assert f"to delete it later, type: python openclaw-fireworks/run.py --delete {tmp_path}" in told
    assert delete(tmp_path)
    assert not (tmp_path / NOTE).exists()


def test_the_key_stays_in_the_environment(
    fireworks: Fireworks, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"), rental(tmp_path):
        assert KEY not in (tmp_path / NOTE).read_text()
        assert set(json.loads((tmp_path / NOTE).read_text())) == {
            *("account", "trainer", "deployment", "model", "rank", "shape")
        }
    said = capsys.readouterr()
    assert KEY not in said.out + said.err + caplog.text


def test_without_a_key_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIREWORKS_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="type: export FIREWORKS_API_KEY=fw_"):
        rental(tmp_path)


# Flags and programs

FLAGS = [*WORDS, "--fireworks-training-shape", SHAPE]
FLAGS[FLAGS.index("tinker")], FLAGS[FLAGS.index("tiny")] = "fireworks", MODEL


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fireworks-training-shape", "tiny"], "--fireworks-training-shape tiny: give such as accounts/"),
        (["--tinker-model", "qwen3-8b"], "--tinker-model qwen3-8b: give such as accounts/fireworks/models/qwen3-8b"),
        (["--fireworks-gpus", "0"], "--fireworks-gpus 0: give 1 or more"),
        (["--fireworks-wait-minutes", "0"], "--fireworks-wait-minutes 0: give more than 0"),
        (["--fireworks-deployment", "A_b"], "--fireworks-deployment A_b: use small letters"),
        (["--tinker-start", "tinker://x"], "--tinker-start: a state of Fireworks is reached with --load or --resume"),
        (["--train-backend", "tinker", "--fireworks-keep"], "--fireworks-keep: only with --train-backend fireworks"),
    ],
)
def test_flags_that_cannot_work_are_refused_by_name(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told in refusal(capsys, [*FLAGS, "--run-dir", str(tmp_path), *words])


def run_py(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = ("PATH", "HOME", "FIREWORKS_API_KEY", "FIREWORKS_BASE_URL")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return subprocess.run(
        [sys.executable, "openclaw-fireworks/run.py", *words],
        cwd=REPOSITORY, env={**environment, **variables}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_options_and_variables_of_guides_reach_the_run() -> None:
    done = run_py(
        *("--method", "combine", "--tokenizer", str(SHIPPED), "--gpus", "8", "--keep", "--dry-run", "--verbose"),
        **{"HF_HUB_OFFLINE": "1", "BASE_MODEL": MODEL, "TRAINING_SHAPE_ID": SHAPE, "DEPLOYMENT_ID": "mine"},
        **{"ROLLOUT_BATCH_SIZE": "6", "MAX_STEPS": "0", "W_OPD": "0.5", "EPS_CLIP": "0.1", "LORA_RANK": "8"},
        FIREWORKS_API_KEY=KEY,
    )
    assert done.returncode == 0, done.stderr
    command = " ".join(done.stdout.partition("command:")[2].replace("\\\n", " ").split())
    for words in (
        *("--train-backend fireworks", f"--tinker-model {MODEL}", f"--fireworks-training-shape {SHAPE}"),
        *("--fireworks-deployment mine", "--fireworks-gpus 8", "--fireworks-keep", "--rollout-batch-size 6"),
        *("--num-rollout 1000000", "--opd-kl-coef 0.5", "--eps-clip 0.1", "--lora-rank 8"),
    ):
        assert words in command, words
    assert f"rents    a trainer job of {SHAPE} and a deployment, kept at the end" in done.stdout
    assert "is set, but it is ignored" not in done.stdout
    assert KEY not in done.stdout + done.stderr


def exit_code(*words: str) -> object:
    """The exit code of openclaw-fireworks/run.py, in this process."""
    program = runpy.run_path(str(REPOSITORY / "openclaw-fireworks" / "run.py"))
    with pytest.raises(SystemExit) as ended:
        program["main"](words)
    return ended.value.code


def test_all_weights_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, variables in ((("--lora-rank", "0"), {}), ((), {"LORA_RANK": "0"})):
        monkeypatch.setattr(os, "environ", {**os.environ, **variables})
        assert exit_code(*words, "--dry-run") == 2
        assert "--lora-rank 0 asks for all weights, and only an adapter can be trained here" in capsys.readouterr().err


def test_a_folder_that_names_nothing_is_told_and_nothing_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("--delete", str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"run.py: there is no fireworks.json in {tmp_path}, and nothing was deleted; ")
    assert told.count("\n") == 1
