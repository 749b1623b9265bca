"""An engine whose weights may be half new is ended, whatever else looks at it."""

from __future__ import annotations

import threading
from pathlib import Path

from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.exceptions import EngineNodeLostError


class Child:
    """A process that runs until it is killed."""

    killed = False
    returncode = None
    pid = 2**31 - 1  # nobody's

    def alive(self) -> bool:
        return not self.killed

    def kill(self) -> None:
        self.killed = True


def started(run_dir: Path) -> tuple[SGLangEngine, Child]:
    engine = SGLangEngine(Arguments(run_dir=str(run_dir), device="cpu"), EngineSpec("policy", 0, 1), 1)
    child = Child()
    engine.process.child, engine._starts = child, 1  # pyright: ignore[reportAttributeAccessIssue]
    return engine, child


def test_a_look_at_its_health_does_not_save_it(tmp_path: Path) -> None:
    engine, child = started(tmp_path)
    looking, answer = threading.Event(), threading.Event()

    def slow_health() -> bool:
        looking.set()
        return answer.wait(60)

    engine.health = slow_health  # the monitor asks while the update fails
    monitor = threading.Thread(target=engine.restart_if_dead)
    monitor.start()
    assert looking.wait(60)
    threading.Timer(0.1, answer.set).start()
    engine.end_failed_update(1)
    monitor.join(60)
    assert not monitor.is_alive()
    assert child.killed


def test_an_engine_that_was_started_again_is_not_ended(tmp_path: Path) -> None:
    engine, child = started(tmp_path)
    engine._starts = 2
    engine.end_failed_update(1)
    assert not child.killed
    engine.end_failed_update(2)
    assert child.killed


def test_only_a_process_that_ended_counts_as_ended(tmp_path: Path) -> None:
    """The trainer asks while the server is busy with a push: a server that does not answer is not a sign."""
    engine, child = started(tmp_path)
    engine.health = lambda: False
    assert not engine.has_ended()
    child.kill()
    assert engine.has_ended()


def test_a_lost_machine_of_an_engine_counts_as_ended(tmp_path: Path) -> None:
    engine, _ = started(tmp_path)

    class Lost:
        def alive(self) -> bool:
            raise EngineNodeLostError("the process on machine 2 does not answer")

    engine._others = Lost()  # pyright: ignore[reportAttributeAccessIssue]
    assert engine.has_ended()


def test_a_call_waits_as_long_as_the_push_does(tmp_path: Path) -> None:
    args = Arguments(run_dir=str(tmp_path), device="cpu", distributed_timeout_minutes=30)
    engine = SGLangEngine(args, EngineSpec("policy", 0, 1), 1)
    assert engine._client.timeout.read == 1800.0
