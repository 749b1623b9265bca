"""The doctor names the cause in prepared broken runs, and finds nothing in a healthy one."""

from __future__ import annotations

import inspect
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from groundwork.paused import pause
from openclaw.config.runtime_variables import GateVariables
from openclaw.doctor import diagnose as diagnose_module
from openclaw.doctor.__main__ import main
from openclaw.doctor.diagnose import CHECKS, Finding, Severity, diagnose
from openclaw.doctor.look import Disk
from openclaw.gate.certificate import Facts, certify
from openclaw.ledger.records import Vote
from openclaw.runs.folder import open_run
from openclaw.runtime.process import RuntimeSupervisor
from slime.utils.run_logs import begin_logs
from tests.helpers.made_runs import BATCH, MadeRun

PLENTY = Disk(2**40, 2**41)


def found(run: MadeRun, disk: Disk = PLENTY) -> list[Finding]:
    return diagnose(open_run(run.close()), lambda folder: disk)


def names(run: MadeRun, disk: Disk = PLENTY) -> list[str]:
    return [finding.name for finding in found(run, disk)]


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "run")


def test_a_healthy_run_has_no_finding(run: MadeRun) -> None:
    run.healthy()
    for number in range(5):  # a few of each fault are not a fault
        run.turn(kind="side")
        run.turn()
        run.judge(run.react(run.turn()), None, reason="no_quorum" if number < 2 else "truncated")
    assert found(run) == []


def test_a_young_run_has_no_finding(run: MadeRun) -> None:
    for _ in range(9):
        run.turn(kind="side")
    assert found(run) == []


def test_nobody_talks(run: MadeRun) -> None:
    assert names(run) == ["no_turns"]


def all_side_by_header(run: MadeRun) -> None:
    for _ in range(30):
        run.turn(kind="side")


def all_side_by_text(run: MadeRun) -> None:
    asked = [{"role": "user", "content": "Read HEARTBEAT.md if it exists (workspace context). Follow it strictly."}]
    for _ in range(30):
        run.turn(kind="side", messages=asked)


def one_turn_sessions(run: MadeRun) -> None:
    for _ in range(30):
        turn_id = run.turn()
        run.ledger.sessions.end(run.ledger.turns.get(turn_id).session_id, run.now)


def judge_is_away(run: MadeRun) -> None:
    run.healthy(2)
    for _ in range(12):
        run.ledger.judging.postpone(run.react(run.turn()), "connection refused", run.now)


def judge_gives_up(run: MadeRun) -> None:
    for _ in range(12):
        run.talk(1)
        run.judge(run.react(run.turn()), None, reason="judge_gave_up", votes=[])


def judge_is_slow(run: MadeRun) -> None:
    run.healthy(4)
    for _ in range(40):
        run.react(run.turn(seconds=60))


def judge_is_cut_off(run: MadeRun) -> None:
    for _ in range(12):
        run.talk(1)
        cut = [Vote("prm", "well, let me", None, invalid="cut_off")] * 3
        run.judge(run.react(run.turn()), None, reason="no_quorum", votes=cut)


def judge_is_neutral(run: MadeRun) -> None:
    for _ in range(30):
        run.talk(0)
    for _ in range(3):
        run.talk(-1)


def votes_disagree(run: MadeRun) -> None:
    for _ in range(12):
        votes = [Vote("prm", "a", 1), Vote("prm", "b", -1), Vote("prm", "c", 1)]
        run.judge(run.react(run.turn()), 1, votes=votes)
        run.judge(run.react(run.turn()), -1, votes=[Vote("prm", "d", -1), Vote("prm", "e", -1), Vote("prm", "f", 1)])


def everything_is_liked(run: MadeRun) -> None:
    for _ in range(60):
        run.talk(1)


def everything_is_stale(run: MadeRun) -> None:
    run.healthy(3)
    for number in range(8):
        run.talk(1)
        run.talk(-1)
        run.ledger.samples.claim(90 + number, 2)
        for sample in run.ledger.views.sample_records():
            if sample.state == "leased":
                run.ledger.samples.drop(sample.id, "stale", 90 + number)


def engines_differ(run: MadeRun) -> None:
    for _ in range(5):
        for score in (1, -1, 1, -1):
            run.talk(score)
        run.step(**{"train/train_rollout_kl": 0.05})


def a_fuse_has_blown(run: MadeRun) -> None:
    run.healthy(2)
    pause(run.folder, 2, "train/ppo_kl>0.5 (it is 0.7)")


def samples_have_stopped(run: MadeRun) -> None:
    run.healthy(3)
    for number in range(30):
        if number % 2:
            run.judge(run.react(run.turn(seconds=60)), -1, reason="duplicate")
        else:
            run.judge(run.react(run.turn(seconds=60)), 1, reason="tool_turns")


def batches_are_slow(run: MadeRun) -> None:
    for score in (1, -1) * 6:
        run.talk(score, seconds=1800)


