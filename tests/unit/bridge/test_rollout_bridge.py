"""The rollout function hands out full batches of fresh samples, and keeps the runtime process up."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, failed_turn, judged_sample, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.credit.baseline import record_judged
from openclaw.ledger.logs import ReplyScores
from openclaw.ledger.records import Feedback, Verdict
from openclaw.ledger.store import Ledger
from openclaw.method import maker
from openclaw.owners import stored_id
from openclaw.runtime.process import RuntimeFailedError, RuntimeSupervisor, free_port
from openclaw.runtime.start import runtime_environment
from openclaw.runtime.where import ledger_path, reachable_host
from openclaw.training import rollout
from openclaw.training.rollout import JudgeErrors, LedgerDataSource, LiveRollout, staleness
from openclaw.training.samples import make_sample
from slime.args import Arguments
from slime.exceptions import DataUsedError
from slime.utils.types import Sample
from tests.helpers.episodes import rewarded
from tests.helpers.rollout_args import rollout_args

DEADLINE = 20.0
LIVE = LiveRollout("m.M")


class FakeChild:
    """A child process that lives until it is told otherwise."""

    def __init__(self) -> None:
        self.dead = threading.Event()
        self.stopped = False

    def alive(self) -> bool:
        return not self.dead.is_set()

    def stop(self, timeout: float) -> None:
        self.stopped = True
        self.dead.set()


class Nursery:
    """Spawns fake children and lets a test wait for the next one."""

    def __init__(self, stillborn: int = 0) -> None:
        self.children: list[FakeChild] = []
        self.born = threading.Semaphore(0)
        self._stillborn = stillborn

    def spawn(self) -> FakeChild:
        child = FakeChild()
        if len(self.children) < self._stillborn:
            child.dead.set()
        self.children.append(child)
        self.born.release()
        return child

    def wait(self) -> FakeChild:
        assert self.born.acquire(timeout=DEADLINE), "no child was started"
        return self.children[-1]


def supervise(nursery: Nursery, tmp_path: Path, **changes: Any) -> RuntimeSupervisor:
    return RuntimeSupervisor(
        nursery.spawn,
        health_url="http://none",
        log_path=tmp_path / "runtime.log",
        ready=lambda url: True,
        responds=lambda url, seconds: True,
        poll_seconds=0.005,
        **changes,
    )


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    monkeypatch.delenv("OPENCLAW_LEDGER", raising=False)
    return rollout_args(tmp_path, rollout_function_path=f"{__name__}.LIVE")


@pytest.fixture
def source(args: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerDataSource]:
    supervisor = supervise(Nursery(), tmp_path)
    supervisor.start()
    monkeypatch.setattr(rollout, "start_runtime", lambda args, method_path: supervisor)
    monkeypatch.setattr(rollout, "POLL_SECONDS", 0.005)
    source = LedgerDataSource(args)
    source.before_rollouts()
    yield source
    supervisor.stop()


def test_the_terminal_learns_where_to_talk_and_where_to_look(args: Arguments, source: LedgerDataSource) -> None:
    story = source.story()
    serves, talk, watch, inspect, logs = story.start
    assert serves == f"serves   http://none/v1; talk to it, and it learns: a step per {args.rollout_batch_size} samples"
    assert talk.endswith("openclaw-rl chat --base-url http://none/v1, curl or any OpenAI client")
    assert watch == "watch    http://none/ in a browser"
    assert inspect.endswith(f"openclaw-rl inspect {args.run_dir}")
    assert logs == f"logs     {args.run_dir}"
    assert story.end == (inspect,)


def test_without_a_runtime_process_the_terminal_learns_only_where_to_look(args: Arguments) -> None:
    source = LedgerDataSource(args)
    assert source.story().start == source.story().end
    args.save = "/elsewhere"
    assert source.story().end[0].endswith("openclaw-rl inspect /elsewhere/ledger.sqlite")


def claim(args: Arguments, source: LedgerDataSource, rollout_id: int) -> Any:
    return LIVE(args, rollout_id, source)


def ids(output: Any) -> list[int]:
    return [sample.metadata["ledger_id"] for group in output.samples for sample in group]


def test_batch_is_full_and_the_surplus_waits(args: Arguments, source: LedgerDataSource) -> None:
    for number in range(3):
        judged_sample(source.ledger, f"turn-{number}")
    output = claim(args, source, 0)
    assert ids(output) == [1, 2]
    assert [len(group) for group in output.samples] == [1, 1]
    assert output.metrics["openclaw/queue_depth"] == 1.0
    assert output.metrics["openclaw/turns/judged"] == 3.0
    assert [sample.index for [sample] in output.samples] == [1, 2]
    assert len(source) == 1


def test_rollout_waits_for_the_missing_sample_and_says_so(
    args: Arguments, source: LedgerDataSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rollout, "PROGRESS_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    judged_sample(source.ledger, "turn-0")
    outputs: list[Any] = []
    thread = threading.Thread(target=lambda: outputs.append(claim(args, source, 0)))
    thread.start()
    while "1 of 2 samples ready" not in caplog.text:
        assert thread.is_alive()
        thread.join(0.005)
    judged_sample(source.ledger, "turn-1")
    thread.join(DEADLINE)
    assert ids(outputs[0]) == [1, 2]


def test_a_waiting_rollout_says_at_once_why_turns_are_not_judged(
    args: Arguments, source: LedgerDataSource, caplog: pytest.LogCaptureFixture
) -> None:
    failed_turn(source.ledger, "turn-0", "KeyError: 'colour'")

    def wait() -> None:
        with pytest.raises(InterruptedError):
            claim(args, source, 0)

    thread = threading.Thread(target=wait)
    thread.start()
    while "judge: " not in caplog.text:
        assert thread.is_alive()
        thread.join(0.005)
    source.dispose()
    thread.join(DEADLINE)
    log = Path(args.run_dir) / "runtime.log"
    assert (
        f"judge: 1 turn stays unjudged; turn-0 failed 1 time, last with KeyError: 'colour'; the traceback is in {log}"
        in caplog.text
    )


def test_a_judge_error_is_said_once_until_it_changes(
    source: LedgerDataSource, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    source.judge_errors = JudgeErrors(source.ledger, "log", clock=lambda: now[0])

    def said_at(seconds: float) -> int:
        now[0] = seconds
        caplog.clear()
        source.check()
        return len(caplog.records)

    failed_turn(source.ledger, "turn-0", "first")
    assert [said_at(0.0), said_at(0.5), said_at(2.0), said_at(59.0), said_at(60.0)] == [1, 0, 0, 0, 1]
    failed_turn(source.ledger, "turn-1", "second")
    assert [said_at(61.5), said_at(63.0)] == [1, 0]
    for turn_id in ("turn-0", "turn-1"):
        record_judged(source.ledger, turn_id, Verdict(score=0), [], "score_zero")
    assert said_at(200.0) == 0


def test_disposing_ends_a_waiting_rollout(args: Arguments, source: LedgerDataSource) -> None:
    source.stopped.set()
    with pytest.raises(InterruptedError, match="0 of 2 samples"):
        claim(args, source, 0)


def test_a_batch_is_shared_among_owners_and_says_so(args: Arguments, source: LedgerDataSource) -> None:
    for owner in ("alice", "bob"):
        for number in range(2):
            judged_sample(source.ledger, f"{owner}-{number}", session_id=stored_id(owner, "s"))
    output = claim(args, source, 0)
    assert ids(output) == [1, 3]
    assert output.metrics["openclaw/owners"] == 2.0
    assert output.metrics["openclaw/largest_owner_share"] == 0.5
    assert output.metrics["openclaw/feedback_scored_share"] == 0.0


def test_stale_samples_are_dropped_with_a_reason_and_replaced(args: Arguments, source: LedgerDataSource) -> None:
    args.max_weight_staleness = 2
    for number, version in enumerate(["1", "4", "default", "5"]):
        judged_sample(source.ledger, f"turn-{number}", version=version)
    source.weights_live(0, "5")
    output = claim(args, source, 1)
    assert ids(output) == [2, 4]
    assert output.metrics["openclaw/dropped_stale"] == 2.0
    assert output.metrics["openclaw/staleness_min"] == 0.0
    assert output.metrics["openclaw/staleness_max"] == 1.0
    assert output.metrics["openclaw/corrected_stale"] == 0.0
    assert source.ledger.views.counts()["sample_reasons"] == {"stale": 2}


def test_stale_samples_can_be_kept_for_the_loss_to_correct(args: Arguments, source: LedgerDataSource) -> None:
    args.max_weight_staleness, args.stale_samples = 2, "correct"
    for number, version in enumerate(["1", "4", "5"]):
        judged_sample(source.ledger, f"turn-{number}", version=version)
    source.weights_live(0, "5")
    output = claim(args, source, 1)
    assert ids(output) == [1, 2]
    assert output.metrics["openclaw/dropped_stale"] == 0.0
    assert output.metrics["openclaw/corrected_stale"] == 1.0
    assert output.metrics["openclaw/staleness_max"] == 4.0
    assert source.ledger.views.counts()["sample_reasons"] == {}


def scored_sample(ledger: Ledger, turn_id: str, version: str) -> None:
    turn = make_turn(turn_id, state="unscored", next_state=USER_NEXT, next_state_at=1.0, session_id=turn_id)
    ledger.logs.record(turn_id, [(turn, None)], closed=True)
    scores = ReplyScores(turn.prompt_ids, turn.response_ids, turn.response_logprobs, version)
    ledger.logs.record_scores([(ledger.turns.get(turn_id), scores)])
    sample = make_sample(ledger.turns.get(turn_id), 1.0, score=1)
    record_judged(ledger, turn_id, Verdict(score=1), [sample], None)


@pytest.mark.parametrize("mode", ["drop", "correct"])
def test_old_scores_of_logs_are_renewed_and_never_dropped(args: Arguments, source: LedgerDataSource, mode: Any) -> None:
    args.max_weight_staleness, args.stale_samples, source.offline = 2, mode, True
    for number, version in enumerate(["1", "4"]):
        scored_sample(source.ledger, f"turn-{number}", version)
    judged_sample(source.ledger, "sampled", version="5")
    source.weights_live(0, "5")
    output = claim(args, source, 1)
    assert ids(output) == [2, 3]
    assert source.ledger.turns.get("turn-0").state == "unscored"
    assert source.ledger.views.counts()["sample_reasons"] == {"rescored": 1}
    assert output.metrics["openclaw/scored_share"] == 0.5


def test_a_run_on_logs_ends_when_no_batch_is_left_and_says_what_it_used(
    args: Arguments, source: LedgerDataSource
) -> None:
    source.offline = True
    for number in range(3):
        scored_sample(source.ledger, f"turn-{number}", "1")
    source.ledger.logs.record(
        "side",
        [(make_turn("side", session_id="side", kind="side", state="excluded", reason="side"), None)],
        closed=True,
    )
    assert ids(claim(args, source, 0)) == [1, 2]
    source.weights_live(0, "1")
    with pytest.raises(DataUsedError) as raised:
        claim(args, source, 1)
    assert str(raised.value) == (
        "data     all used: 2 samples in 1 step, 1 left, too few for a batch of 2 (3 turns scored from text); "
        "not trained: side 1"
    )
    assert claim(args, source, 0).samples, "a batch that it holds is handed out again"


def test_a_batch_that_does_not_become_full_is_no_step(args: Arguments, source: LedgerDataSource) -> None:
    args.max_weight_staleness, source.offline = 2, True
    scored_sample(source.ledger, "fresh", "5")
    scored_sample(source.ledger, "old", "1")
    source.weights_live(0, "5")
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(claim, args, source, 1)
        while source.ledger.turns.get("old").state != "unscored":
            assert not batch.done(), batch.result()
        old = source.ledger.turns.get("old")
        source.ledger.logs.record_scores([(old, "log_refused")])
        assert source.ledger.judging.close_session(old.session_id, [], 200.0), "the runtime closes it again"
        with pytest.raises(DataUsedError, match="all used: 0 samples in 0 steps, 1 left, too few for a batch of 2"):
            batch.result(DEADLINE)


def test_a_run_on_logs_waits_for_what_is_to_come(args: Arguments, source: LedgerDataSource) -> None:
    source.offline = True
    source.ledger.turns.record(make_turn())
    source.ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, args, source, 0)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        record_judged(source.ledger, "turn-0", Verdict(score=0), [], "score_zero")
        with pytest.raises(DataUsedError):
            waiting.result(DEADLINE)


def test_without_a_bound_nothing_is_stale(args: Arguments, source: LedgerDataSource) -> None:
    for number in range(2):
        judged_sample(source.ledger, f"turn-{number}")
    source.weights_live(0, "50")
    output = claim(args, source, 1)
    assert output.metrics["openclaw/staleness_mean"] == 49.0


def test_staleness_counts_the_oldest_weights_and_undone_ones_too() -> None:
    assert staleness(Sample(weight_versions=["3", "4"]), "6") == 3
    assert staleness(Sample(weight_versions=["9"]), "6") == 3
    assert staleness(Sample(weight_versions=["9"]), None) == 0


def test_the_trainers_side_waits_for_a_ledger_that_cannot_be_written(
    args: Arguments, source: LedgerDataSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rollout, "LEDGER_PAUSE_SECONDS", 0.005)
    for number in range(2):
        judged_sample(source.ledger, f"turn-{number}")
    source.ledger.database.rows("PRAGMA busy_timeout = 1")
    outputs: list[Any] = []

    def step() -> None:
        outputs.append(claim(args, source, 0))
        source.weights_live(0, "1")
        source.save(0)

    thread = threading.Thread(target=step)
    with closing(sqlite3.connect(source.ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        thread.start()
        while "waiting for the ledger" not in caplog.text:
            assert thread.is_alive()
            thread.join(0.005)
        other.execute("ROLLBACK")
    thread.join(DEADLINE)
    assert ids(outputs[0]) == [1, 2]
    assert source.ledger.views.counts()["samples"] == {"trained": 2}


def test_a_session_forgotten_before_the_claim_leaves_no_short_batch(
    args: Arguments, source: LedgerDataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        judged_sample(source.ledger, f"turn-{number}", session_id=f"session-{number}")
    wait, waits = rollout.wait_for_samples, []

    def forget_after_the_first_wait(*arguments: Any) -> Any:
        waits.append(arguments)
        if len(waits) == 2:
            judged_sample(source.ledger, "turn-2")
        due = wait(*arguments)
        if len(waits) == 1:
            source.ledger.sessions.forget("session-0")
        return due

    monkeypatch.setattr(rollout, "wait_for_samples", forget_after_the_first_wait)
    assert ids(claim(args, source, 0)) == [2, 3]


def test_checkpoint_and_restore_move_the_ledger(args: Arguments, source: LedgerDataSource) -> None:
    for number in range(4):
        judged_sample(source.ledger, f"turn-{number}")
    claim(args, source, 0)
    source.save(0)
    lost = ids(claim(args, source, 1))
    restarted = LedgerDataSource(args)
    restarted.load(0)
    restarted.before_rollouts()
    assert source.ledger.views.counts()["samples"] == {"ready": 2, "trained": 2}
    assert ids(claim(args, restarted, 1)) == lost
    restarted.load(None)
    assert len(restarted) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_samples_per_prompt": 8}, "--n-samples-per-prompt 8 does not fit live training; use 1"),
        ({"rollout_batch_size": 3}, "multiple of --global-batch-size 2"),
    ],
)
def test_arguments_that_would_waste_samples_are_refused(
    args: Arguments, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(args).update(changes)
    monkeypatch.setattr(rollout, "start_runtime", None)
    with pytest.raises(ValueError, match=words):
        LedgerDataSource(args).before_rollouts()


def test_another_data_source_is_refused(args: Arguments) -> None:
    with pytest.raises(ValueError, match="--data-source-path openclaw"):
        LIVE(args, 0, object())


def test_a_rollout_without_a_runtime_process_says_so_and_starts_none(
    args: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "start_runtime", None)
    source = LedgerDataSource(args)
    with pytest.raises(RuntimeError, match=r"no runtime process was started for --rollout-function-path .*\.LIVE"):
        claim(args, source, 0)
    args.rollout_function_path = "slime.rollout.sleep_rollout.sleep"
    source.before_rollouts()
    with pytest.raises(RuntimeError, match=r"sleep_rollout\.sleep.*LiveRollout\('mymethod_module\.MyMethod'\)"):
        claim(args, source, 0)
    source.check()
    source.dispose()


def test_prompts_are_not_in_the_ledger(source: LedgerDataSource) -> None:
    with pytest.raises(RuntimeError, match="--rollout-function-path"):
        source.get_samples(1)
    with pytest.raises(RuntimeError, match="checkpoint"):
        source.add_samples([])


def test_ledger_lies_with_the_checkpoints(args: Arguments, tmp_path: Path) -> None:
    assert ledger_path(args, {}) == tmp_path / "ledger.sqlite"
    args.save = "/checkpoints"
    assert ledger_path(args, {}) == Path("/checkpoints/ledger.sqlite")
    assert ledger_path(args, {"OPENCLAW_LEDGER": "/elsewhere.db"}) == Path("/elsewhere.db")


def test_turns_become_probes_only_in_a_run_with_a_gate(args: Arguments) -> None:
    share = {"OPENCLAW_GATE_SHARE": "0.3"}
    assert RuntimeConfig.from_env(runtime_environment(args, "m.M", share)).gate_share == 0
    args.before_push_path = "openclaw.gate.plugin.decide"
    assert RuntimeConfig.from_env(runtime_environment(args, "m.M", share)).gate_share == 0.3
    assert RuntimeConfig.from_env(runtime_environment(args, "m.M", {})).gate_share == 0.1
    args.before_push_path = "mine.decide"  # it need not ask any
    assert RuntimeConfig.from_env(runtime_environment(args, "m.M", {})).gate_share == 0
    assert RuntimeConfig.from_env(runtime_environment(args, "m.M", share)).gate_share == 0.3


def test_runtime_environment_is_what_the_run_decides_over_what_the_caller_set(args: Arguments) -> None:
    given = {
        "PATH": "/bin",
        "MAJORITY_VOTE_N": "1",
        "PORT": "30001",
        "OPENCLAW_JUDGE_PROMPTS": "brief",
        "CONTEXT_LENGTH": "",
    }
    environment = runtime_environment(args, "m.M", given)
    config = RuntimeConfig.from_env(environment)
    assert environment["PATH"] == "/bin"
    assert (config.method, config.prm_m, config.port, config.judge_prompts) == ("m.M", 1, 30001, "brief")
    assert (config.policy_url, config.judge_url) == ("http://127.0.0.1:1111", "http://127.0.0.1:2222")
    assert (config.tokenizer, config.judge_tokenizer) == ("/models/policy", "/models/judge")
    assert (config.temperature, config.max_tokens, config.context_length) == (0.6, 512, 4096)
    assert config.prm_max_new_tokens == 256
    assert config.ledger is not None
    assert str(Path(rollout.__file__).parents[2]) in environment["PYTHONPATH"].split(os.pathsep)
    assert sys.prefix not in environment["PYTHONPATH"]


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("opd_teacher", "prm", "opd_teacher"),
        ("distill_topk", 50, "distill_topk"),
        ("rollout_temperature", 0.9, "temperature"),
        ("rollout_max_response_len", 99, "max_tokens"),
        ("rollout_max_context_len", 5000, "context_length"),
        ("prm_m", 5, "prm_m"),
        ("prm_temperature", 0.1, "prm_temperature"),
        ("prm_max_new_tokens", 77, "prm_max_new_tokens"),
        ("prm_step_coef", 0.4, "prm_step_coef"),
        ("hf_checkpoint", "/models/other", "tokenizer"),
        ("prm_model_path", "/models/other", "judge_tokenizer"),
    ],
)
def test_an_argument_reaches_the_runtime(args: Arguments, flag: str, value: Any, field: str) -> None:
    before = RuntimeConfig.from_env(runtime_environment(args, "m.M", {}))
    setattr(args, flag, value)
    after = RuntimeConfig.from_env(runtime_environment(args, "m.M", {}))
    assert getattr(after, field) == value
    assert getattr(before, field) != value


def test_contradicting_temperature_and_missing_judge_are_refused(args: Arguments) -> None:
    with pytest.raises(ValueError, match="contradicts --rollout-temperature"):
        runtime_environment(args, "m.M", {"OPENCLAW_TEMPERATURE": "1.0"})
    with pytest.raises(ConfigError, match="PORT"):
        runtime_environment(args, "m.M", {"PORT": "many"})
    with pytest.raises(ValueError, match="--rollout-top-p 1"):
        runtime_environment(args, "m.M", {"OPENCLAW_TOP_P": "0.9"})
    args.prm_router_ip = None
    with pytest.raises(ValueError, match="--prm-enable"):
        runtime_environment(args, "openclaw_rl_method.BinaryRL", {})


def test_dead_runtime_is_started_again_and_counted(tmp_path: Path) -> None:
    nursery = Nursery()
    supervisor = supervise(nursery, tmp_path)
    supervisor.start()
    first = nursery.wait()
    first.dead.set()
    second = nursery.wait()
    assert second is not first
    assert supervisor.restarts == 1
    supervisor.stop()
    assert second.stopped
    assert len(nursery.children) == 2


def test_runtime_that_keeps_dying_is_an_error_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "runtime.log").write_text("Traceback: no module named m")
    supervisor = supervise(Nursery(stillborn=99), tmp_path, deaths_allowed=2)
    supervisor._ready = lambda url: False
    with pytest.raises(RuntimeFailedError, match=r"ended 3 times within 600 s(.|\n)*no module named m"):
        supervisor.start()


def test_runtime_that_dies_soon_after_each_good_start_is_an_error_too(
    args: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaths count within a window, not in a row; one that happens long after the others starts a new count."""
    (tmp_path / "runtime.log").write_text("Traceback: the first judged turn is a bug")
    nursery, now = Nursery(), [0.0]
    supervisor = supervise(nursery, tmp_path, deaths_allowed=2, deaths_window=60.0, clock=lambda: now[0])
    supervisor.start()
    for moment in (0.0, 1.0, 100.0, 130.0, 159.0):
        child = nursery.wait()
        assert supervisor._serving.wait(DEADLINE)
        now[0] = moment
        child.dead.set()
    supervisor._thread.join(DEADLINE)
    assert supervisor.restarts == 4
    monkeypatch.setattr(rollout, "start_runtime", lambda args, method_path: supervisor)
    source = LedgerDataSource(args)
    source.check()  # before the process is started there is nothing to say
    source.before_rollouts()
    with pytest.raises(RuntimeFailedError, match=r"ended 3 times within 60 s(.|\n)*first judged turn is a bug"):
        source.check()


