"""The driver's push of weights when engines fail in it: a bounded number of tries, and a trainer's own failure stands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.exceptions import TrainerError
from slime.ray.processes import RemoteManager
from slime.ray.run import Run, execute
from slime.updates import policy_engines
from slime.updates.policy_engines import PUSH_ATTEMPTS, push_is_due


class Remote:
    """A method of an actor; the reference is the value."""

    def __init__(self, function: Any) -> None:
        self.remote = function


class Trainer:
    """Fails as often as it is told to."""

    def __init__(self, failures: int, at: str) -> None:
        self.failures, self.at, self.calls = failures, at, []

    def _do(self, name: str) -> str:
        self.calls.append(name)
        if self.at == name and self.failures:
            self.failures -= 1
            raise TrainerError(f"training rank 0 failed in {name}: the engine refused")
        return "7"

    def connect_rollout_engines(self, engines: list[Any]) -> None:
        self._do("connect")

    def update_weights(self) -> str:
        return self._do("push")


def make_run(monkeypatch: pytest.MonkeyPatch, trainer: Trainer, revived: list[int]) -> Run:
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    run = Run(Arguments(save=None, debug_train_only=False))
    run.processes.trainer = trainer  # type: ignore[assignment]
    run.processes.manager = RemoteManager(
        SimpleNamespace(
            recover_engines=Remote(lambda: revived.pop(0)),
            engine_handles=Remote(lambda: ["engine 0", "engine 1"]),
            weights_arrived=Remote(lambda: trainer.calls.append("arrived")),
        )
    )
    return run


def test_weights_are_pushed_at_the_interval_and_at_the_end() -> None:
    args = Arguments(update_weights_interval=3, num_rollout=8)
    assert [rollout_id for rollout_id in range(8) if push_is_due(args, rollout_id)] == [2, 5, 7]
    args.update_weights_interval = 1
    assert all(push_is_due(args, rollout_id) for rollout_id in range(8))


@pytest.mark.parametrize(
    ("flags", "start", "expected"),
    [
        ({"eval_interval": 2, "skip_eval_before_train": False}, 0, [0]),
        ({"eval_interval": 2, "skip_eval_before_train": True}, 0, []),
        ({"eval_interval": None, "skip_eval_before_train": False}, 0, []),
        ({"eval_interval": 2, "skip_eval_before_train": False}, 5, []),
    ],
)
def test_start_weights_are_evaluated_once(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], start: int, expected: list[int]
) -> None:
    run = Run(Arguments(**flags))
    run.updates.progress.start = start
    evaluated: list[int] = []
    monkeypatch.setattr(run, "evaluate", evaluated.append)
    run.evaluate_start()
    assert evaluated == expected


@pytest.mark.parametrize("at", ["push", "connect"])
def test_an_engine_that_fails_is_started_again_and_gets_the_weights(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    trainer = Trainer(PUSH_ATTEMPTS - 1, at)
    run = make_run(monkeypatch, trainer, [1] * (PUSH_ATTEMPTS - 1))
    run.engines.push(connect=at == "connect")
    assert run.engines.version == "7"
    assert trainer.calls[-3:] == ["connect", "push", "arrived"]
    assert trainer.calls.count("arrived") == 1


def test_a_trainer_that_fails_by_itself_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(1, "push")
    run = make_run(monkeypatch, trainer, [0])
    with pytest.raises(TrainerError, match="rank 0"):
        run.engines.push(connect=False)
    assert trainer.calls == ["push"]


def test_an_engine_that_always_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(100, "push")
    run = make_run(monkeypatch, trainer, [1] * 100)
    with pytest.raises(TrainerError, match="engine refused"):
        run.engines.push(connect=False)
    assert trainer.calls.count("push") == PUSH_ATTEMPTS


def test_engines_that_came_back_get_the_weights(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    trainer = Trainer(0, "")
    run = make_run(monkeypatch, trainer, [2, 0])
    alerts: list[tuple[str, str]] = []
    monkeypatch.setattr(policy_engines, "tell", lambda *words: alerts.append(words))
    spans: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(policy_engines, "record_span", lambda name, *times, **said: spans.append((name, said)))
    run.engines.recover()
    run.engines.recover()
    assert trainer.calls == ["connect", "push", "arrived"]
    assert "2 engine(s) restarted" in capsys.readouterr().out
    assert alerts == [("engine", "2 engine(s) died and were restarted")]
    assert [(name, said["attempts"]) for name, said in spans] == [("push", 1)]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("the cluster did not give 4 GPUs"), "the run failed: the cluster did not give 4 GPUs."),
        (RayTaskError("generate", "Traceback", AssertionError()), "the run failed: AssertionError."),
    ],
)
def test_every_error_of_the_run_ends_it_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: pytest.LogCaptureFixture, error: Exception, line: str
) -> None:
    def loop(run: Run) -> None:
        raise error

    monkeypatch.setattr(Run, "_start", lambda self: None)
    assert execute(Arguments(save=None), loop) == 1
    assert capsys.readouterr().out.splitlines()[-1] == line
    traceback = any(record.exc_info for record in caplog.records)
    assert traceback != isinstance(error, ConfigError)


def test_a_failed_run_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def loop(run: Run) -> None:
        raise TrainerError("training rank 0 died in train: killed.\nmany\nlines")

    monkeypatch.setattr(Run, "_start", lambda self: None)
    assert execute(Arguments(save=None), loop) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the run failed: training rank 0 died in train: killed."
