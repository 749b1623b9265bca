"""Training from a folder: which run is started for it, and when nothing is left to do."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.server import train
from openclaw.server.collect import record_model
from openclaw.server.train import Job, environment_of, gpu_variables, main, make_job, nothing_left, too_few
from slime.arguments.dry_run import MISSING_PATH

NO_LOGS = {"keep_running": False, "epochs": None, "limit": None, "judge_again": False}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "rollouts" / "ledger.sqlite")


def test_a_list_of_gpus_is_split() -> None:
    assert gpu_variables("0,1,2,3,4,5,6,7")[1] == {
        "NUM_GPUS": "8",
        "TP": "2",
        "PRM_TP": "2",
        "ACTOR_GPUS": "0,1,2,3",
        "ROLLOUT_GPUS": "4,5",
        "PRM_GPUS": "6,7",
    }
    assert gpu_variables("7,5,6")[1]["ACTOR_GPUS"] == "5,"
    assert gpu_variables("4")[1] | {"TP": "1"} == gpu_variables("4")[1]
    assert gpu_variables("cpu") == ("tiny_cpu", {})
    with pytest.raises(ConfigError, match="name 3 or more"):
        gpu_variables("2")


def test_the_run_of_a_folder(ledger: Ledger, tmp_path: Path) -> None:
    arguments = SimpleNamespace(
        rollout_dir=ledger.path.parent,
        checkpoint_dir=tmp_path / "c",
        method="binary",
        gpus="cpu",
        model_path="/m",
        **NO_LOGS,
    )
    job = make_job(arguments, ["--lr", "1e-6"], {})
    assert job.command[1:] == ["-m", "openclaw.launch", "--profile", "tiny_cpu", "--method", "rl", *job.extra]
    assert job.extra[-2:] == ("--lr", "1e-6")
    plan = make_plan(Recipe(job.method, None, PROFILES[job.profile]), job.extra, job.variables)
    assert [problem for problem in plan.problems if MISSING_PATH not in problem] == []
    assert plan.args.save_hf == str(tmp_path / "c" / "hf-{rollout_id}")
    assert job.variables["OPENCLAW_LEDGER"] == str(ledger.path)
    assert (job.variables["SAVE_CKPT"], job.variables["HF_CKPT"], job.variables["PORT"]) == (
        str(tmp_path / "c"),
        "/m",
        "0",
    )


def test_the_folder_names_the_model(ledger: Ledger, tmp_path: Path) -> None:
    folder, save, model = ledger.path.parent, tmp_path / "c", tmp_path / "model"
    assert "HF_CKPT" not in job_of(folder, save, model_path=None).variables, "nobody knows"
    record_model(folder, str(model))
    with pytest.raises(
        ConfigError, match=r"were sampled by .*model, which is not a folder of this machine; .* --model-path"
    ):
        job_of(folder, save, model_path=None)
    model.mkdir()
    assert job_of(folder, save, model_path=None).variables["HF_CKPT"] == str(model)
    assert job_of(folder, save).variables["HF_CKPT"] == "/m"
    chosen = SimpleNamespace(
        rollout_dir=folder, checkpoint_dir=save, method="rl", gpus="cpu", model_path=None, **NO_LOGS
    )
    assert "HF_CKPT" not in make_job(chosen, [], {"MODEL_PATH": "/mine"}).variables
    run = tmp_path / "run"
    run.mkdir()
    (run / "arguments.json").write_text(json.dumps({"hf_checkpoint": str(model), "save": str(folder)}))
    (folder / "model.json").unlink()
    assert job_of(run, save, model_path=None).variables["HF_CKPT"] == str(model)


def job_of(folder: Path, save: Path, **changes: object) -> Job:
    arguments = {"rollout_dir": folder, "checkpoint_dir": save, "method": "combine", "gpus": "cpu", "model_path": "/m"}
    return make_job(SimpleNamespace(**{**arguments, **NO_LOGS, **changes}), [], {})


def test_lengths_follow_the_model(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))

    def lengths(environment: dict[str, str], gpus: str = "0,1,2") -> tuple[str | None, ...]:
        chosen = SimpleNamespace(
            rollout_dir=ledger.path.parent,
            checkpoint_dir=tmp_path / "c",
            method="rl",
            gpus=gpus,
            model_path=str(tmp_path / "model"),
            **NO_LOGS,
        )
        variables = make_job(chosen, [], environment).variables
        return tuple(map(variables.get, ("CONTEXT_LENGTH", "MAX_RESPONSE_LENGTH", "PRM_MAX_NEW_TOKENS")))

    assert lengths({}) == ("2048", "1024", "1024")
    assert lengths({"MAX_RESPONSE_LENGTH": "160", "PRM_MAX_NEW_TOKENS": "96"}) == ("2048", None, None)
    assert lengths({}, "cpu") == (None, None, None)


def test_the_record_of_a_run_is_only_read(ledger: Ledger, tmp_path: Path) -> None:
    judged_sample(ledger, "turn-0")
    ledger.samples.claim(0, 1)
    ledger.samples.record_step(0, "1", 200.0, 201.0)
    folder, save = ledger.path.parent, tmp_path / "c"
    job = job_of(folder, save, epochs=2, limit=5, judge_again=True, keep_running=True)
    assert (job.variables["DATA_PATH"], "OPENCLAW_LEDGER" in job.variables) == (str(folder), False)
    assert job.own == ("--epochs", "2", "--limit", "5", "--judge-again", "--serve-when-done")
    assert job.command[-len(job.own) - len(job.extra) :] == [*job.own, *job.extra]
    assert "OPENCLAW_LEDGER" in job_of(folder, folder).variables, "its own checkpoints are there: it goes on"
    (save / "run").mkdir(parents=True)
    assert "OPENCLAW_LEDGER" in job_of(folder, save).variables, "an earlier job began in place"
    (save / "ledger.sqlite").touch()
    assert "DATA_PATH" in job_of(folder, save).variables, "an earlier job began with a copy"


def test_a_folder_of_logs_is_trained(tmp_path: Path) -> None:
    job = job_of(tmp_path, tmp_path / "c")
    assert job.variables["DATA_PATH"] == str(tmp_path)
    plan = make_plan(Recipe(job.method, None, PROFILES[job.profile]), job.extra, job.variables)
    assert (plan.args.stale_samples, plan.args.max_weight_staleness, plan.args.serve_when_done) == ("correct", 4, False)


def test_options_about_logs_do_not_fit_collected_turns(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--epochs is about logs"):
        job_of(ledger.path.parent, tmp_path / "c", epochs=2)


def test_the_callers_port_and_bound_stay_under_any_name(ledger: Ledger, tmp_path: Path) -> None:
    arguments = SimpleNamespace(
        rollout_dir=ledger.path.parent,
        checkpoint_dir=tmp_path / "c",
        method="binary",
        gpus="cpu",
        model_path="/m",
        **NO_LOGS,
    )
    environment = {"OPENCLAW_PORT": "31000", "UPDATES": "7"}
    job = make_job(arguments, [], environment)
    plan = make_plan(Recipe(job.method, None, PROFILES[job.profile]), job.extra, {**environment, **job.variables})
    assert (plan.runtime.port, plan.args.num_rollout) == (31000, 7)


def test_the_options_win_over_variables_under_any_name(ledger: Ledger, tmp_path: Path) -> None:
    """Guides have GPUS_PER_NODE, MODEL_PATH and CKPT_SAVE_DIR exported in the same shell."""
    job = job_of(ledger.path.parent, tmp_path / "c", gpus="2,3,4,5")
    exported = {"GPUS_PER_NODE": "8", "MODEL_PATH": "/other", "CKPT_SAVE_DIR": "/elsewhere", "LEARNING_RATE": "2e-6"}
    environment = environment_of(job, exported)
    plan = make_plan(Recipe(job.method, None, PROFILES[job.profile]), job.extra, environment)
    assert (plan.gpus_needed, plan.gpu_ids) == (4, (2, 3, 4, 5))
    assert (plan.args.hf_checkpoint, plan.args.save) == ("/m", str(tmp_path / "c"))
    assert plan.args.lr == 2e-6


def test_a_folder_without_turns_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rollout-dir", str(tmp_path), "--checkpoint-dir", str(tmp_path / "c"), "--gpus", "cpu"]) == 2
    assert "neither ledger.sqlite nor a .jsonl or .json file" in capsys.readouterr().err


def test_too_little_for_a_batch_starts_nothing(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged_sample(ledger, "turn-0")
    arguments = ["--rollout-dir", str(ledger.path.parent), "--checkpoint-dir", str(tmp_path / "c"), "--gpus", "cpu"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == (
        "nothing to train: 1 sample ready, but a batch needs 16; collect more turns (--keep-running waits for them), "
        "or set BATCH_SIZE=1 or less\n"
    )
    for number in (1, 2):
        ledger.turns.record(make_turn(f"turn-{number}"))
        ledger.turns.record_next_state(f"turn-{number}", USER_NEXT, 102.0)
    assert main(arguments) == 0
    said = "nothing to train: 1 sample ready and 2 more at most, once a judge has read the rest, but a batch needs 16; "
    assert capsys.readouterr().out.startswith(said)
    assert too_few(0, 0, 16, "/d/ledger.sqlite") == (
        "0 samples ready, but a batch needs 16; see why turns gave none: openclaw-rl report /d/ledger.sqlite"
    )


@pytest.mark.parametrize(("present", "advice"), [(0, "0 GPUs; write --gpus cpu"), (4, "4 GPUs; write --gpus 4")])
@pytest.mark.parametrize("of_logs", [False, True])
def test_a_machine_with_fewer_gpus_gets_the_count_to_write(
    ledger: Ledger,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    present: int,
    advice: str,
    of_logs: bool,
) -> None:
    """The launcher would name the script of a demo, which does not train the folder."""
    monkeypatch.setattr(train, "visible_gpus", lambda: present)
    judged_sample(ledger, "turn-0")
    folder = ledger.path.parent
    if of_logs:
        ledger.samples.claim(0, 1)
        ledger.samples.record_step(0, "1", 200.0, 201.0)
    monkeypatch.setenv("BATCH_SIZE", "1")
    assert main(["--rollout-dir", str(folder), "--checkpoint-dir", str(tmp_path / "c"), "--gpus", "2,3,4,5"]) == 2
    assert capsys.readouterr().err == f"train_async.py: --gpus 2,3,4,5: the machine has {advice}\n"


def test_what_is_left_to_do(ledger: Ledger) -> None:
    assert nothing_left(ledger, 2)
    ledger.turns.record(make_turn())
    assert nothing_left(ledger, 2), "nobody said anything about it yet"
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    assert not nothing_left(ledger, 2), "to be judged"
    record_judged(ledger, "turn-0", Verdict(score=0), [], "score_zero")
    assert nothing_left(ledger, 2)
    ledger.sessions.end("session", 103.0)
    assert not nothing_left(ledger, 2), "the session may give a sample"
    assert ledger.judging.close_session("session", [], 104.0)
    judged_sample(ledger, "turn-1", session_id="b")
    assert nothing_left(ledger, 2)
    judged_sample(ledger, "turn-2", session_id="b")
    assert not nothing_left(ledger, 2), "a batch"
    ledger.samples.claim(0, 2)
    assert not nothing_left(ledger, 2), "a batch is being trained"
    ledger.samples.record_step(0, "1", 200.0, 201.0)
    assert nothing_left(ledger, 2)