def test_the_data_source_owns_one_runtime_process(
    args: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery = Nursery()

    def start(args: Arguments, method_path: str) -> RuntimeSupervisor:
        assert method_path == LIVE.method_path
        supervisor = supervise(nursery, tmp_path)
        supervisor.start()
        return supervisor

    monkeypatch.setattr(rollout, "start_runtime", start)
    first, second = LedgerDataSource(args), LedgerDataSource(args)
    first.before_rollouts()
    runtime = first.runtime
    first.before_rollouts()  # as after a restart of the trainer
    assert first.runtime is runtime
    second.dispose()  # ends nothing of another one's
    assert [child.stopped for child in nursery.children] == [False]
    first.dispose()
    first.dispose()
    assert [child.stopped for child in nursery.children] == [True]


def test_stop_before_start_does_nothing(tmp_path: Path) -> None:
    nursery = Nursery()
    supervise(nursery, tmp_path).stop()
    assert nursery.children == []


def test_port_in_use_is_said_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="set PORT to a free port"):
            free_port("127.0.0.1", taken.getsockname()[1])
    assert free_port("127.0.0.1", 0) > 0


def test_a_port_that_is_left_soon_is_waited_for() -> None:
    with socket.socket() as leaving:
        leaving.bind(("127.0.0.1", 0))
        leaving.listen()
        port = leaving.getsockname()[1]
        threading.Timer(0.3, leaving.close).start()
        assert free_port("127.0.0.1", port, patience=60) == port


