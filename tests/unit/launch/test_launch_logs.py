"""``DATA_PATH``: the plan of a run that trains from logs, what its dry run counts, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import judged_sample
from openclaw.launch.__main__ import main
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from openclaw.ledger.store import Ledger
from tests.helpers.checkpoints import looks_whole

CHAT = {
    "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "n"},
    ]
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(CHAT))
    return path


def plan(log: Path | None, *extra: str, **environment: str) -> Plan:
    data = {} if log is None else {"DATA_PATH": str(log)}
    return make_plan(Recipe("combine", None, PROFILES["tiny_cpu"]), extra, {**data, **environment})


def test_the_plan_of_a_run_on_logs(log: Path) -> None:
    made = plan(log, BATCH_SIZE="6")
    args, runtime = made.args, made.runtime
    assert (args.max_weight_staleness, args.stale_samples, args.use_rollout_logprobs) == (4, "correct", True)
    assert (args.num_rollout, args.serve_when_done) == (100_000_000, False)
    assert (runtime.offline, runtime.score_ahead, runtime.owner_share, runtime.feedback_share) == (True, 6, 1.0, 1.0)
    assert made.environment["OPENCLAW_OFFLINE"] == "1"
    live = plan(None)
    assert (live.runtime.offline, live.args.stale_samples, live.args.serve_when_done) == (False, "drop", True)
    assert live.runtime.owner_share == 0.5


def test_what_the_user_says_wins(log: Path) -> None:
    environment = {"MAX_WEIGHT_STALENESS": "9", "NUM_ROLLOUT": "3", "OPENCLAW_OWNER_SHARE": "0.4"}
    made = plan(log, "--serve-when-done", "--stale-samples", "drop", **environment)
    assert (made.args.max_weight_staleness, made.args.num_rollout, made.runtime.owner_share) == (9, 3, 0.4)
    assert (made.args.serve_when_done, made.args.stale_samples) == (True, "drop")


def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str, **environment: Any) -> None:
    model = looks_whole(tmp_path / "model")
    settings = {"HF_CKPT": model, "PRM_MODEL_PATH": model, "RUN_DIR": tmp_path / "run", **environment}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    main(["--method", "combine", "--profile", "tiny_cpu", *words])


def test_a_dry_run_counts_and_writes_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(monkeypatch, tmp_path, "--dry-run", "--epochs", "3", DATA_PATH=log)
    out = capsys.readouterr().out
    assert f"logs     {log}, 3 times\n         1 conversation, 1 new turn\n         1 turn to score" in out
    assert f"DATA_PATH {log} gives 3 samples at most, but a batch needs 16, so no step would be taken; add" in out
    assert not (tmp_path / "run").exists()


def test_too_few_turns_start_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        launch(monkeypatch, tmp_path, DATA_PATH=log, PORT="0")
    assert ended.value.code == 2
    assert "or set BATCH_SIZE=1 or less" in capsys.readouterr().err


def test_a_quoted_tilde_is_the_home_folder(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    launch(monkeypatch, tmp_path, "--dry-run", DATA_PATH="~/log.jsonl")
    assert f"logs     {log}\n" in capsys.readouterr().out


def test_a_dry_run_on_the_ledger_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Ledger(tmp_path / "old" / "checkpoints" / "ledger.sqlite")
    judged_sample(run, "turn-0")
    run.samples.claim(0, 1)
    run.samples.record_step(0, "1", 200.0, 201.0)
    launch(monkeypatch, tmp_path, "--dry-run", DATA_PATH=tmp_path / "old")
    out = capsys.readouterr().out
    assert "1 sample of the earlier run, trained with the ids and log-probabilities it sampled" in out
    assert "its batch size was 1 and this run's is 16; BATCH_SIZE=1 gives the same batches" in out


@pytest.mark.parametrize(
    ("data", "words", "says"),
    [
        (None, ["--epochs", "2"], "--epochs is about logs; name them: DATA_PATH=FILE_OR_FOLDER"),
        (None, ["--judge-again"], "--judge-again is about logs"),
        (None, ["--limit", "2"], "--limit is about logs"),
        ("missing", [], "no such file or folder"),
        ([{"question": "q"}, CHAT], [], "log.jsonl line 1: no known format"),
        ([{"messages": CHAT["messages"][:2]}], [], "holds no turn to train; a turn needs a next state, or a verdict"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(
    data: Any, words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    named = {}
    if data is not None:
        path = named["DATA_PATH"] = tmp_path / "log.jsonl"
        if isinstance(data, list):
            path.write_text("\n".join(map(json.dumps, data)))
    with pytest.raises(SystemExit) as ended:
        launch(monkeypatch, tmp_path, "--dry-run", *words, **named)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_runs_own_ledger_is_no_log_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged_sample(Ledger(tmp_path / "run" / "checkpoints" / "ledger.sqlite"), "turn-0")
    with pytest.raises(SystemExit):
        launch(monkeypatch, tmp_path, "--dry-run", DATA_PATH=tmp_path / "run")
    assert "the ledger of this very run; unset DATA_PATH to continue it" in capsys.readouterr().err