def teacher_is_missing(run: MadeRun) -> None:
    for _ in range(10):
        run.talk(1)
        run.judge(run.react(run.turn()), -1, reason="no_teacher_log_probs", hint="Write plain prose.")


def no_hints(run: MadeRun) -> None:
    for score in (1, -1) * 12:
        votes = [Vote("prm", "p", score), Vote("hint", "h", -1)]
        run.judge(run.react(run.turn()), score, votes=votes)


def secrets_everywhere(run: MadeRun) -> None:
    for _ in range(10):
        run.talk(1)
        run.talk(-1)
        run.turn(reason="redacted")


def the_client_sets_top_p(run: MadeRun) -> None:
    for _ in range(20):
        run.turn(reason="sampling_parameters", top_p=0.9, temperature=0.2)


def the_run_evaluates(run: MadeRun) -> None:
    for _ in range(20):
        run.turn(reason="evaluation")


def replies_are_cut_off(run: MadeRun) -> None:
    for _ in range(20):
        run.judge(run.react(run.turn()), None, reason="truncated", votes=[])


def the_gate_refuses(run: MadeRun) -> None:
    run.healthy(3)
    run.ledger.decisions.record(2, "step", "3", "no worse")
    for rollout in (3, 4, 5):
        run.ledger.decisions.record(rollout, "refused", "4", f"opinions: -0.2 nats in batch {rollout}", by_margin=True)


def the_gate_refuses_what_nobody_can_accept(run: MadeRun) -> None:
    run.healthy(3)
    for rollout in (3, 4, 5):
        run.ledger.decisions.record(rollout, "refused", "4", "scores moved by 2.10 nats/token", by_margin=rollout == 3)


def a_persons_fuse_has_blown(run: MadeRun) -> None:
    run.healthy()
    pause(run.folder, 3, "train/ppo_kl>0.5 (it is 0.7)", "alice")


def the_certificate_is_red(run: MadeRun) -> None:
    run.healthy(3)
    facts = Facts(loss_tokens=9.0, signal_share=0.0, gradients=[0.1], update_rms=0.1)
    certificate = certify(facts, GateVariables())
    for rollout in (3, 4, 5):
        why = f"version 4 is refused: {certificate.causes[0]}"
        run.ledger.decisions.record(rollout, "refused", "4", why, certificate=certificate.to_dict())


def the_runtime_dies(run: MadeRun) -> None:
    run.healthy(3)
    run.talk(1)
    run.talk(-1)
    run.talk(1)
    run.talk(-1)
    run.step(**{"openclaw/runtime_restarts": 4.0, "openclaw/runtime_frozen": 1.0})


