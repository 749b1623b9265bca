"""What a message may contain, and that errors arrive as they were raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl import protocol
from agentrl.client import copied
from agentrl.environment import Registry, Task, load_environment
from agentrl.exceptions import CLASSES, CapacityError, InvalidError, NotFoundError
from agentrl.leases import lease
from agentrl.protocol import ErrorBody, LeaseRequest, StepRequest, StepResult, Verdict
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import Script

ID = "a" * 32


def test_an_infrastructure_failure_cannot_be_rewarded() -> None:
    assert Verdict(status="infra_error").score is None
    with pytest.raises(ValidationError, match="has no score"):
        Verdict(status="infra_error", score=0.0)
    for status in ("ok", "task_failed"):
        with pytest.raises(ValidationError, match="needs a score"):
            Verdict(status=status)
        with pytest.raises(ValidationError):
            Verdict(status=status, score=float("nan"))
    assert Verdict(status="timeout").score is None
    assert Verdict(status="timeout", score=-1.0).score == -1.0


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_arrives_as_it_was_raised(kind: Any) -> None:
    error = CLASSES[kind]("why", code="some_code", retryable=True, retry_after_s=2.5, executed=True)
    found = ErrorBody.model_validate_json(ErrorBody.of(error).model_dump_json()).error()
    assert type(found) is type(error)
    assert vars(found) == vars(error)
    assert vars(error.again()) == vars(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"task_id": ""},
        {"ttl_s": 0},
        {"ttl_s": 1e9},
        {"wait_s": -1},
        {"wait_s": float("inf")},
        {"wait_s": "5"},
        {"request_id": "short"},
        {"request_id": "a/" * 10},
        {"image": "/etc/passwd"},
    ],
)
def test_what_a_request_must_not_say(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LeaseRequest.model_validate({"request_id": ID, "task_id": "plain", **wrong})


def test_what_has_no_json_text_is_refused() -> None:
    request = StepRequest.model_construct(request_id=ID, seq=1, timeout_s=float("nan"), action={})
    with pytest.raises(InvalidError, match="cannot be sent"):
        copied(request)
    answer = StepResult.model_validate({"observation": {"text": "x", "newer": 1}, "newer": 2})
    assert copied(answer) == answer


def test_deadlines_nest() -> None:
    margins = [
        lease.CANCEL_GRACE_S,
        protocol.WORKER_MARGIN_S,
        protocol.ROUTER_MARGIN_S,
        protocol.ROUTER_ROUTE_MARGIN_S,
        protocol.CLIENT_MARGIN_S,
    ]
    assert margins == sorted(set(margins))


def test_tasks_have_ids() -> None:
    first, second = Script(tasks=(Task("a"), Task("b"))), Script(tasks=(Task("b"),))
    registry = Registry([first.environment()])
    assert len(registry) == 2
    assert registry.find("b")[0] == Task("b")
    with pytest.raises(NotFoundError, match="no task 'c'"):
        registry.find("c")
    with pytest.raises(ConfigError, match="task 'b' is offered by Scripted and Scripted"):
        Registry([first.environment(), second.environment()])
    with pytest.raises(ConfigError, match="no task"):
        Registry([])
    broken = first.environment()
    broken.script = None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match=r"Scripted\.tasks raised AttributeError"):
        Registry([broken])


def test_an_environment_whose_import_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_environment.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="its import raised ZeroDivisionError: division by zero"):
        load_environment("broken_environment.Broken")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Environment", "write MODULE.CLASS"),
        ("no_such_module.Environment", "No module named"),
        ("agentrl.environment.Nothing", "has no attribute"),
        ("agentrl.environment.Task", "is not an agentrl.environment.Environment"),
        ("agentrl.environment.Environment", "lacks close, evaluate, reset, step, tasks"),
    ],
)
def test_an_environment_that_cannot_be_loaded(name: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        load_environment(name)


def test_a_full_pool_is_a_capacity_error() -> None:
    assert CapacityError("full", code="pool_is_full").kind == "capacity"