@pytest.mark.parametrize(
    ("host", "expected"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("box.local", "box.local")]
)
def test_address_of_the_gateway_in_a_url(host: str, expected: str) -> None:
    assert reachable_host(host) == expected


def test_the_trainer_gets_rewards_compared_with_earlier_ones(
    args: Arguments, source: LedgerDataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding B4: without a baseline happy traffic is imitated at full weight, for ever."""
    for number in range(4):
        judged_sample(source.ledger, f"turn-{number}")
    first = claim(args, source, 0)
    rewards = [group[0].reward for group in first.samples]
    assert rewards[0] == 1.0
    assert 0 < rewards[1] < 1.0
    assert first.metrics["openclaw/baseline"] == pytest.approx((1 - rewards[1]) / 2)
    assert [group[0].metadata["raw_reward"] for group in first.samples] == [1.0, 1.0]
    monkeypatch.setenv("OPENCLAW_BASELINE", "0")
    plain = LedgerDataSource(args)
    assert [rollout.prepare(sample, None, plain.compares).reward for sample in plain.ledger.samples.claim(1, 2)] == [
        1.0,
        1.0,
    ]


def test_the_samples_of_a_refused_step_are_dropped_for_good(args: Arguments, source: LedgerDataSource) -> None:
    """Finding B7: the batch whose step a fuse held back is neither trained nor handed out again, also after a restart."""
    for number in range(4):
        judged_sample(source.ledger, f"turn-{number}")
    claim(args, source, 0)
    source.step_refused(0, "train/ppo_kl>0.5 (it is 2)")
    assert source.ledger.views.counts()["sample_reasons"] == {"fuse": 2}
    source.save(0)
    again = LedgerDataSource(args)
    again.load(0)
    assert again.ledger.views.counts()["samples"] == {"dropped": 2, "ready": 2}
    assert ids(claim(args, source, 1)) == [3, 4]
    again.load(-1)
    assert again.ledger.samples.ready_count() == 4, "a checkpoint before the pause undoes the drop"


def test_the_share_of_replies_that_fall_apart(args: Arguments, source: LedgerDataSource) -> None:
    for number, reason in enumerate(["truncated", "repetition", "score_zero"]):
        source.ledger.turns.record(make_turn(f"without-{number}"))
        source.ledger.turns.record_next_state(f"without-{number}", USER_NEXT, 102.0)
        record_judged(source.ledger, f"without-{number}", Verdict(), [], reason)
    for number in range(5):
        judged_sample(source.ledger, f"turn-{number}")
    assert claim(args, source, 0).metrics["openclaw/degenerate_share"] == 2 / 8


def test_a_run_that_goes_on_with_another_method_judges_again(
    args: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ready samples lacked what the new loss reads, so the first step ended the run, again and again."""
    supervisor = supervise(Nursery(), tmp_path)
    monkeypatch.setattr(rollout, "start_runtime", lambda args, method_path: supervisor)
    ledger = Ledger(ledger_path(args))
    episode = rewarded(ledger, "a")
    for name in ("trained", "ready", "unknown", "corrected"):
        made_by = None if name == "unknown" else "openclaw_rl_method.BinaryRL"
        ledger.turns.record(make_turn(name))
        ledger.turns.record_next_state(name, USER_NEXT, 102.0)
        sample = make_sample(ledger.turns.get(name), 1.0, score=1)
        record_judged(ledger, name, Verdict(score=1), [sample], None, made_by=made_by)
        if name in ("trained", "corrected"):
            with ledger.transaction() as connection:
                connection.execute("UPDATE samples SET state = 'leased', rollout_id = 0 WHERE turn_id = ?", (name,))
    down = Feedback(turn_id="corrected", created_at=103.0, thumbs="down")
    assert ledger.feedback.record(down, USER_NEXT).applied
    same = rollout_args(tmp_path, rollout_function_path="openclaw_rollout.generate_rollout_openclaw")
    LedgerDataSource(same).before_rollouts()
    assert ledger.views.counts()["sample_reasons"] == {}
    other = rollout_args(tmp_path, rollout_function_path="openclaw_opd_rollout.generate_rollout_openclaw_opd")
    for _ in range(2):  # a second start finds nothing to do
        LedgerDataSource(other).before_rollouts()
        states = {each.turn.id: each.turn.state for each in ledger.views.turn_records() if each.turn.kind == "main"}
        assert {name: states[name] for name in ("trained", "ready", "unknown")} == {
            "trained": "judged",
            "ready": "pending",
            "unknown": "judged",
        }
        samples = [(each.turn_id, each.state, each.reason) for each in ledger.views.sample_records()]
        assert [each for each in samples if not each[0].startswith(episode.id)] == [
            ("trained", "leased", None),
            ("ready", "dropped", "other_method"),
            ("unknown", "ready", None),
            ("corrected", "leased", None),
            ("corrected", "dropped", "other_method"),
        ]
        assert {each[2] for each in samples if each[0].startswith(episode.id)} == {"other_method"}
    said = [line for line in caplog.messages if "goes on with" in line]
    assert said == [
        "this run goes on with openclaw_opd_method.OnPolicyDistillation: 1 turn of openclaw_rl_method.BinaryRL will be "
        "judged again, 3 samples dropped (reason other_method)"
    ]


def test_top_k_samples_are_of_another_method(args: Arguments) -> None:
    assert maker("m.M", 0) == "m.M"
    assert maker("m.M", 50) != maker("m.M", 64)