BROKEN: dict[str, tuple[Callable[[MadeRun], None], str, str, str]] = {
    "side by header": (all_side_by_header, "all_side", "30 of 30 (100 %)", "X-Turn-Type"),
    "side by text": (all_side_by_text, "all_side", "heartbeat", "a client's own call (heartbeat)"),
    "sessions of one turn": (one_turn_sessions, "no_next_state", "30 of 30 (100 %) of their sessions", "X-Session-Id"),
    "judge away": (judge_is_away, "judge_fails", "12 turns stay unjudged", "OPENCLAW_JUDGE_BASE_URL"),
    "judge gives up": (judge_gives_up, "judge_gives_up", "judge_gave_up 12", "runtime.log"),
    "judge slow": (judge_is_slow, "judge_slow", "for more than 10 minutes", "PRM_GPUS"),
    "judge cut off": (judge_is_cut_off, "judge_abstains", "cut_off 36", "PRM_MAX_NEW_TOKENS"),
    "judge neutral": (judge_is_neutral, "judge_neutral", "30 of 33", "PRM_M=3"),
    "votes disagree": (votes_disagree, "votes_disagree", "24 of 24", "PRM_TEMPERATURE"),
    "one way": (everything_is_liked, "one_way_verdicts", "60 of 60", "a larger one"),
    "stale": (everything_is_stale, "stale", "MAX_WEIGHT_STALENESS is 2", "--stale-samples correct"),
    "mismatch": (engines_differ, "mismatch", "0.05 nats", "quantised"),
    "person paused": (
        a_persons_fuse_has_blown,
        "person_paused",
        "training of alice is paused since rollout 3: train/ppo_kl>0.5 (it is 0.7)",
        "--person alice",
    ),
    "paused": (a_fuse_has_blown, "paused", "train/ppo_kl>0.5 (it is 0.7)", "openclaw-rl resume"),
    "no samples": (samples_have_stopped, "no_samples", "tool_turns 15", "openclaw-rl report"),
    "slow batches": (batches_are_slow, "slow_batches", f"a batch of {BATCH} takes", "BATCH_SIZE"),
    "no teacher": (teacher_is_missing, "no_teacher", "10 of 10", "OPENCLAW_OPD_TEACHER"),
    "no hints": (no_hints, "no_hints", "0 of the newest 24", "--method rl"),
    "secrets": (secrets_everywhere, "redacted", "10 of 30", "openclaw_redactions_total"),
    "top_p": (the_client_sets_top_p, "sampling", "temperature 0.2, top_p 0.9", "Leave the parameter out"),
    "evaluation": (the_run_evaluates, "evaluation", "20 of 20", "OPENCLAW_EVAL_MODE"),
    "truncated": (replies_are_cut_off, "most_truncated", "20 of 20", "OPENCLAW_MAX_TOKENS"),
    "gate": (
        the_gate_refuses,
        "gate_refuses",
        "the last 3 decisions; the newest: opinions: -0.2 nats in batch 5",
        "accept",
    ),
    "gate, not by opinions": (
        the_gate_refuses_what_nobody_can_accept,
        "gate_refuses",
        "the last 3 decisions; the newest: scores moved by 2.10",
        "lower LEARNING_RATE",
    ),
    "certificate": (
        the_certificate_is_red,
        "certificate",
        "batch 5: version 4 is refused: nothing of the batch says what was good or bad",
        "look at the judge's scores",
    ),
    "restarts": (the_runtime_dies, "restarts", "4 restarts by the newest driver, 1 of them", "logs/processes.log"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_cause_of_a_broken_run_is_named(name: str, run: MadeRun) -> None:
    breaks, expected, evidence, remedy = BROKEN[name]
    breaks(run)
    [finding] = found(run)
    assert finding.name == expected
    assert evidence in finding.evidence
    assert remedy in finding.remedy


def test_a_full_disk(run: MadeRun) -> None:
    run.healthy()
    [finding] = found(run, Disk(2**30, 2**40))
    assert (finding.name, finding.evidence) == ("disk", "1.0 of 1024 GiB are free where the ledger is")


def test_the_most_serious_finding_comes_first(run: MadeRun) -> None:
    judge_is_cut_off(run)
    for _ in range(5):
        votes_disagree(run)
    a_fuse_has_blown(run)
    seen = found(run)
    severities = [finding.severity for finding in seen]
    assert severities == sorted(severities)
    assert seen[0].name == "paused"
    assert len(seen) > 1


def test_what_was_mended_is_not_reported(run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.doctor.look.RECENT", 50)
    for _ in range(10):
        one_turn_sessions(run)
    run.healthy(12)
    assert names(run) == []


def test_a_gate_that_accepts_now_and_then_is_no_fault(run: MadeRun) -> None:
    the_gate_refuses(run)
    run.ledger.decisions.record(6, "step", "4", "no worse")
    run.ledger.decisions.record(7, "refused", "5", "tasks")
    assert names(run) == []


def test_restarts_are_counted_in_the_log_of_the_newest_driver(run: MadeRun, caplog: pytest.LogCaptureFixture) -> None:
    run.healthy()
    run.close()
    log = run.folder / "logs" / "processes.log"
    log.parent.mkdir()
    log.write_text(restart_lines(caplog, 7))
    begin_logs(run.folder, resumes=True, command=["train"])
    assert diagnose(open_run(run.folder), lambda folder: PLENTY) == [], "those of the driver before do not count"
    with log.open("a") as file:
        file.write(restart_lines(caplog, 2))
    [finding] = diagnose(open_run(run.folder), lambda folder: PLENTY)
    assert finding.evidence.startswith("2 restarts")
    assert finding.severity is Severity.WATCH


class Dying:
    """A child that has ended already."""

    pid = 0

    def alive(self) -> bool:
        return False

    def stop(self, timeout: float) -> None:
        """Nothing runs."""


def restart_lines(caplog: pytest.LogCaptureFixture, times: int) -> str:
    """Return what a supervisor logs while its child dies ``times`` times."""
    caplog.clear()
    supervisor = RuntimeSupervisor(Dying, health_url="http://127.0.0.1:1", log_path=Path("none"), deaths_allowed=times)
    with caplog.at_level(logging.ERROR):
        supervisor._keep_serving()
    assert supervisor.restarts == times
    return caplog.text


def test_every_check_is_called() -> None:
    own = {check for check in vars(diagnose_module).values() if inspect.isgeneratorfunction(check)}
    assert own == set(CHECKS)


def test_exit_status_and_json(
    run: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(2**41, 2**40, 2**40)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert main([str(tmp_path / "nothing")]) == 2
    assert "no ledger at" in capsys.readouterr().err
    run.healthy()
    assert main([str(run.close())]) == 0
    assert "looks healthy" in capsys.readouterr().out
    assert main([str(run.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    pause(run.folder, 2, "train/ppo_kl>0.5 \x1b[31m(it is 0.7)")
    assert main([str(run.folder), "--json"]) == 1
    [finding] = json.loads(capsys.readouterr().out)
    assert finding.keys() == {"name", "severity", "title", "evidence", "remedy"}
    assert finding["severity"] == "stops"
    assert main([str(run.folder)]) == 1
    assert "\x1b" not in (text := capsys.readouterr().out)
    assert "do:       openclaw-rl resume" in text
    (run.folder / "ledger.sqlite").write_bytes(b"no ledger" * 1000)
    assert main([str(run.folder)]) == 2
    assert capsys.readouterr().err
